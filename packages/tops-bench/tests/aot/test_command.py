import dataclasses
import errno
import importlib.metadata
import json

import pytest

from tops_bench import cli
from tops_bench.aot import (
    children,
    compiling,
    dumps,
    matrix,
    peer,
    running,
    subjects,
    sweep,
    toolchain,
    validate,
    worker,
)
from tops_bench.aot.bundles import DumpError
from tops_bench.aot.matrix import Row, Selection
from tops_bench.files import FileError


@pytest.fixture
def no_toolchain(monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(toolchain.importlib.metadata, "version", version)


def test_without_libtpu_the_command_says_what_to_install(no_toolchain, capsys):
    assert cli.main(["aot", "matmul", "--target", "v5e"]) == 1
    assert "tops-bench[tpu]" in capsys.readouterr().err


def test_without_the_cuda_plugin_the_command_says_what_to_install(no_toolchain):
    assert "tops-bench[cuda]" in (toolchain.missing("cuda") or "")


@pytest.mark.parametrize(
    "arguments",
    [["nosuchop"], ["matmul", "--target", "v9"], ["--explain"], ["--sweep"], ["matmul", "--workload", "none"]],
)
def test_wrong_use_exits_with_2(arguments):
    assert cli.main(["aot", *arguments]) == 2


def answered(monkeypatch, answers):
    monkeypatch.setattr(toolchain, "missing", lambda platform: None)
    monkeypatch.setattr(
        running, "answers", lambda planned, settings: [dict(answers[at % len(answers)]) for at in range(len(planned))]
    )


@pytest.mark.parametrize("status", ["crashed", "timeout", "fault", "refused"])
def test_a_row_that_failed_is_in_the_table_and_the_status_is_1(monkeypatch, capsys, status):
    answered(monkeypatch, [{status: "because of this"}])
    assert cli.main(["aot", "matmul", "--target", "v5e", "--contender", "pallas_tpu", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["status"], row["reason"]) for row in rows} == {(status, "because of this")}


def test_a_check_against_no_baseline_says_how_to_write_one(monkeypatch, capsys, tmp_path):
    answered(monkeypatch, [{"refused": "no"}])
    assert cli.main(["aot", "--check", "--target", "v5e", "--baselines", str(tmp_path)]) == 1
    assert "--save --target v5e" in capsys.readouterr().out


def test_another_toolchain_asks_for_a_new_baseline_and_raises_no_false_alarm(monkeypatch, capsys, tmp_path):
    answered(monkeypatch, [{"refused": "no"}])
    (tmp_path / "v5e.json").write_text(
        json.dumps({"schema": 1, "target": "v5e", "versions": {"libtpu": "0"}, "rows": {"x": {"cycles": 1}}})
    )
    assert cli.main(["aot", "--check", "--target", "v5e", "--baselines", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "re-save needed" in out
    assert "missing" not in out


def test_save_then_check_finds_nothing(monkeypatch, tmp_path):
    answered(monkeypatch, [{"refused": "no"}])
    arguments = ["aot", "--target", "v5e", "--baselines", str(tmp_path)]
    cli.main([*arguments, "--save"])
    assert cli.main([*arguments, "--check"]) == 0


def test_every_op_pass_and_row_is_planned_for_every_target():
    rows = matrix.plan(Selection(references=False))
    assert {row.op for row in rows} >= {"matmul", "rms_norm", "add_rms_norm"}
    assert {row.which for row in rows} == {"fwd", "vjp"}
    assert {row.target for row in rows} == {"v4", "v5e", "v5p", "v6e", "tpu7x"}
    assert len({(row.key, row.target) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("contender", "target", "can"),
    [
        ("pallas_gpu", "v5e", False),
        ("pallas_gpu", "sm_90", True),
        ("pallas_tpu", "sm_90", False),
        ("xla", "sm_90", True),
    ],
)
def test_a_kernel_is_planned_for_its_own_platform_alone(contender, target, can):
    assert matrix._has(contender, target) is can


def test_what_takes_longest_to_compile_comes_first():
    rows = matrix.plan(Selection(ops=("rms_norm",), targets=("v5e",)))
    first, *_, last = sorted(rows, key=running._weight, reverse=True)
    assert (first.contender != "pallas_tpu", first.which) == (True, "vjp")
    assert (last.contender, last.which) == ("pallas_tpu", "fwd")


def test_the_quick_plan_is_a_row_an_op_and_pass():
    rows = matrix.plan(Selection(ops=("matmul",), targets=("v5e",), quick=True))
    assert {(row.which, row.contender) for row in rows} == {
        ("fwd", "xla"),
        ("fwd", "pallas_tpu"),
        ("vjp", "pallas_tpu"),
    }


def test_a_dump_that_is_not_there_is_named_with_what_to_do(tmp_path):
    with pytest.raises(DumpError, match="undocumented"):
        dumps.read(tmp_path, "kernel.1")


def test_a_dump_cut_short_is_named(tmp_path):
    (tmp_path / "1-kernel.1-07-final_bundles.txt").write_text(
        "= control target key start\n     0   :  { %2 = vsyncpa [#al"
    )
    with pytest.raises(DumpError, match=r"kernel\.1"):
        dumps.read(tmp_path, "kernel.1")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DumpError("kernel.1: no bundle in 7 lines"), "fault"),
        (OSError(errno.ENOSPC, "No space left on device"), "fault"),
        (MemoryError("no room"), "fault"),
        (ValueError("Bad lhs type"), "refused"),
    ],
)
def test_what_goes_wrong_in_a_child_is_its_answer(monkeypatch, tmp_path, error, status):
    def compile_tpu(*_):
        raise error

    monkeypatch.setattr(compiling, "compile_tpu", compile_tpu)
    job = {"kind": "fusion", "contender": "cast", "target": "v5e"}
    assert str(error.args[-1]) in worker.answer(job, tmp_path)[status]


def test_no_room_for_dumps_is_said_and_the_status_is_1(monkeypatch, capsys):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(toolchain, "missing", lambda platform: None)
    monkeypatch.setattr(children.tempfile, "TemporaryDirectory", full)
    assert cli.main(["aot", "rms_norm", "--target", "v5e", "--quick"]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_a_baseline_that_cannot_be_written_is_said_and_the_status_is_1(monkeypatch, capsys, tmp_path):
    answered(monkeypatch, [{"refused": "no"}])
    (tmp_path / "full").write_text("a file where the folder should be")
    assert (
        cli.main(["aot", "rms_norm", "--target", "v5e", "--quick", "--save", "--baselines", str(tmp_path / "full")])
        == 1
    )
    assert "full" in capsys.readouterr().err


def test_a_compilers_refusal_is_trimmed_and_keeps_the_source_line():
    text = worker.reason(ValueError('INTERNAL: Mosaic failed: Bad lhs type\nloc("ops/kernel.py":12:3)' + " x" * 500))
    assert text.startswith("Mosaic failed: Bad lhs type")
    assert text.endswith("... [kernel.py:12]")
    assert len(text) < 400


def test_the_pareto_set_is_what_nothing_beats_in_both():
    def tried(seconds, vmem):
        return sweep.Tried(
            None, Row("o", "fwd", "l", "c", "v5e", "compiled", "", {"seconds": seconds, "vmem_bytes": vmem})
        )

    front = sweep.pareto([tried(3.0, 1), tried(1.0, 9), tried(1.5, 9), tried(2.0, 4), tried(4.0, 2)])
    assert [(one.row.seconds, one.row.figures["vmem_bytes"]) for one in front] == [(1.0, 9), (2.0, 4), (3.0, 1)]


def test_the_constant_comes_from_other_rows_than_it_is_judged_on():
    pairs = [
        validate.Pair("k", str(at), 2.0 * (at + 1) if at % 2 == 0 else 3.0 * (at + 1), float(at + 1))
        for at in range(20)
    ]
    fit = validate.fit(pairs)
    assert fit.constant == 2.0
    assert fit.raw_median == 3.0
    assert fit.median == 1.5


def test_rank_correlation_knows_order_alone():
    assert validate.spearman([1, 2, 3, 40], [1, 4, 9, 16]) == pytest.approx(1.0)
    assert validate.spearman([4, 3, 2, 1], [1, 2, 3, 4]) == pytest.approx(-1.0)


def test_without_the_peers_data_the_command_is_named(monkeypatch, no_toolchain):
    assert "--with tokamax" in (peer.missing() or "")


def test_a_sampled_peer_row_is_the_same_on_each_run():
    rows = [
        peer.Measured("v6e", "attention", {"q": str(at), "k": "", "mask": {}, "return_residuals": False}, {}, at / 1e3)
        for at in range(100)
    ]
    assert validate.sample(rows) == validate.sample(reversed(rows))
    assert len(validate.sample(rows)) == 20


def test_a_winner_is_kept_with_where_it_comes_from_and_what_gains_nothing_is_not(tmp_path):
    planned = matrix.plan(Selection(ops=("rms_norm",), targets=("v5e",), contenders=("pallas_tpu",)))[0]
    configs = subjects.configurations(planned.case, "fwd", "pallas_tpu", "v5e")

    def row(seconds):
        figures = {"seconds": seconds, "vmem_bytes": 9}
        return Row("rms_norm", "fwd", planned.label, "pallas_tpu", "v5e", "compiled", "", figures)

    tried = [sweep.Tried(config, row(seconds)) for config, seconds in zip(configs, (2.0, 1.0, 3.0), strict=False)]
    sweep.keep(planned, row(2.0), tried, tmp_path)
    path = tmp_path / "v5e" / "rms_norm.json"
    (kept,) = json.loads(path.read_text())["rows"]
    asked = {
        "op": "rms_norm",
        "implementation": "pallas_tpu",
        "pass": "fwd",
        "chip": "v5e",
        "seconds": 1.0,
        "heuristic_seconds": 2.0,
        "vmem_bytes": 9,
        "origin": "schedule estimate",
        "config": dataclasses.asdict(configs[1]),
        "kernel": "",
    }
    assert kept.items() >= asked.items()
    assert set(kept["toolchain"]) == {"jax", "jaxlib", "libtpu"}
    sweep.keep(planned, row(1.01), tried, tmp_path)
    assert json.loads(path.read_text())["rows"] == []
    path.write_text("mine")
    with pytest.raises(FileError, match="not a table"):
        sweep.keep(planned, row(2.0), tried, tmp_path)


def test_an_overflow_keeps_its_sizes_and_loses_the_instruction_quoted_in_it():
    text = (
        "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory space vmem while allocating on stack for "
        '%k.1 = bf16[1,8]{2,1,0:T(8,128)(2,1)} custom-call(%b.3, %b.4), custom_call_target="tpu_custom_call", '
        "operand_layout_constraints={bf16[1,8]{2,1,0}, bf16[1,8]{2,1,0}}, frontend_attributes={kernel_metadata={}}, "
        'metadata={op_name="jit(f)/k/pallas_call" stack_frame_id=30}. Scoped allocation with size 16.30M and limit 16.00M exceeded'
    )
    assert "for %k.1. Scoped allocation with size 16.30M and limit 16.00M" in worker.reason(RuntimeError(text))
