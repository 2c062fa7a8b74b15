"""The generic suite under pytest: a test a check, op and implementation, from the manifest, with no list to keep."""

import datetime
from collections.abc import Iterator

import pytest

import tops_manifest
from tops_tests import waivers
from tops_tests.conformance import CHECKS, Check, NotApplicable
from tops_tests.subject import Subject, dispatched, implementations

WAIVERS, FORM_FAULTS = waivers.read()
_ABSTRACT = ("every_row_gives_the_declared_outputs", "every_form_gives_the_declared_outputs")  # nothing is compiled


def _runs() -> Iterator[object]:
    for op in tops_manifest.ops():
        if op.status != "implemented":
            continue
        subjects = [("", dispatched(op), "")]
        kernels = list(implementations(op))
        for check in CHECKS:
            for name, subject, why_not in subjects if check.scope == "op" else kernels:
                long = subject is not None and subject.is_long and check.name not in _ABSTRACT
                marks = [pytest.mark.slow] if check.slow or long else []
                label = "-".join(part for part in (op.name, name, check.name) if part)
                yield pytest.param(check, subject, why_not, name or None, id=label, marks=marks)


@pytest.mark.parametrize(("check", "subject", "why_not", "implementation"), list(_runs()))
def test_holds(check: Check, subject: Subject | None, why_not: str, implementation: str | None) -> None:
    if subject is None:
        pytest.skip(why_not)
    waiver = waivers.find(WAIVERS, subject.op.name, check.name, implementation)
    if waiver is not None and waiver.kind == "skip":
        pytest.skip(str(waiver))
    try:
        check(subject)
    except NotApplicable as error:
        pytest.skip(f"not-applicable: {error}")
    except Exception:
        if waiver is None:
            raise
        pytest.xfail(str(waiver))
    assert waiver is None, f"{waiver}: holds again; take the waiver out of waivers.toml"


def test_waivers_are_of_good_form_and_not_expired() -> None:
    kernel_maps = {op.name: op.kernel_map for op in tops_manifest.ops()}
    found = waivers.faults(WAIVERS, kernel_maps, [check.name for check in CHECKS], datetime.date.today())
    assert [*FORM_FAULTS, *found] == []


def test_every_op_that_is_implemented_is_tested() -> None:
    tested = {run.values[1].op.name for run in _runs() if run.values[1] is not None}  # type: ignore[attr-defined]  # ParameterSet is not public
    assert tested == {op.name for op in tops_manifest.ops() if op.status == "implemented"}
    assert len(CHECKS) == len({check.name for check in CHECKS}) >= 20
