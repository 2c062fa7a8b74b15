"""One side of a comparison of two environments: times what its parent asks for, with the kernels of its own environment.

    python -m tops_bench.worker

A JSON object a line comes in, one goes out: {"do": "hello" | "prepare" | "sample"}. It ends with its input.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import jax

import tops_kernels
import tops_manifest
from tops_bench import machine, passes
from tops_bench.benchmark import public, supported
from tops_bench.timing import CallSampler, LoopSampler, Sampler, calibrate, forget_compiled, runs_every_iteration, wait
from tops_manifest.workloads import Case
from tops_workloads import Workload

PROTOCOL = 1


class Worker:
    """Answers requests; holds the program prepared last."""

    def __init__(self) -> None:
        self._sampler: Sampler | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Never raises for what an implementation does: the answer then has "error"."""
        try:
            match request.get("do"):
                case "hello":
                    return self._hello()
                case "prepare":
                    return self._prepare(request)
                case "sample":
                    return self._sample(int(request["iterations"]))
        except Exception as error:  # whatever an implementation raises is the parent's to report
            return {"error": f"{type(error).__name__}: {str(error)[:400]}"}
        return {"error": f"unknown request {request.get('do')!r}"}

    def _hello(self) -> dict[str, Any]:
        ops = {op.name: op for op in tops_manifest.ops() if op.status == "implemented"}
        return {
            "protocol": PROTOCOL,
            "versions": machine.versions(),
            "machine": machine.machine().key,
            "platform": jax.default_backend(),
            "implementations": {
                name: [key for key, why_not in supported(op).items() if not why_not] for name, op in ops.items()
            },
            "sources": {
                name: {key: tops_kernels.source_digest(name, key) for key in op.kernel_map} for name, op in ops.items()
            },
        }

    def _prepare(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Compiles and warms up. `method` and `iterations` are None for the side that is asked first and chooses."""
        self._sampler = None
        forget_compiled()
        case = case_from(request["case"])
        which = request["pass"]
        program = passes.program(case, which, public(case.op), {"backend": request["implementation"]})
        inputs = Workload(case).gen_inputs(jax.random.key(0))
        arrays = wait(tuple(passes.arrays(case, which, inputs, 0)))
        kind: Callable[..., Sampler] = CallSampler if request["method"] == "wall clock" else LoopSampler
        sampler = kind(program, arrays)
        sampler.run(1)
        iterations = request["iterations"] or calibrate(sampler, float(request["sample_seconds"]))
        if sampler.method == "chained loop" and not runs_every_iteration(sampler, iterations):
            return {"error": "chained loop: n iterations do not take n times as long", "hoisted": True}
        self._sampler = sampler
        return {"iterations": iterations, "method": sampler.method}

    def _sample(self, iterations: int) -> dict[str, Any]:
        if self._sampler is None:
            return {"error": "nothing is prepared"}
        return {"seconds": self._sampler.run(iterations) / iterations}


def case_data(case: Case) -> dict[str, Any]:
    """A case as JSON; the op by name."""
    return {
        "op": case.op.name,
        "row": case.row,
        "dims": {name: list(size) if isinstance(size, tuple) else size for name, size in case.dims.items()},
        "dtypes": dict(case.dtypes),
        "params": dict(case.params),
        "present": list(case.present),
        "alternatives": dict(case.alternatives),
        "passes": list(case.passes),
        "scale": case.scale,
    }


def case_from(data: Mapping[str, Any]) -> Case:
    """The same case, with the op as this environment's manifest has it."""
    dims = {name: tuple(size) if isinstance(size, list) else size for name, size in data["dims"].items()}
    lists = {name: tuple(data[name]) for name in ("present", "passes")}
    return Case(**{**data, **lists, "op": tops_manifest.op(data["op"]), "dims": dims})


def serve(source: TextIO, sink: TextIO) -> None:
    worker = Worker()
    for line in source:
        sink.write(json.dumps(worker.answer(json.loads(line)), allow_nan=False) + "\n")
        sink.flush()


if __name__ == "__main__":
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # a stray print is no answer
        serve(sys.stdin, answers)
