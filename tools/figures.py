"""The figures the project promises on a CPU, measured here: `uv run python -m tools.figures [NAME ...] [--json]`.

import     what `import tops_kernels` adds to `import jax`, and with the first use of every public name, which are looked up lazily:
           median of 10 pairs of processes, by turns; each under 100 ms, no backend initialised
off        with TOPS_LOG unset every op is the undecorated function of its module, the same object
program    instructions that rms_norm and matmul add to a compiled CPU program, over plain jnp: at most 2 either way
gla_step   a donated decode step by turns with a memcpy of its 64 MiB of states: at most 1.2 times as long, medians of 15
gla        gla in XLA by turns with the recurrence by lax.scan, float32, gates log-sigmoid(normal) / 16, K = V = 128: at B = 2, T = 2048, H = 8
           forward at most half as long, forward and backward at most a tenth, in at most 3 times the inputs' memory beyond inputs, outputs
           and gradients; at B = 1, T = 1024, H = 4 forward no longer, forward and backward at most 20 ms; medians of 15 (scan's backward: 3)
the rest   ratios of times against jnp, by `tops-bench figures`: matmul, rms_norm-fwd, rms_norm-vjp, eager

Exit status 1 where one is missed, 2 for a name that is none of these.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence

from tools.project import ToolError, run

_PAIRS = 10
_IMPORT_BOUND = 0.100  # seconds
_PROGRAM_BOUND = 2
_STEP_BOUND = 1.2  # times a memcpy
_GLA_BOUNDS = (0.5, 0.1, 3.0, 1.0, 0.020)  # forward, both, memory; of the small call forward, and both in seconds
_TIMED = ("matmul", "rms_norm-fwd", "rms_norm-vjp", "eager")

_IMPORT = """
import json, sys, time
start = time.perf_counter()
import jax
middle = time.perf_counter()
if sys.argv[1] == "both":
    import tops_kernels
after = time.perf_counter()
if sys.argv[1] == "both":
    for name in tops_kernels.__all__:
        getattr(tops_kernels, name)
end = time.perf_counter()
from jax._src import xla_bridge
print(json.dumps([middle - start, after - middle, end - middle, xla_bridge.backends_are_initialized()]))
"""

_OFF = """
import importlib, json, tops_kernels, tops_manifest
print(json.dumps({
    op.name: getattr(tops_kernels, op.name)
    is getattr(importlib.import_module(f"tops_kernels.ops.{op.family}.op"), op.name)
    for op in tops_manifest.ops()
    if op.status != "planned"
}))
"""

_PROGRAM = """
import json, re
import jax, jax.numpy as jnp, tops_kernels

def plain_norm(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)

def count(function, *arrays):
    text = jax.jit(function).lower(*arrays).compile().as_text()
    return len(re.findall(r"^\\s+(?:ROOT )?%?[\\w.-]+ = ", text, re.MULTILINE))

x, scale, w = jnp.ones((64, 96)), jnp.ones(96), jnp.ones((96, 32))
print(json.dumps({
    "rms_norm": count(tops_kernels.rms_norm, x, scale) - count(plain_norm, x, scale),
    "matmul": count(tops_kernels.matmul, x, w) - count(jnp.dot, x, w),
}))
"""

_STEP = """
import json, statistics, time
import jax, jax.numpy as jnp, numpy as np, tops_kernels

B, H, K, V = 64, 16, 128, 128
keys = jax.random.split(jax.random.key(0), 4)
q, k = (jax.random.normal(key, (B, H, K)) for key in keys[:2])
v, g = jax.random.normal(keys[2], (B, H, V)), -jnp.abs(jax.random.normal(keys[3], (B, H, K)))
state = jnp.ones((B, H, K, V))
source = np.ones(state.shape, np.float32)
target = source.copy()
step = jax.jit(tops_kernels.gla_step, donate_argnames="state")
times = [], []
for _ in range(17):
    start = time.perf_counter()
    o, state = jax.block_until_ready(step(q, k, v, g, state))
    middle = time.perf_counter()
    np.copyto(target, source)
    end = time.perf_counter()
    times[0].append(middle - start)
    times[1].append(end - middle)
print(json.dumps([statistics.median(one[2:]) for one in times]))  # the first two compile and touch the memory
"""


_GLA = """
import json, statistics, time
import jax, jax.numpy as jnp, numpy as np, tops_kernels
from tops_bench.baselines.gla import gla_scan

def draw(b, t, h, width):
    random = np.random.default_rng(0)
    q, k, v, g, do = (jnp.asarray(random.standard_normal((b, t, h, width)), jnp.float32) for _ in range(5))
    return q, k, v, jax.nn.log_sigmoid(g) / 16, do

def both(call):
    def run(q, k, v, g, do):
        outputs, vjp = jax.vjp(call, q, k, v, g)
        return outputs, vjp((do, jnp.ones_like(outputs[1])))
    return run

def ours(q, k, v, g):
    return tops_kernels.gla(q, k, v, g, backend="xla")

def race(one, other, arrays, rounds):
    calls = [jax.jit(f).lower(*arrays).compile() for f in (one, other)]
    times = [[], []]
    for _ in range(rounds + 1):
        for call, kept in zip(calls, times):
            time.sleep(0.5)  # the scan's gradient gives gigabytes back after it is done: 150 ms that are not the next call's
            start = time.perf_counter()
            jax.block_until_ready(call(*arrays))
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept[1:]) for kept in times], calls[0].memory_analysis().temp_size_in_bytes

