"""Two environments in one run: workers take turns on every row, so what slows the machine down slows both."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tops_bench import rows, stats
from tops_bench.compare import Compared
from tops_bench.running import Job
from tops_bench.timing import Effort, rotation
from tops_bench.worker import case_data

_COMPILERS = ("jax", "jaxlib", "numpy", "python")


class Side(Protocol):
    """A worker, wherever it runs."""

    def hello(self) -> dict[str, Any]: ...

    def ask(self, request: Mapping[str, Any], /) -> dict[str, Any]: ...


class RowError(RuntimeError):
    """A side could not do a row; `side` says which: base or head."""

    def __init__(self, side: str, message: str) -> None:
        super().__init__(message)
        self.side = side


def duel(
    start: Callable[[str], Side],
    jobs: Sequence[Job],
    effort: Effort,
    *,
    quick: bool,
    even_same: bool = False,
    started: Callable[[str], None] = lambda _: None,
    finished: Callable[[], None] = lambda: None,
) -> tuple[Compared, ...]:
    """Compares every implementation that both can run.

    Args:
      start: gives a fresh worker of the side "base" or "head"; called again to confirm a regression, as two processes
        of one program may differ in speed for as long as they live (where their memory lies).
      even_same: time what has the same sources and the same jax on both sides too; left out, it is ok untimed.
    """
    sides = {name: start(name) for name in ("base", "head")}
    hello = {name: side.hello() for name, side in sides.items()}
    result: list[Compared] = []
    for job in jobs:
        started(str(job))
        fitted = rows.fit(job.case, job.which, rows.room(quick=quick)).case
        before, after = (hello[name]["implementations"].get(job.case.op.name, []) for name in ("base", "head"))
        if fitted is None:
            finished()
            continue
        small = Job(fitted, job.which)
        for implementation in before:
            names = (job.case.op.name, job.which, fitted.label, implementation)
            if implementation not in after:
                result.append(Compared(*names, "gone", how="HEAD does not run it here"))
                continue
            if not even_same and _is_same(hello["base"], hello["head"], job.case.op.name, implementation):
                result.append(Compared(*names, "ok", how="same sources, same jax: not timed"))
                continue
            found = _compare(sides, small, implementation, effort)
            if found.verdict == "slower":
                started(f"{job}: slower; once more, with fresh processes")
                sides = {name: start(name) for name in ("base", "head")}
                again = _compare(sides, small, implementation, effort)
                found = again if again.verdict != "slower" else found
            result.append(found)
        finished()
    return tuple(result)


def _is_same(base: Mapping[str, Any], head: Mapping[str, Any], op: str, implementation: str) -> bool:
    """Whether both sides compile the same program: the digest of the implementation's sources, and who compiles them."""
    digests = [side["sources"][op].get(implementation) for side in (base, head)]
    compilers = [{name: side["versions"].get(name) for name in _COMPILERS} for side in (base, head)]
    return digests[0] is not None and digests[0] == digests[1] and compilers[0] == compilers[1]


def _compare(sides: Mapping[str, Side], job: Job, implementation: str, effort: Effort) -> Compared:
    names = (job.case.op.name, job.which, job.case.label, implementation)
    try:
        samples = _samples(sides, job, implementation, effort)
    except RowError as error:
        if error.side == "base":
            return Compared(*names, "new", how=f"failed in BASE: {error}")
        return Compared(*names, "failed", how=str(error))
    speed = stats.paired_speed(samples["base"], samples["head"])
    medians = [stats.interval(samples[name]).median for name in ("base", "head")]
    return Compared(*names, stats.judge(speed), medians[0], medians[1], speed, "one run, in turns")


def _samples(sides: Mapping[str, Side], job: Job, implementation: str, effort: Effort) -> dict[str, list[float]]:
    """Both sides by one method and with as many iterations: the chained loop if it holds for both."""
    request: dict[str, Any] = {
        "do": "prepare",
        "case": case_data(job.case),
        "pass": job.which,
        "implementation": implementation,
        "sample_seconds": effort.sample_seconds,
        "method": None,
        "iterations": None,
    }
    for method in ("chained loop", "wall clock"):
        iterations = None
        for name, side in sides.items():
            answer = side.ask({**request, "method": method, "iterations": iterations})
            if answer.get("hoisted"):
                break
            _raise(name, answer)
            iterations = answer["iterations"]
        else:
            break
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for name in rotation(list(sides), effort.rounds):
        answer = sides[name].ask({"do": "sample", "iterations": iterations})
        _raise(name, answer)
        samples[name].append(float(answer["seconds"]))
    return samples


def _raise(side: str, answer: Mapping[str, Any]) -> None:
    if "error" in answer:
        raise RowError(side, str(answer["error"]))
