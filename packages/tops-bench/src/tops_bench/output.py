"""How rows look on a screen: tables on stdout, progress on stderr, one writer for each."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tops_bench import files
from tops_bench.records import Record, Row

_CEILING_NOISE = 1.05  # a ceiling is a measurement too: this much above it is at it
_PIPE_WIDTH = 200  # a pipe has no width of its own: a row a line


def say(text: str) -> None:
    """A line of data."""
    sys.stdout.write(f"{text}\n")


def complain(text: str) -> None:
    """A line about the run."""
    sys.stderr.write(f"{text}\n")


def say_json(data: object) -> None:
    sys.stdout.write(files.dumps(data))


def say_table(headings: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """`right`: headings of columns of numbers."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        number = heading in right
        table.add_column(heading, overflow="fold", justify="right" if number else "left", no_wrap=number)
    for line in lines:
        table.add_row(*line)
    # No markup: a row's name may hold brackets.
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, markup=False, highlight=False).print(table)


@contextlib.contextmanager
def progress(title: str, total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """A bar on stderr: gives (say what is done now, one more is done)."""
    columns = (SpinnerColumn(), MofNCompleteColumn(), BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}"))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda what: bar.update(task, description=what), lambda: bar.advance(task)


def seconds(value: float | None) -> str:
    """Three digits and a unit."""
    if value is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 1000 * size else f"{value / size:.0f} {unit}"
    return f"{value / 1e-9:.3g} ns"


def rate(row: Row) -> str:
    """What the row is bound by: operations or bytes, a second."""
    if row.median is None:
        return "-"
    if row.bound == "compute" or (not row.bound and row.flops.get("mxu")):
        return f"{(row.flops_rate or 0.0) / 1e9:.3g} Gop/s"
    return f"{(row.bytes_rate or 0.0) / 1e9:.3g} GB/s"


def share(row: Row) -> str:
    """Of the roofline. A row well above it shows that the ceiling was measured too low, not a feat."""
    if row.efficiency is None:
        return "-"
    if _is_over(row):
        return f"over ceiling x{row.efficiency:.2f}"
    return f"{min(row.efficiency, 1.0):.0%} {row.bound}"


def _is_over(row: Row) -> bool:
    return (row.efficiency or 0.0) > _CEILING_NOISE


def spread(row: Row) -> str:
    return "-" if row.iqr is None or not row.median else f"{row.iqr / row.median:.1%}"


def verdict(row: Row) -> str:
    """The ratios, or why there are none."""
    if row.status != "measured":
        return f"{row.status}: {row.reason}"
    if row.unverified:
        return f"UNVERIFIED: {row.unverified}"
    if row.is_baseline:
        return f"certified {row.certificate[:6]}"
    ratios = "  ".join(
        f"{one.median:.2f}x {name} [{one.low:.2f}, {one.high:.2f}]" for name, one in row.speedups.items()
    )
    return f"{ratios or 'no verified baseline'}  certified {row.certificate[:6]}"


def workload(row: Row) -> str:
    return f"{row.label} (scaled down)" if row.scale > 1 else row.label


HEADINGS = ("op", "pass", "workload", "contender", "time", "spread", "rate", "roofline", "verdict")
TOO_LARGE = "too large: "
NUMBERS = ("time", "spread", "rate")


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table, as HEADINGS has it."""
    return (
        row.op, row.which, workload(row), row.contender, seconds(row.median), spread(row), rate(row), share(row), verdict(row),
    )  # fmt: skip


def say_record(record: Record) -> None:
    """The measured and failed rows as a table; what was skipped and by what methods in lines below."""
    shown = [row for row in record.rows if row.status != "skipped"]
    if shown:
        say_table(HEADINGS, _once([cells(row) for row in shown]), NUMBERS)
    for line in footnotes(record.rows):
        say(line)


def _once(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Op, pass and workload stand at the first contender alone: the others belong to it."""
    previous: tuple[str, ...] = ()
    result = []
    for line in lines:
        result.append(("", "", "", *line[3:]) if line[:3] == previous else line)
        previous = line[:3]
    return result


def footnotes(rows: Sequence[Row]) -> list[str]:
    """What was skipped and why, grouped by reason; methods; counts."""
    lines = [f"skipped: {what}: {why}" for what, why in _skipped(rows).items()]
    measured = [row for row in rows if row.status == "measured"]
    for method in dict.fromkeys(row.method for row in measured):
        notes = dict.fromkeys(row.note for row in measured if row.method == method and row.note)
        lines.append(f"method: {method}" + (f" ({'; '.join(notes)})" if notes else ""))
    unverified = sum(bool(row.unverified) for row in measured)
    failed = sum(row.status == "failed" for row in rows)
    over = [row.label for row in measured if _is_over(row)]
    if over:
        lines.append(
            "some rows are over a ceiling: it was measured too low. `tops-bench ceilings --again` measures anew"
        )
    if unverified:
        lines.append("no ratio without a certificate on both sides: `tops-tests certify` writes them")
    return [*lines, f"{len(measured)} measured, {unverified} unverified, {failed} failed"]


def _skipped(rows: Sequence[Row]) -> Mapping[str, str]:
    """What did not run -> why, passes of one row together."""
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        if row.status == "skipped" and row.contender:
            found.setdefault(f"{row.op} {row.contender}", {}).setdefault(row.reason, "")
        elif row.status == "skipped":
            scaled = next((one.scale for one in rows if one.scale > 1 and _same_row(one, row)), None)
            place = f"; /{scaled} in its place" if scaled else ""
            found.setdefault(f"{row.op} {row.label}", {})[
                f"{row.which}: {row.reason.removeprefix(TOO_LARGE)}{place}"
            ] = ""
    return {what: "; ".join(reasons) for what, reasons in found.items()}


def _same_row(one: Row, other: Row) -> bool:
    return (one.op, one.which, one.row, one.dtypes) == (other.op, other.which, other.row, other.dtypes)
