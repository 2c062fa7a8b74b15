"""BenchmarkBase: contenders on one workload, timed against each other. Generic over what a workload can give."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import jax

import tops_kernels
from tops_bench import baselines, passes
from tops_bench.baselines import Baseline
from tops_bench.timing import FULL, Effort, Function, Method, Timing, race
from tops_manifest import Op
from tops_manifest.model import Pass
from tops_workloads import BenchmarkWorkload, ShapeDtypeWorkload

W = TypeVar("W", bound=ShapeDtypeWorkload)
W_run = TypeVar("W_run", bound=BenchmarkWorkload)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)  # by identity: it keys the tables of a race
class Contender:
    """One way to compute the op: a kernel_map key, or a baseline."""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]
    subject: str | Baseline  # what its certificate is about

    @property
    def is_baseline(self) -> bool:
        return isinstance(self.subject, Baseline)


class BenchmarkBase(Generic[W]):
    """A pass of one workload, and who competes on it.

    With a ShapeDtypeWorkload, which has metadata alone, programs can be traced, lowered and analysed (`avals`,
    `programs`); to be timed, a workload must also draw inputs: see `TimedBenchmark`.
    """

    def __init__(self, workload: W, which: Pass) -> None:
        self.workload, self.which = workload, which

    def contenders(self) -> Sequence[Contender]:
        """Who competes. Override."""
        raise NotImplementedError(f"{type(self).__name__} names no contenders")

    def programs(self) -> dict[str, Function]:
        """The pass of each contender, by name, as a function of `avals()`."""
        case = self.workload.case
        return {one.name: passes.program(case, self.which, one.function, one.options) for one in self.contenders()}

    def avals(self) -> tuple[Any, ...]:
        """Shapes and dtypes of what the programs take; no array is made."""
        case, specs = self.workload.case, self.workload.avals()
        inputs = tuple(specs[name] for name in case.inputs())
        if self.which == "fwd":
            return inputs
        return (passes.cotangent_avals(case), *inputs)


class TimedBenchmark(BenchmarkBase[W_run]):
    """One that can be run here: its workload draws inputs."""

    def arrays(self, seed: int = 0) -> Sequence[Any]:
        """What the programs take, on the device."""
        inputs = self.workload.gen_inputs(jax.random.key(seed))
        return passes.arrays(self.workload.case, self.which, inputs, seed)

    def run(
        self, effort: Effort = FULL, method: Method | None = None, progress: Callable[[str], None] = lambda _: None
    ) -> dict[str, Timing]:
        """Times all contenders in turns. Raises what `timing.race` raises."""
        return race(self.programs(), self.arrays(), effort, method, progress)


class OpBenchmark(TimedBenchmark[BenchmarkWorkload]):
    """The implementations of an op that run natively here, and its baselines."""

    def contenders(self) -> tuple[Contender, ...]:
        op = self.workload.case.op
        mine = tuple(
            Contender(key, public(op), {"backend": key}, key)
            for key, why_not in supported(op).items()
            if not why_not and not op.lacks(key) & set(self.workload.case.present)
        )
        others = tuple(Contender(one.implementation, one.function, {}, one) for one in baselines.of(op))
        return mine + others


def supported(op: Op) -> dict[str, str]:
    """kernel_map key -> why it cannot run here natively; "" where it can. An interpreted kernel is not timed."""
    platform = jax.default_backend()
    answers = {key: tops_kernels.support(op.name, key, platform) for key in op.kernel_map}
    return {key: "" if answer.ok else answer.reason for key, answer in answers.items()}


def public(op: Op) -> Callable[..., Any]:
    """The op's public function. Raises LookupError where tops_kernels has none."""
    function = getattr(tops_kernels, op.name, None)
    if not callable(function):
        raise LookupError(f"{op.name}: tops_kernels has no function of this name, and the manifest says implemented")
    return function  # type: ignore[no-any-return]  # callable, and more is not known before it is called
