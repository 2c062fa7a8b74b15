"""The figures the project promises on a CPU, measured here: `uv run python -m tools.figures [NAME ...] [--json]`.

import     what `import tops_kernels` adds to `import jax`: median of 10 pairs of processes, by turns; under 100 ms, no backend initialised
program    instructions that rms_norm and matmul add to a compiled CPU program, over plain jnp: at most 2 either way
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
_TIMED = ("matmul", "rms_norm-fwd", "rms_norm-vjp", "eager")

_IMPORT = """
import json, sys, time
start = time.perf_counter()
import jax
middle = time.perf_counter()
if sys.argv[1] == "both":
    import tops_kernels
end = time.perf_counter()
from jax._src import xla_bridge
print(json.dumps([middle - start, end - middle, xla_bridge.backends_are_initialized()]))
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
        found.append((both[1] - alone[1], alone[0], both[0]))
        initialised |= both[2]
    added = statistics.median(one[0] for one in found[1:])
    shown = f"{added * 1e3:.1f} ms (import jax: {statistics.median(one[1] for one in found[1:]) * 1e3:.0f} ms)"
    return [
        Line("import", shown, f"under {_IMPORT_BOUND * 1e3:.0f} ms", added < _IMPORT_BOUND),
        Line(
            "import: backend", "initialised" if initialised else "not initialised", "not initialised", not initialised
        ),
    ]


def program() -> list[Line]:
    more = json.loads(_python(_PROGRAM))
    return [
        Line(f"program: {op}", f"{by:+d} instructions", f"within {_PROGRAM_BOUND}", abs(by) <= _PROGRAM_BOUND)
        for op, by in more.items()
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


_CPU = {"JAX_PLATFORMS": "cpu"}
_OWN: dict[str, Callable[[], list[Line]]] = {"import": importing, "program": program}


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
