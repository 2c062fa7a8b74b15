"""The 95 % rule: a row of HEAD slower than 95 % of its BASE's speed, beyond the noise, is a regression."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from tops_bench import stats
from tops_bench.records import Record, Row

Verdict = Literal["ok", "slower", "within noise", "gone", "failed", "new"]
FAULTS: tuple[Verdict, ...] = ("slower", "gone", "failed")


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """One row of both. `speed`: head's over base's, with its interval; None where there is nothing to divide."""

    op: str
    which: str
    label: str
    contender: str
    verdict: Verdict
    base_seconds: float | None = None
    head_seconds: float | None = None
    speed: stats.Interval | None = None
    how: str = ""

    @property
    def is_fault(self) -> bool:
        return self.verdict in FAULTS


class NotComparableError(ValueError):
    """Two records that say nothing about each other."""


def compare_records(base: Record, head: Record) -> tuple[Compared, ...]:
    """Row by row. Raises NotComparableError where they are of different machines or efforts."""
    if base.machine_key != head.machine_key:
        raise NotComparableError(
            f"records of different machines: BASE {dict(base.machine)}, HEAD {dict(head.machine)}; "
            "expected two runs on one machine with the same jaxlib and XLA_FLAGS"
        )
    if base.quick != head.quick:
        raise NotComparableError(f"BASE has quick {base.quick}, HEAD has quick {head.quick}; expected two like runs")
    before, after = _kernels(base), _kernels(head)
    result = [_compare(row, after.get(key), base, head) for key, row in before.items()]
    new = [row for key, row in after.items() if key not in before]
    added = (Compared(*_names(row), "new", head_seconds=row.median) for row in new if row.status == "measured")
    return (*result, *added)


def _kernels(record: Record) -> dict[tuple[str, ...], Row]:
    """What the rule is about: implementations that were timed, or failed to be."""
    return {row.key: row for row in record.rows if row.status != "skipped" and not row.is_baseline}


def _names(row: Row) -> tuple[str, str, str, str]:
    return row.op, row.which, row.label, row.contender


def _compare(base: Row, head: Row | None, base_record: Record, head_record: Record) -> Compared:
    names = _names(base)
    if head is None:
        # A row cannot get fast by going away.
        return Compared(*names, "gone", base_seconds=base.median, how="HEAD has no such row")
    if head.status == "failed":
        was = " (as in BASE)" if base.status == "failed" else ""
        return Compared(*names, "failed", base_seconds=base.median, how=head.reason + was)
    if base.status == "failed":
        return Compared(*names, "new", head_seconds=head.median, how="failed in BASE")
    if base.method != head.method:
        raise NotComparableError(
            f"{' '.join(names)}: BASE by {base.method}, HEAD by {head.method}; expected one method"
        )
    control = _control(base, base_record, head_record)
    if control is None:
        speed, how = stats.unpaired_speed(base.samples, head.samples), "two runs, no common baseline"
    else:
        one, other, name = control
        speed = stats.unpaired_speed(_relative(base, one), _relative(head, other))
        how = f"two runs, each against {name} in turns"
    return Compared(*names, stats.judge(speed), base.median, head.median, speed, how)


def _control(row: Row, base: Record, head: Record) -> tuple[Row, Row, str] | None:
    """A baseline whose source is the same in both records and that took turns with the row: by it, what changed on the
    machine between the two runs drops out."""
    others = {one.key: one for one in head.rows}
    for one in base.rows:
        other = others.get(one.key)
        same = (one.op, one.which, one.label) == (row.op, row.which, row.label) and one.is_baseline
        if same and other is not None and one.samples and other.samples and one.source == other.source:
            return one, other, one.contender
    return None


def _relative(row: Row, control: Row) -> Sequence[float]:
    """Times in units of the control's, round by round."""
    if len(row.samples) != len(control.samples):
        raise NotComparableError(f"{' '.join(row.key)}: {len(row.samples)} rounds, its baseline {len(control.samples)}")
    return [mine / theirs for mine, theirs in zip(row.samples, control.samples, strict=True)]


def as_data(rows: Sequence[Compared]) -> Mapping[str, object]:
    return {
        "threshold": stats.THRESHOLD,
        "faults": sum(row.is_fault for row in rows),
        "rows": [dataclasses.asdict(row) for row in rows],
    }
