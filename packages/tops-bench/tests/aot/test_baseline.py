import json

import pytest

from tops_bench.aot import baseline
from tops_bench.aot.matrix import Row
from tops_bench.files import FileError

VERSIONS = {"v5e": {"jax": "1", "libtpu": "2"}}


def row(status="compiled", **figures):
    full = {
        "seconds": 1e-3,
        "cycles": 10_000,
        "cycles_low": 10_000,
        "dma_bytes": 5,
        "vmem_bytes": 1 << 20,
        "spills": 100,
        "bundles": 9,
    }
    return Row(
        "matmul", "fwd", "square", "pallas_tpu", "v5e", status, "" if status == "compiled" else "no", full | figures
    )


@pytest.fixture
def saved(tmp_path):
    baseline.save([row()], VERSIONS, tmp_path)
    return baseline.load("v5e", tmp_path)


def test_the_same_figures_are_no_finding(saved):
    assert baseline.check(saved, [row()]) == []


@pytest.mark.parametrize("name", ["seconds", "cycles", "vmem_bytes", "spills"])
def test_growth_over_a_twentieth_is_a_finding_with_old_and_new(saved, name):
    before = row().figures[name]
    found = baseline.check(saved, [row(**{name: before * 1.06})])
    assert [(one.what, one.old) for one in found] == [(name, f"{before:g}")]
    assert "+6.0%" in found[0].new


@pytest.mark.parametrize("name", ["seconds", "cycles", "vmem_bytes", "spills"])
def test_growth_under_a_twentieth_is_none(saved, name):
    assert baseline.check(saved, [row(**{name: row().figures[name] * 1.04})]) == []


def test_a_kernel_that_no_longer_compiles_is_a_finding(saved):
    assert [one.what for one in baseline.check(saved, [row("refused")])] == ["compiles"]


def test_a_missing_row_is_a_finding_when_all_were_asked_for(saved):
    assert [one.new for one in baseline.check(saved, [])] == ["missing"]
    assert baseline.check(saved, [], complete=False) == []


def test_a_row_that_was_refused_before_may_stay_refused_but_not_crash(tmp_path):
    baseline.save([row("refused")], VERSIONS, tmp_path)
    saved = baseline.load("v5e", tmp_path)
    assert baseline.check(saved, [row("refused")]) == []
    assert baseline.check(saved, [row()]) == []
    assert [one.what for one in baseline.check(saved, [row("crashed")])] == ["compiles"]


def test_another_toolchain_is_named_with_both_versions(saved):
    assert baseline.other_versions(saved, VERSIONS["v5e"]) == ""
    assert baseline.other_versions(saved, {"jax": "1", "libtpu": "3"}) == "libtpu 2 -> 3"


def test_a_file_that_is_no_baseline_is_refused_with_the_command_that_writes_one(tmp_path):
    (tmp_path / "v5e.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(FileError, match="--save"):
        baseline.load("v5e", tmp_path)


def test_rows_of_baselines_and_of_other_libraries_are_not_kept(tmp_path):
    other = Row("matmul", "fwd", "square", "jnp", "v5e", "compiled", "", row().figures)
    assert baseline.save([other], VERSIONS, tmp_path) == []


def gpu_row(**figures):
    full = {"seconds": None, "registers": 100, "spills": 0, "ptx_bytes": 50_000, "assembler": "ptxas"}
    return Row("matmul", "fwd", "square", "pallas_gpu", "sm_90", "compiled", "", full | figures)


@pytest.mark.parametrize(("name", "after"), [("registers", 120), ("spills", 8), ("ptx_bytes", 60_000)])
def test_a_gpu_kernel_is_held_to_registers_spills_and_the_size_of_its_ptx(tmp_path, name, after):
    baseline.save([gpu_row()], {"sm_90": {"jax": "1"}}, tmp_path)
    saved = baseline.load("sm_90", tmp_path)
    assert "seconds" not in saved.rows["matmul|fwd|square|pallas_gpu"]
    assert baseline.check(saved, [gpu_row()]) == []
    assert [one.what for one in baseline.check(saved, [gpu_row(**{name: after})])] == [name]


def test_a_machine_without_an_assembler_says_nothing_of_registers_and_holds_the_ptx(tmp_path):
    baseline.save([gpu_row()], {"sm_90": {"jax": "1"}}, tmp_path)
    saved = baseline.load("sm_90", tmp_path)
    bare = {"assembler": "none: registers and spills unknown", "registers": 500, "spills": 99}
    assert baseline.check(saved, [gpu_row(**bare)]) == []
    assert [one.what for one in baseline.check(saved, [gpu_row(**bare, ptx_bytes=60_000)])] == ["ptx_bytes"]


def test_saving_some_rows_keeps_the_others_of_the_same_toolchain_and_of_no_other(tmp_path):
    other = Row("gla", "fwd", "row", "pallas_tpu", "v5e", "compiled", "", row().figures)
    baseline.save([row()], VERSIONS, tmp_path)
    baseline.save([other], VERSIONS, tmp_path, complete=False)
    assert set(baseline.load("v5e", tmp_path).rows) == {row().key, other.key}
    baseline.save([other], {"v5e": {"jax": "2", "libtpu": "2"}}, tmp_path, complete=False)
    assert set(baseline.load("v5e", tmp_path).rows) == {other.key}
    baseline.save([row()], VERSIONS, tmp_path)
    assert set(baseline.load("v5e", tmp_path).rows) == {row().key}