found = []
for shape, rounds in (((2, 2048, 8, 128), 3), ((1, 1024, 4, 128), 15)):
    arrays = draw(*shape)
    (forward, scan), _ = race(ours, gla_scan, arrays[:4], 15)
    (pair, scan_pair), memory = race(both(ours), both(gla_scan), arrays, rounds)
    found.append([forward, scan, pair, scan_pair, memory / (4 * arrays[0].nbytes)])
print(json.dumps(found))
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One figure: what was found, what was promised."""

    name: str
    found: str
    promised: str
    met: bool


def importing() -> list[Line]:
    """Pairs of fresh processes by turns; the first pair, which may compile bytecode, is not counted."""
    found = []
    initialised = False
    for _ in range(_PAIRS + 1):
        # `jax` alone is measured too, so that a machine that slows down between two processes shows.
        alone, both = (json.loads(_python(_IMPORT, which)) for which in ("jax", "both"))
        found.append((both[1] - alone[1], both[2] - alone[2], alone[0]))
        initialised |= both[3]
    added, used, alone_s = (statistics.median(one[i] for one in found[1:]) for i in range(3))
    bound = f"under {_IMPORT_BOUND * 1e3:.0f} ms"
    return [
        Line("import", f"{added * 1e3:.1f} ms (import jax: {alone_s * 1e3:.0f} ms)", bound, added < _IMPORT_BOUND),
        Line("import: every name used", f"{used * 1e3:.1f} ms", bound, used < _IMPORT_BOUND),
        Line(
            "import: backend", "initialised" if initialised else "not initialised", "not initialised", not initialised
        ),
    ]


def off() -> list[Line]:
    same = json.loads(_python(_OFF))
    other = [op for op, is_same in same.items() if not is_same]
    shown = f"another function: {', '.join(other)}" if other else f"{len(same)} ops"
    return [Line("off: public functions are the originals", shown, "the same objects", not other)]


def program() -> list[Line]:
    more = json.loads(_python(_PROGRAM))
    return [
        Line(f"program: {op}", f"{by:+d} instructions", f"within {_PROGRAM_BOUND}", abs(by) <= _PROGRAM_BOUND)
        for op, by in more.items()
    ]


def stepping() -> list[Line]:
    """Both run through the machine's memory, so what else it does counts against both."""
    step, copy = json.loads(_python(_STEP))
    shown = f"{step / copy:.2f} times ({step * 1e3:.1f} ms to {copy * 1e3:.1f} ms)"
    return [Line("gla_step: memcpy", shown, f"at most {_STEP_BOUND:g}", step <= _STEP_BOUND * copy)]


def gating() -> list[Line]:
    """Medians of calls by turns. Memory is what the compiled program needs beyond its arguments and results."""
    large, small = json.loads(_python(_GLA))
    forward, pair, memory, small_forward, small_pair = _GLA_BOUNDS

    def ratio(name: str, mine: float, scan: float, bound: float) -> Line:
        shown = f"{mine / scan:.3f} ({mine * 1e3:.1f} ms to {scan * 1e3:.1f} ms)"
        return Line(name, shown, f"at most {bound:g}", mine <= bound * scan)

    return [
        ratio("gla: forward", large[0], large[1], forward),
        ratio("gla: forward and backward", large[2], large[3], pair),
        Line("gla: memory", f"{large[4]:.2f} times the inputs", f"at most {memory:g}", large[4] <= memory),
        ratio("gla, small: forward", small[0], small[1], small_forward),
        Line(
            "gla, small: forward and backward",
            f"{small[2] * 1e3:.1f} ms",
            f"at most {small_pair * 1e3:.0f} ms",
            small[2] <= small_pair,
        ),
    ]


def timed(names: Sequence[str]) -> list[Line]:
    done = run(sys.executable, "-m", "tops_bench", "figures", "--json", *names, env=_CPU)
    if done.returncode not in (0, 1):
        raise ToolError(f"tops-bench figures: status {done.returncode}\n{done.stderr}")
    return [
        Line(
            one["name"],
            f"{one['ratio']:.3f} [{one['low']:.3f}, {one['high']:.3f}]",
            f"at most {one['bound']:g}",
            one["met"],
        )
        for one in json.loads(done.stdout)["figures"]
    ]


_CPU = {"JAX_PLATFORMS": "cpu", "TOPS_LOG": "", "TOPS_TRACE": ""}
_OWN: dict[str, Callable[[], list[Line]]] = {
    "import": importing,
    "off": off,
    "program": program,
    "gla": gating,
    "gla_step": stepping,
}


def _python(text: str, *arguments: str) -> str:
    done = run(sys.executable, "-c", text, *arguments, env=_CPU)
    if done.returncode:
        raise ToolError(f"a probe failed: {done.stderr.strip()[-800:]}")
    return done.stdout


def measure(names: Sequence[str]) -> list[Line]:
    """Those named, in the order of the docstring; all of them without a name."""
    wanted = list(names) or [*_OWN, *_TIMED]
    lines = [line for name in _OWN if name in wanted for line in _OWN[name]()]
    rest = [name for name in _TIMED if any(name == one or name.startswith(f"{one}-") for one in wanted)]
    return lines + (timed(rest) if rest else [])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.figures", description="The figures the project promises on a CPU, measured here."
    )
    known = [*_OWN, *_TIMED, "rms_norm"]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)} (default: all)")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"NAME: got {unknown[0]!r}; expected one of {', '.join(known)}")
    try:
        lines = measure(args.names)
    except ToolError as error:
        print(f"figures: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([dataclasses.asdict(line) for line in lines], indent=1))
    else:
        for line in lines:
            print(f"{line.name:48}{line.found:40}{line.promised:18}{'met' if line.met else 'MISSED'}")
        print(f"on {os.cpu_count()} cores; ratios are time over time with 95 % intervals")
    return 0 if all(line.met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
