"""The roofline chart: what was achieved over what the machine can do, as matplotlib draws it."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tops_bench.records import Record, Row

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # told apart by the colour-blind too
_MARKERS: Mapping[str, str] = {"fwd": "o", "vjp": "s"}


def roofline(record: Record) -> Figure:
    """Operations a second over operations a byte, both axes logarithmic. One roof a dtype; filled points are certified,
    hollow ones are not; round ones are forward, square ones gradients."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes: Axes = figure.add_subplot()
    points = [row for row in record.rows if row.status == "measured" and row.nbytes and _intensity(row) > 0]
    contenders = list(dict.fromkeys(row.contender for row in points))
    colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(contenders)}
    for name in contenders:
        _scatter(axes, [row for row in points if row.contender == name], name, colours[name])
    intensities = [_intensity(row) for row in points] or [1.0]
    _roofs(axes, record.ceilings, min(intensities) / 4, max(intensities) * 4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte (from the manifest)")
    axes.set_ylabel("operations a second")
    axes.set_title(f"{record.machine.get('platform', '')}: {record.machine.get('device_kind', '')}, {record.started}")
    axes.grid(True, which="major", linewidth=0.4)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small", title="hollow: unverified; square: vjp")
    return figure


def _intensity(row: Row) -> float:
    return sum(row.flops.values(), 0.0) / row.nbytes


def _scatter(axes: Axes, rows: Sequence[Row], name: str, colour: str) -> None:
    labelled = False
    for row in rows:
        axes.plot(
            [_intensity(row)],
            [row.flops_rate or math.nan],
            linestyle="",
            marker=_MARKERS.get(row.which, "o"),
            color=colour,
            fillstyle="none" if row.unverified else "full",
            label=None if labelled else name,
        )
        labelled = True


def _roofs(axes: Axes, ceilings: Mapping[str, object], low: float, high: float) -> None:
    """Memory slope of the largest copy, the slowest; then one flat roof a dtype."""
    matmul, copy = ceilings.get("matmul"), ceilings.get("copy")
    if not isinstance(matmul, Mapping) or not isinstance(copy, Mapping) or not copy:
        return
    bandwidth = copy[max(copy, key=int)]
    steps = [low * (high / low) ** (index / 200) for index in range(201)]
    for dtype, peak in matmul.items():
        axes.plot(steps, [min(peak, x * bandwidth) for x in steps], color="0.4", linewidth=1)
        axes.annotate(f"{dtype} matmul", (high, peak), ha="right", va="bottom", fontsize="x-small", color="0.3")


def render(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
    """The file's bytes; the same ones for the same record."""
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "tops"}):
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()
