"""The 95 % rule over records: what is slower beyond the noise, failed or gone is a fault; nothing else is."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from tops_bench import compare
from tops_bench.compare import NotComparableError
from tops_bench.records import Record, Row

Make = Callable[..., Any]


def _samples(seconds: float, noise: float = 0.01, seed: int = 0) -> tuple[float, ...]:
    draw = random.Random(seed)
    return tuple(seconds * (1 + draw.uniform(-noise, noise)) for _ in range(15))


def _verdicts(base: Record, head: Record) -> dict[str, str]:
    return {row.contender: row.verdict for row in compare.compare_records(base, head)}


@pytest.mark.parametrize(
    ("head_seconds", "noise", "verdict"),
    [
        (1.00, 0.01, "ok"),
        (0.50, 0.01, "ok"),
        (1.04, 0.005, "ok"),
        (1.20, 0.01, "slower"),
        (1.08, 0.005, "slower"),
        (1.20, 0.60, "within noise"),
    ],
)
def test_a_row_is_slower_where_it_is_so_beyond_the_noise(
    make_record: Make, make_row: Make, head_seconds: float, noise: float, verdict: str
) -> None:
    base = make_record(make_row(samples=_samples(1.0, noise)))
    head = make_record(make_row(samples=_samples(head_seconds, noise, seed=1)))
    assert _verdicts(base, head) == {"xla": verdict}


def _with_control(make_row: Make, seconds: float, machine: float, source: str = "s") -> list[Row]:
    """A kernel and its baseline on a machine that is so many times slower than at its best."""
    return [
        make_row(samples=_samples(seconds * machine)),
        make_row(contender="baseline:jnp", source=source, samples=_samples(2.0 * machine)),
    ]


def test_a_machine_that_got_slower_is_not_the_kernels_fault(make_record: Make, make_row: Make) -> None:
    base, head = _with_control(make_row, 1.0, 1.0), _with_control(make_row, 1.0, 1.5)
    assert _verdicts(make_record(*base), make_record(*head)) == {"xla": "ok"}
    assert _verdicts(make_record(base[0]), make_record(head[0])) == {"xla": "slower"}  # nothing to tell by


def test_a_machine_that_got_faster_does_not_hide_a_slower_kernel(make_record: Make, make_row: Make) -> None:
    base, head = _with_control(make_row, 1.0, 1.0), _with_control(make_row, 1.2, 0.8)
    assert _verdicts(make_record(*base), make_record(*head)) == {"xla": "slower"}


def test_a_baseline_that_changed_is_no_control(make_record: Make, make_row: Make) -> None:
    base, head = _with_control(make_row, 1.0, 1.0, "old"), _with_control(make_row, 1.0, 1.2, "new")
    assert _verdicts(make_record(*base), make_record(*head)) == {"xla": "slower"}


def test_a_row_that_is_gone_or_fails_is_a_fault_and_a_new_one_is_not(make_record: Make, make_row: Make) -> None:
    gone, failed, new = (make_row(contender=name) for name in ("gone", "failed", "new"))
    broken = make_row(contender="failed", status="failed", reason="out of memory", samples=(), median=None)
    found = compare.compare_records(make_record(gone, failed), make_record(broken, new))
    assert {row.contender: (row.verdict, row.is_fault) for row in found} == {
        "gone": ("gone", True),
        "failed": ("failed", True),
        "new": ("new", False),
    }
    assert "out of memory" in next(row.how for row in found if row.contender == "failed")


def test_a_skipped_row_is_a_row_that_is_gone(make_record: Make, make_row: Make) -> None:
    skipped = make_row(status="skipped", reason="not supported", samples=(), median=None)
    assert _verdicts(make_record(make_row()), make_record(skipped)) == {"xla": "gone"}


def test_baselines_are_not_judged(make_record: Make, make_row: Make) -> None:
    one = make_row(contender="baseline:jnp", samples=_samples(1.0))
    other = make_row(contender="baseline:jnp", samples=_samples(9.0))
    assert _verdicts(make_record(one), make_record(other)) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [({"machine_key": "other"}, "different machines"), ({"quick": True}, "expected two like runs")],
)
def test_records_that_say_nothing_about_each_other_are_refused(
    make_record: Make, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(NotComparableError, match=message):
        compare.compare_records(make_record(), make_record(**change))


def test_two_methods_are_not_compared(make_record: Make, make_row: Make) -> None:
    with pytest.raises(NotComparableError, match="BASE by chained loop, HEAD by wall clock"):
        compare.compare_records(make_record(), make_record(make_row(method="wall clock")))
