"""Rows of figures for people."""

from collections.abc import Sequence

from tops_bench import output
from tops_bench.aot.baseline import Finding
from tops_bench.aot.matrix import Row

HEADINGS = (
    "op", "pass", "workload", "contender", "target", "estimate", "roofline", "of it", "binds",
    "cycles", "spills", "VMEM", "DMA", "temp", "slots / reason",
)  # fmt: skip
NUMBERS = ("estimate", "roofline", "of it", "cycles", "spills", "VMEM", "DMA", "temp")
_SHOWN_SLOTS = ("MXU", "VALU", "XLU", "EUP", "VLOAD", "VSTORE")


def say_rows(rows: Sequence[Row]) -> None:
    """The table, one target after another, then counts. Everything in it is a schedule estimate."""
    ordered = sorted(
        enumerate(rows), key=lambda pair: (pair[1].op, pair[1].which, pair[1].label, pair[1].target, pair[0])
    )
    lines, previous = [], ("", "", "")
    for _, row in ordered:
        head = (row.op, row.which, row.label)
        lines.append((*(head if head != previous else ("", "", "")), *cells(row)))
        previous = head
    output.say_table(HEADINGS, lines, NUMBERS)
    compiled = sum(row.status == "compiled" for row in rows)
    others = {
        status: sum(row.status == status for row in rows) for status in ("refused", "crashed", "timeout", "fault")
    }
    output.say(
        f"schedule estimates, never measured: {compiled} compiled, "
        + ", ".join(f"{n} {status}" for status, n in others.items())
    )


def cells(row: Row) -> tuple[str, ...]:
    """Of one row, from the contender on."""
    if row.status != "compiled":
        return (row.contender, row.target, row.status, *[""] * 8, row.reason)
    found = row.figures
    slots = found.get("slots", {})
    if "registers" in found:
        said = f"{found['registers']} registers, {size(found['shared_bytes'])} shared, PTX {size(found['ptx_bytes'])}, by {found['assembler']}"
        return (
            row.contender,
            row.target,
            "-",
            "-",
            "-",
            "",
            "-",
            str(found["spills"]),
            "-",
            "-",
            size(found["temp_bytes"]),
            said,
        )
    return (
        row.contender,
        row.target,
        estimate(row),
        output.seconds(found.get("roofline_seconds")),
        f"{found['efficiency']:.0%}" if "efficiency" in found else "-",
        str(found.get("binds", "")),
        cycles(row),
        f"{found['spills']}" if found.get("spills") else "0",
        size(found.get("vmem_bytes", 0)),
        size(found.get("dma_bytes", 0)),
        size(found.get("temp_bytes", 0)),
        " ".join(f"{name} {slots[name]:.0%}" for name in _SHOWN_SLOTS if name in slots),
    )


def estimate(row: Row) -> str:
    """One time, or [low, high] where they differ by over a tenth."""
    high, low = row.seconds, row.figures.get("seconds_low")
    if high is None:
        return "-"
    if isinstance(low, float) and low < 0.9 * high:
        return f"[{output.seconds(low)}, {output.seconds(high)}]"
    return output.seconds(high)


def cycles(row: Row) -> str:
    high, low = row.figures.get("cycles", 0), row.figures.get("cycles_low", 0)
    if not high:
        return "-"
    return f"[{low}, {high}]" if low < 0.9 * high else str(high)


def size(count: int) -> str:
    """Bytes in the unit that leaves three digits."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} B"


def say_findings(findings: Sequence[Finding]) -> None:
    """Old and new side by side."""
    output.say_table(
        ("target", "row", "what", "old", "new"),
        [(one.target, one.key.replace("|", " "), one.what, one.old, one.new) for one in findings],
    )
