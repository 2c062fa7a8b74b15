"""A report shows what the record has, no more; the chart is the same for the same record."""

from collections.abc import Callable
from typing import Any

from tops_bench import chart, report
from tops_bench.records import Speedup

Make = Callable[..., Any]


def test_the_page_has_a_line_a_row_and_ratios_only_where_verified(make_record: Make, make_row: Make) -> None:
    rows = [
        make_row(speedups={"jnp": Speedup(1.25, 1.2, 1.3)}),
        make_row(contender="baseline:jnp"),
        make_row(contender="pallas_tpu", unverified="certificate is stale", certificate=""),
        make_row(contender="", status="skipped", reason="too large: 9 MiB", label="big", samples=(), median=None),
        make_row(contender="x", status="failed", reason="a|b\nc", samples=(), median=None),
    ]
    text = report.markdown([make_record(*rows)])
    table = [line for line in text.splitlines() if line.startswith("| fwd")]
    assert len(table) == 4
    assert sum("1.25x jnp" in line for line in table) == 1
    assert "UNVERIFIED: certificate is stale" in table[2]
    assert "failed: a\\|b c" in table[3]  # a cell stays one cell
    assert {line.replace("\\|", "").count("|") for line in table} == {9}
    assert "9 MiB" in text
    assert "![Roofline](roofline-1.svg)" in text


def test_a_chart_is_the_same_for_the_same_record(make_record: Make) -> None:
    assert chart.render(chart.roofline(make_record()), "svg") == chart.render(chart.roofline(make_record()), "svg")


def test_the_chart_has_a_point_a_measured_row_hollow_where_unverified(make_record: Make, make_row: Make) -> None:
    rows = [
        make_row(),
        make_row(contender="baseline:jnp", unverified="no certificate", which="vjp"),
        make_row(contender="x", status="failed", samples=(), median=None),
    ]
    axes = chart.roofline(make_record(*rows)).axes[0]
    points = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [(line.get_label(), line.get_fillstyle(), line.get_marker()) for line in points] == [
        ("xla", "full", "o"),
        ("baseline:jnp", "none", "s"),
    ]
    assert [float(line.get_xdata()[0]) for line in points] == [0.5, 0.5]  # 4096 operations on 8192 bytes
    [roof] = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert max(roof.get_ydata()) <= 1e11


def test_a_record_without_points_or_ceilings_still_gives_a_chart(make_record: Make, make_row: Make) -> None:
    bare = make_record(make_row(status="failed", samples=(), median=None), ceilings={})
    assert chart.render(chart.roofline(bare), "svg")
