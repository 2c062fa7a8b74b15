"""The value checks over the manifest's workload rows, and the certificates that follow from them."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax

import tops_manifest
from tops_manifest import ContractTypeError, ContractValueError, Op
from tops_manifest.model import Pass
from tops_manifest.workloads import Case
from tops_tests import baselines, certificates
from tops_tests.compare import ConformanceError
from tops_tests.optest import Measured
from tops_tests.oracles import OracleError
from tops_tests.subject import Subject, implementations, measure
from tops_tests.tolerances import ToleranceError
from tops_workloads import cpu_room, rows

# Seeds of the draws each key is checked with: a certificate needs all of them.
_SEEDS, _QUICK_SEEDS = (0, 1), (0,)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One key: certified, at fault, or not run, and why."""

    op: str
    implementation: str
    which: Pass
    label: str
    interpreted: bool = False
    errors: dict[str, Measured] = dataclasses.field(default_factory=dict)
    fault: str = ""
    skipped: str = ""  # reason from waivers.REASONS, with what it is about

    @property
    def status(self) -> str:
        return "FAULT" if self.fault else "skipped" if self.skipped else "certified"


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    op: Op
    implementation: str
    subject: Subject | None
    why_not: str
    which: Pass
    case: Case


def jobs(ops: Sequence[Op], *, quick: bool = False) -> list[_Job]:
    """Every implementation, baseline, row, dtype and pass, in the manifest's order; `quick`: of each op's first rows."""
    result = []
    for op in ops:
        subjects = [*implementations(op), *((str(found.implementation), found, "") for found in baselines.of(op))]
        result += [
            _Job(op, name, subject, why_not, which, case)
            for case in rows(op.name, quick=quick)
            for which in case.passes
            for name, subject, why_not in subjects
            if not op.lacks(name) & set(case.present)
        ]
    return result


def run(ops: Sequence[Op], *, quick: bool, started: Callable[[str], None] = lambda _: None) -> Iterator[Outcome]:
    """Checks and certifies; `started` hears of each key before it runs. Certificates of keys at fault are removed."""
    certificates.write_stage({op.name: op for op in tops_manifest.ops() if op.status == "implemented"})
    for job in jobs(ops, quick=quick):
        started(f"{job.op.name} {job.which} {job.case.label} {job.implementation}")
        yield _run(job, quick=quick)
    jax.clear_caches()  # type: ignore[no-untyped-call]  # jax has no types for it


def _run(job: _Job, *, quick: bool) -> Outcome:
    subject, case = job.subject, job.case
    about = Outcome(job.op.name, job.implementation, job.which, case.label)
    if subject is None:
        return dataclasses.replace(about, skipped=job.why_not)
    if quick and subject.is_long:
        return dataclasses.replace(about, interpreted=True, skipped="not-quick: minutes to compile for the interpreter")
    interpreted = subject.interpret is not False
    about = dataclasses.replace(about, interpreted=interpreted)
    key = certificates.Key(job.op, job.implementation, job.which, case.row, case.dtypes, interpreted)
    errors: dict[str, Measured] = {}
    try:
        # The benchmark keeps to the same room: what is timed is what was checked.
        fitted = cpu_room(quick=quick, interpreted=interpreted).fit(case, job.which)
        about = dataclasses.replace(about, label=fitted.label)
        for seed in _QUICK_SEEDS if quick else _SEEDS:
            for name, error in measure(subject, fitted, job.which, seed).items():
                errors[name] = max(errors.get(name, error), error, key=lambda one: one.measured)
    except (ConformanceError, OracleError, ToleranceError) as error:
        return _at_fault(about, key, str(error))
    except (ContractValueError, ContractTypeError) as error:
        return _at_fault(about, key, f"refuses a row of the manifest: {error}")
    except Exception as error:  # whatever a kernel raises is that kernel's fault, and the others are still to be judged
        return _at_fault(about, key, f"raised {type(error).__name__}: {str(error)[:400]}")
    certificates.issue(key, fitted, errors)
    return dataclasses.replace(about, errors=errors)


def _at_fault(about: Outcome, key: certificates.Key, fault: str) -> Outcome:
    gone = "; its certificate is withdrawn" if certificates.revoke(key) else ""
    return dataclasses.replace(about, fault=fault + gone)
