"""Exit codes 0, 1, 2; data on stdout, progress on stderr; JSON that is strict."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tops_kernels
from tops_bench import cli, environments, figures, records, roofline, rows, running, worker
from tops_bench.figures import Figure
from tops_bench.machine import machine
from tops_bench.roofline import Ceilings
from tops_workloads import Room

_COMMANDS = ("run", "compare", "report", "figures", "ceilings")
_RUN = ["run", "rms_norm", "--pass", "fwd", "--workload", "llama-3.1-70b-decode", "--quick", "--rounds", "2"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings at hand, rows that take no time."""
    found = Ceilings(
        machine(), {"float32": 1e11, "bfloat16": 1e11, "int8": 1e11}, {1: 1e12}, "chained loop", "2026-01-01"
    )
    monkeypatch.setattr(roofline, "measure", lambda *_: found)
    monkeypatch.setattr(rows, "room", lambda quick: Room(1 << 16, 1e6))


def _strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def _exit(argv: list[str]) -> int:
    try:
        return cli.main(argv)
    except SystemExit as left:  # argparse leaves by itself
        return int(left.code or 0)


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_has_help_with_an_example_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "example:" in text
    assert f"tops-bench {command}" in text.partition("example:")[2]
    assert "--json" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "required"),
        (["fly"], "invalid choice"),
        (["run", "nosuch"], "no implemented op 'nosuch'; known: "),
        (["run", "--workload", "nosuch"], "no row 'nosuch'"),
        (["run", "--pass", "up"], "invalid choice"),
        (["run", "--rounds", "0"], "got 0; expected 1 or more"),
        (["run", "--json", "no/such/folder/r.json"], "expected a file in a folder"),
        (["report", "none.json", "-o", "out"], "No such file"),
        (["report", "none.json"], "-o/--output"),
        (["compare", "none.json", "none.json"], "no such file"),
        (["compare", sys.executable, sys.executable, "nosuch"], "no implemented op 'nosuch'"),
        (["compare", sys.executable, sys.executable, "--rounds", "0"], "got 0"),
        (["compare", sys.executable, sys.executable, "--workload", "nosuch"], "no row 'nosuch'"),
        (["figures", "nosuch"], "expected one of matmul"),
    ],
)
def test_wrong_use_exits_2_and_says_what_was_expected(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _exit(argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) in ([], [tmp_path / "workspace"])


def test_a_run_prints_a_table_and_writes_the_record_it_printed(
    small: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    assert cli.main([*_RUN, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    record = records.read(path)
    assert {row.contender for row in record.rows if row.status == "measured"} == {"xla", "baseline:jnp", "baseline:lax"}
    assert out.count("UNVERIFIED: no certificate") == 3
    assert "scaled down" in out
    assert "3 measured, 3 unverified, 0 failed" in out


def test_a_run_keeps_compiled_programs_where_it_is_asked_to_and_nowhere_else(
    small: None, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = tops_kernels.workspace_dir() / "xla"
    assert cli.main(_RUN) == 0
    assert not programs.exists()
    assert cli.main([*_RUN, "--cache"]) == 0
    names = {path.name.partition("-")[0] for path in programs.iterdir()}
    assert "jit_run" in names, names  # the programs that are timed, which other threads compile
    capsys.readouterr()


def test_a_run_prints_its_record_as_strict_json(small: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*_RUN, "--json"]) == 0
    data = _strict(capsys.readouterr().out)
    assert records.from_data(data, "stdout").quick


def test_a_run_with_a_failing_contender_exits_1(
    small: None, monkeypatch: pytest.MonkeyPatch, make_record: Callable[..., Any], make_row: Callable[..., Any]
) -> None:
    failed = make_record(make_row(status="failed", reason="boom", samples=(), median=None))
    monkeypatch.setattr(running, "run", lambda *_, **__: failed)
    assert cli.main(_RUN) == 1


@pytest.fixture
def pair(tmp_path: Path, make_record: Callable[..., Any], make_row: Callable[..., Any]) -> tuple[str, str, str]:
    """Base, an equal head, a slower head."""
    slow = make_row(samples=tuple(1.5 * value for value in make_row().samples))
    made = {"base": make_record(), "equal": make_record(), "slow": make_record(slow)}
    for name, record in made.items():
        records.write(tmp_path / f"{name}.json", record)
    base, equal, slower = (str(tmp_path / f"{name}.json") for name in made)
    return base, equal, slower


def test_compare_exits_0_for_equals_and_1_for_a_regression(
    pair: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    base, equal, slower = pair
    assert cli.main(["compare", base, equal]) == 0
    assert "1 rows, 0 faults" in capsys.readouterr().out
    assert cli.main(["compare", base, slower]) == 1
    assert "SLOWER" in capsys.readouterr().out
    assert cli.main(["compare", base, slower, "--json"]) == 1
    data = _strict(capsys.readouterr().out)
    assert (data["faults"], data["threshold"]) == (1, 0.95)
    assert data["rows"][0]["speed"]["median"] == pytest.approx(1 / 1.5)


def test_compare_exits_2_for_what_cannot_be_compared(
    pair: tuple[str, str, str],
    tmp_path: Path,
    make_record: Callable[..., Any],
    make_row: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    base, equal, _ = pair
    records.write(tmp_path / "other.json", make_record(machine_key="other"))
    records.write(tmp_path / "nothing.json", make_record(make_row(contender="baseline:jnp")))
    for argv, message in (
        ([base, str(tmp_path / "other.json")], "different machines"),
        ([base, sys.executable], "expected two records or two versions"),
        ([base, equal, "rms_norm"], "records are compared whole"),
        ([str(tmp_path / "nothing.json")] * 2, "nothing to compare"),
    ):
        assert cli.main(["compare", *argv]) == 2
        assert message in capsys.readouterr().err


class _InProcess(worker.Worker):
    """A worker that needs no process of its own."""

    def __init__(self, environment: environments.Environment) -> None:
        super().__init__()
        self.environment = environment

    def __enter__(self) -> "_InProcess":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: Any) -> dict[str, Any]:
        return _strict(json.dumps(self.answer(_strict(json.dumps(request)))))

    def hello(self) -> dict[str, Any]:
        return self.ask({"do": "hello"})


def test_compare_of_two_environments_runs_both(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "Child", _InProcess)
    argv = ["compare", sys.executable, sys.executable, *_RUN[1:], "--json"]
    assert cli.main(argv) == 0
    [row] = _strict(capsys.readouterr().out)["rows"]
    assert (row["how"], row["base_seconds"]) == ("same sources, same jax: not timed", None)
    assert cli.main([*argv, "--all"]) in (0, 1)  # whether this machine was steady meanwhile is not asked
    [row] = _strict(capsys.readouterr().out)["rows"]
    assert (row["op"], row["contender"], row["how"]) == ("rms_norm", "xla", "one run, in turns")
    assert row["base_seconds"] > 0
    assert row["head_seconds"] > 0


def test_report_writes_markdown_and_charts(
    pair: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["report", pair[0], pair[2], "-o", str(out), "--json"]) == 0
    written = _strict(capsys.readouterr().out)["written"]
    names = {"report.md", "roofline-1.svg", "roofline-1.png", "roofline-2.svg", "roofline-2.png"}
    assert {Path(path).name for path in written} == names == {path.name for path in out.iterdir()}
    assert (out / "roofline-1.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert "</svg>" in (out / "roofline-1.svg").read_text()
    assert cli.main(["report", pair[0], "-o", pair[0]]) == 2


def _figure(low: float) -> Figure:
    return Figure("f", low + 0.01, low, low + 0.02, 1.05, 1.0, 1.0, "chained loop", 3)


@pytest.mark.parametrize(("low", "code", "verdict"), [(0.9, 0, "met"), (1.04, 0, "met"), (1.06, 1, "MISSED")])
def test_figures_exit_1_where_one_is_missed_beyond_the_noise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], low: float, code: int, verdict: str
) -> None:
    monkeypatch.setattr(figures, "measure_figures", lambda *_: [_figure(low)])
    assert cli.main(["figures"]) == code
    assert verdict in capsys.readouterr().out
    assert cli.main(["figures", "--json"]) == code
    [found] = _strict(capsys.readouterr().out)["figures"]
    assert found == {**dataclasses.asdict(_figure(low)), "met": not code}


def test_ceilings_are_shown_with_where_they_are_kept(small: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ceilings"]) == 0
    assert "matmul float32" in (out := capsys.readouterr().out)
    assert "ceilings-" in out
    assert cli.main(["ceilings", "--json"]) == 0
    assert _strict(capsys.readouterr().out)["matmul"]["float32"] == 1e11


def test_the_aot_command_is_there_or_told_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_aot", lambda: (None, "no compiler"))
    assert cli.main(["aot"]) == 2
    assert "not in this installation: no compiler" in capsys.readouterr().err


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tops_bench", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "example:" in done.stdout
