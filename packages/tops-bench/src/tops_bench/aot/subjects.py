"""What a job names, as a function and the shapes it takes. Runs in the child, where jax is."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tops_kernels
from tops_bench import baselines, passes
from tops_bench.aot import fusions, pallas
from tops_bench.aot.avals import aval
from tops_bench.benchmark import public
from tops_bench.worker import case_from
from tops_manifest.model import Op, Pass
from tops_manifest.workloads import Case
from tops_workloads import Workload


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    function: Callable[..., Any]
    avals: tuple[Any, ...]
    known: Mapping[int, Any] = dataclasses.field(
        default_factory=dict
    )  # values that control flow hangs on, by flat input
    donated: tuple[int, ...] = ()  # positions of arrays that the program may overwrite
    configure: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext  # to trace within


def subject(job: Mapping[str, Any]) -> Subject:
    """`job`: see matrix.Job. Raises LookupError where there is no such contender."""
    if job["kind"] == "reference":
        return Subject(*pallas.REFERENCES[job["contender"]](**job["options"]))
    if job["kind"] == "fusion":
        return Subject(*fusions.FUSIONS[job["contender"]])
    if job["kind"] == "peer":
        from tops_bench.aot import peer

        function, avals, known = peer.program(job["kernel"], job["call"], job["config"])
        return Subject(function, avals, known=known)
    case = case_from(job["case"])
    which: Pass = job["pass"]
    function, options = contender(case, job["contender"])
    program = passes.program(case, which, function, options)
    if job.get("config") is None:
        alone = job.get("heuristic", False)
        configure = _heuristics_alone if alone else contextlib.nullcontext
        return Subject(program, shapes(case, which), donated=updated(case, which), configure=configure)
    index = int(job["config"])
    config = configurations(case, which, job["contender"], job["target"])[index]
    return Subject(
        program,
        shapes(case, which),
        donated=updated(case, which),
        configure=lambda: _configured(case.op.name, which, config),
    )


def updated(case: Case, which: Pass) -> tuple[int, ...]:
    """Where a forward call has a `state` that it gives back as `new_state`: users give it away, so that it is updated in place."""
    if which != "fwd":
        return ()
    outputs = case.outputs()
    return tuple(
        at
        for at, (name, spec) in enumerate(case.inputs().items())
        if name == "state" and outputs.get("new_state") == spec
    )


def contender(case: Case, name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """An implementation of the op, a baseline, or a kernel of jax's own; and what to call it with besides the case."""
    op: Op = case.op
    if name in op.kernel_map:
        return public(op), {"backend": name}
    for baseline in baselines.of(op):
        if baseline.name == name:
            return baseline.function, {}
    kernel, _, config = name.removeprefix("pallas.ops ").partition(" ")
    if name.startswith("pallas.ops ") and (op.name, kernel) in pallas.CONTENDERS:
        return pallas.CONTENDERS[op.name, kernel](config), {}
    raise LookupError(f"{op.name}: no contender {name!r}")


def shapes(case: Case, which: Pass) -> tuple[Any, ...]:
    """Shapes and dtypes that the program takes, cotangents first for a vjp."""
    specs = Workload(case).avals()
    inputs = tuple(specs[name] for name in case.inputs())
    if which == "fwd":
        return inputs
    given = tuple(aval(spec.shape, spec.dtype) for spec in case.outputs().values())
    return (given[0] if len(given) == 1 else given, *inputs)


def configurations(case: Case, which: Pass, implementation: str, target: str) -> tuple[Any, ...]:
    """The op's search space for this case, the heuristic's choice first."""
    return tuple(
        tops_kernels.configurations(case.op.name, implementation, which, case.inputs(), dict(case.params), target)
    )


@contextlib.contextmanager
def _configured(op: str, which: Pass, config: Any) -> Iterator[None]:
    with tops_kernels.use_config(op, which, config):
        yield


@contextlib.contextmanager
def _heuristics_alone() -> Iterator[None]:
    with tops_kernels.tuned(None):
        yield
