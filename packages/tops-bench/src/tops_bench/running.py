"""A run: every op, row, dtype and pass against its baselines, as rows of a record."""

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence

from tops_bench import certificates, machine, roofline, rows, stats
from tops_bench.benchmark import Contender, OpBenchmark, supported
from tops_bench.certificates import Certificate, Claim
from tops_bench.records import Record, Row, Speedup
from tops_bench.roofline import Ceilings
from tops_bench.timing import ContenderError, Effort, Method, Timing, forget_compiled, race
from tops_manifest import Op
from tops_manifest.digest import contract_digest
from tops_manifest.model import Pass
from tops_manifest.workloads import Case
from tops_workloads import Room, Workload
from tops_workloads import rows as manifest_rows

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One row at one choice of dtypes under one pass."""

    case: Case
    which: Pass

    def __str__(self) -> str:
        return f"{self.case.op.name} {self.which} {self.case.label}"


def jobs(ops: Sequence[Op], passes: Sequence[Pass], workload: str | None = None, *, quick: bool = False) -> list[Job]:
    """In the manifest's order. `workload`: a row's name, or a label with its dtypes; without one, `quick` takes each op's first rows."""
    return [
        Job(case, which)
        for op in ops
        for case in manifest_rows(op.name, quick=quick and workload is None)
        for which in case.passes
        if which in passes and workload in (None, case.row, case.label)
    ]


def run(
    wanted: Sequence[Job],
    ceilings: Ceilings,
    *,
    effort: Effort,
    quick: bool,
    method: Method | None = None,
    started: Progress = lambda _: None,
    finished: Callable[[], None] = lambda: None,
) -> Record:
    """Runs the jobs one after the other. What an implementation raises becomes a failed row; the others go on."""
    begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    within = rows.room(quick=quick)
    done: list[Row] = []
    for index, job in enumerate(wanted):
        started(str(job))
        if index and job.case.op != wanted[index - 1].case.op:
            forget_compiled()  # the loops of an op are not needed again

        def progress(what: str, about: str = str(job)) -> None:
            started(f"{about}: {what}")

        done += _run(job, within, ceilings, effort, method, progress)
        finished()
    here = machine.machine()
    return Record(
        machine=dataclasses.asdict(here),
        machine_key=here.key,
        versions=machine.versions(),
        started=begun,
        quick=quick,
        ceilings=ceilings.as_data(),
        rows=tuple(done),
    )


def _run(
    job: Job, within: Room, ceilings: Ceilings, effort: Effort, method: Method | None, progress: Progress
) -> Iterator[Row]:
    fitted = rows.fit(job.case, job.which, within)
    blank = _blank(job.case, job.which)
    if fitted.case is None or fitted.case is not job.case:
        yield dataclasses.replace(blank, status="skipped", reason=f"too large: {fitted.reason}")
    if fitted.case is None:
        return
    for key, why_not in supported(job.case.op).items():
        if why_not:
            yield dataclasses.replace(
                _blank(fitted.case, job.which), contender=key, status="skipped", reason=f"not supported: {why_not}"
            )
    benchmark = OpBenchmark(Workload(fitted.case), job.which)
    blank = _blank(fitted.case, job.which, fitted.reason)
    timings, failures = _time(benchmark, effort, method, progress)
    vouched = {one.name: certificates.certificate(Claim(job.case, job.which, one.subject)) for one in timings}
    for one, why_failed in failures.items():
        yield dataclasses.replace(blank, contender=one.name, status="failed", reason=why_failed)
    for one, timing in timings.items():
        row = _measured(blank, fitted.case, job.which, timing, ceilings)
        yield verified(row, job, one, timings, vouched)


def _time(
    benchmark: OpBenchmark, effort: Effort, method: Method | None, progress: Progress
) -> tuple[dict[Contender, Timing], dict[Contender, str]]:
    """One that cannot be compiled or run leaves the race; the others are timed all the same."""
    racing, failures = {one.name: one for one in benchmark.contenders()}, {}
    arrays, programs = benchmark.arrays(), benchmark.programs()
    while racing:
        try:
            timings = race({name: programs[name] for name in racing}, arrays, effort, method, progress)
        except ContenderError as error:
            failures[racing.pop(error.name)] = str(error)
        else:
            return {one: timings[name] for name, one in racing.items()}, failures
    return {}, failures


def _blank(case: Case, which: Pass, reason: str = "") -> Row:
    """What is known of a row before anybody runs it."""
    return Row(
        op=case.op.name,
        which=which,
        row=case.row,
        label=case.label,
        scale=case.scale,
        dtypes=dict(case.dtypes),
        params=dict(case.params),
        inputs={name: str(spec) for name, spec in case.inputs().items()},
        contender="",
        status="skipped",
        reason=reason,
        contract=contract_digest(case.op.name),
        flops=case.flops(which),
        nbytes=case.bytes(which),
    )


def _measured(blank: Row, case: Case, which: Pass, timing: Timing, ceilings: Ceilings) -> Row:
    times = stats.summary(timing.samples)
    line = roofline.roofline(ceilings, case, which, times.median)
    return dataclasses.replace(
        blank,
        status="measured",
        method=timing.method,
        note=timing.note,
        median=times.median,
        low=times.low,
        high=times.high,
        confidence=times.confidence,
        iqr=times.iqr,
        samples=timing.samples,
        iterations=timing.iterations,
        compile_seconds=timing.compile_seconds,
        flops_rate=sum(blank.flops.values()) / times.median,
        bytes_rate=blank.nbytes / times.median,
        bound=line.bound if line else "",
        efficiency=line.fraction if line else None,
    )


def verified(
    row: Row, job: Job, one: Contender, timings: Mapping[Contender, Timing], vouched: Mapping[str, Certificate]
) -> Row:
    """Adds the certificate, and the ratios it allows: both sides certified, or none."""
    mine = vouched[one.name]
    speedups = {}
    if mine.valid and not one.is_baseline:
        for other, timing in timings.items():
            if other.is_baseline and vouched[other.name].valid:
                speed = stats.paired_speed(timing.samples, timings[one].samples)
                speedups[other.name.removeprefix("baseline:")] = Speedup(speed.median, speed.low, speed.high)
    return dataclasses.replace(
        row,
        contender=one.name,
        source=Claim(job.case, job.which, one.subject).digest(),
        certificate=mine.content,
        certified_scale=mine.scale,
        unverified=mine.why_not,
        speedups=speedups,
    )
