"""What a second process saves: `uv run python -m tools.cache_figures [--rounds N] [--json]`. Minutes long; on a quiet machine.

bench        programs that a second `tops-bench run --quick --cache` compiles, of those of the first: none
units        first result of an op by a loaded unit, second process over first: under 0.3
compile_cache  the same by the op itself within tops_kernels.compile_cache(): what tracing costs stays, so under 1

Each process starts from an empty or a filled workspace of its own; jax is imported before the clock starts. Times are of the processor, so what
else runs on the machine hardly counts. Exit status 1 where one is missed.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence

from tools.figures import Line
from tools.project import ToolError, run

_BOUND = 0.3

_BENCH = """
import collections, json, sys
import jax
events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: events.update([event]))
from tops_bench.cli import main
status = main(["run", "--quick", "--cache", "--rounds", "1", "--json", *sys.argv[1:]])
asked, hits = (events[f"/jax/{name}"] for name in ("core/compile/backend_compile_duration", "compilation_cache/cache_hits"))
print(json.dumps([status, asked, asked - hits]))
"""

_FIRST = """
import json, sys, time
import jax, numpy as np
import tops_kernels
from tops_kernels.runtime.spec import spec
from tops_kernels.runtime.units import load
jax.block_until_ready(jax.device_put(np.ones(3)))  # the backend is up
draw = np.random.default_rng(0)
def normal(*shape): return draw.standard_normal(shape).astype(np.float32)
q = normal(1, 256, 2, 32)
calls = {
    "rms_norm": {"x": normal(64, 512), "scale": normal(512)},
    "matmul": {"a": normal(64, 512), "b": normal(512, 64)},
    "gla": {"q": q, "k": q, "v": q, "g": -np.abs(q)},
}
how, op = sys.argv[1:]
start = time.process_time()
if how == "units":
    result = load(spec(op, calls[op], target=jax.default_backend()))(*calls[op].values())
else:
    with tops_kernels.compile_cache():
        result = {"rms_norm": tops_kernels.rms_norm, "matmul": tops_kernels.matmul, "gla": tops_kernels.gla}[op](**calls[op])
jax.block_until_ready(result)
print(json.dumps(time.process_time() - start))
"""


def bench() -> Line:
    """The quick set twice, in one workspace."""
    with tempfile.TemporaryDirectory() as place:
        first, second = (json.loads(_python(place, _BENCH, f"{place}/{turn}.json")) for turn in ("first", "second"))
    if first[0] or second[0]:
        raise ToolError("tops-bench run failed; run it by hand")
    found = f"{second[2]} of {second[1]} (first: {first[2]} of {first[1]})"
    return Line("bench: programs compiled by the second process", found, "0", second[2] == 0 and first[2] > 0)


def first_op(how: str, op: str, rounds: int) -> Line:
    """Pairs of processes, the second in the first's workspace: the median of the ratios."""
    cold, warm = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as place:
            cold.append(json.loads(_python(place, _FIRST, how, op)))
            warm.append(json.loads(_python(place, _FIRST, how, op)))
    ratio = statistics.median(one / other for one, other in zip(warm, cold, strict=True))
    found = f"{ratio:.2f} ({statistics.median(warm) * 1e3:.0f} ms over {statistics.median(cold) * 1e3:.0f} ms)"
    bound = _BOUND if how == "units" else 1.0
    return Line(f"{how}: first {op}, warm over cold", found, f"under {bound:g}", ratio < bound)


def _python(workspace: str, text: str, *arguments: str) -> str:
    done = run(
        sys.executable, "-c", text, *arguments, env={"JAX_PLATFORMS": "cpu", "TOPS_WORKSPACE": f"{workspace}/tops"}
    )
    if done.returncode:
        raise ToolError(f"a probe failed: {done.stderr.strip()[-800:]}")
    return done.stdout.strip().splitlines()[-1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.cache_figures", description="What a second process saves.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of bench, units, compile_cache (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of processes (default: 5)")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in ("bench", "units", "compile_cache")]
    if unknown or args.rounds < 1:
        parser.error(
            f"got {unknown[0] if unknown else args.rounds}; expected bench, units or compile_cache, and a round or more"
        )
    names = args.names or ["units", "compile_cache", "bench"]
    try:
        lines = [
            first_op(how, op, args.rounds) for how in names if how != "bench" for op in ("rms_norm", "matmul", "gla")
        ]
        lines += [bench()] if "bench" in names else []
    except ToolError as error:
        print(f"cache_figures: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([dataclasses.asdict(line) for line in lines], indent=1))
    else:
        for line in lines:
            print(f"{line.name:52}{line.found:40}{line.promised:12}{'met' if line.met else 'MISSED'}")
    return 0 if all(line.met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
