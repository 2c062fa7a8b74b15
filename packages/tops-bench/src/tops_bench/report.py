"""Records as a page of Markdown with a roofline chart each."""

from collections.abc import Sequence
from pathlib import Path

from tops_bench import chart, files, output
from tops_bench.records import Record, Row


def write(records: Sequence[Record], folder: Path) -> list[Path]:
    """report.md, and roofline-<n>.svg and .png for each record. Raises files.FileError."""
    written = []
    for number, record in enumerate(records, 1):
        figure = chart.roofline(record)
        for kind in ("svg", "png"):
            path = folder / f"roofline-{number}.{kind}"
            files.write(path, chart.render(figure, "svg" if kind == "svg" else "png"))
            written.append(path)
    path = folder / "report.md"
    files.write(path, markdown(records))
    return [path, *written]


def markdown(records: Sequence[Record]) -> str:
    sections = [_section(record, number) for number, record in enumerate(records, 1)]
    return "\n".join(["# tops: benchmark report", "", *sections])


def _section(record: Record, number: int) -> str:
    machine = record.machine
    lines = [
        f"## {_text(machine.get('platform'))}: {_text(machine.get('device_kind'))}, {_text(record.started)}",
        "",
        f"Host {_text(machine.get('host'))}, {_text(machine.get('cores'))} cores"
        + (", quick rows" if record.quick else "")
        + ". "
        + ", ".join(f"{name} {version}" for name, version in sorted(record.versions.items()))
        + ".",
        "",
        f"![Roofline](roofline-{number}.svg)",
        "",
        "Times are medians a call; spread is the interquartile range; a speed-up is the median of the ratios within "
        "rounds, with the interval of that median. How: docs/bench.md.",
        "",
    ]
    for op in dict.fromkeys(row.op for row in record.rows):
        lines += [f"### {op}", "", *_table([row for row in record.rows if row.op == op]), ""]
    lines += [f"- {_text(line)}" for line in output.footnotes(record.rows)]
    return "\n".join([*lines, ""])


def _table(rows: Sequence[Row]) -> list[str]:
    headings = [heading for heading in output.HEADINGS if heading != "op"]
    lines = [f"| {' | '.join(headings)} |", f"|{'|'.join('---:' if h in output.NUMBERS else '---' for h in headings)}|"]
    shown = [row for row in rows if row.status != "skipped"]
    return [*lines, *(f"| {' | '.join(_text(cell) for cell in output.cells(row)[1:])} |" for row in shown)]


def _text(value: object) -> str:
    """One line that cannot end a cell."""
    return " ".join(str(value).split()).replace("|", "\\|")
