"""The command: what it prints, for people and for machines, and its exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tops_manifest
from tops_kernels import source_digest
from tops_kernels.cli import main
from tops_kernels.runtime import report
from tops_kernels.runtime.variables import VARIABLES


def test_list_has_every_implementation_with_its_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    want = {(op.name, key) for op in tops_manifest.ops() if op.status == "implemented" for key in op.kernel_map}
    assert {(row["op"], row["implementation"]) for row in rows} == want
    assert all(row["source"] == source_digest(row["op"], row["implementation"]) for row in rows)
    assert main(["list"]) == 0
    assert "rms_norm" in capsys.readouterr().out


def test_support_of_one_question_is_its_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support", "rms_norm", "--backend", "pallas_tpu", "--target", "v5e"]) == 0
    assert "True" in capsys.readouterr().out
    assert main(["support", "matmul", "--target", "v9"]) == 1
    assert "no target 'v9'" in capsys.readouterr().out
    assert main(["support", "rms_norm", "--backend", "pallas_tpu", "--target", "cpu"]) == 1
    assert "interpret=True" in capsys.readouterr().out


def test_support_without_a_question_is_a_table_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["support", "matmul", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["backend"] for row in rows} == set(tops_manifest.op("matmul").kernel_map)
    assert {row["target"] for row in rows} >= {"cpu", "v4", "v5e", "v5p", "v6e", "tpu7x", "sm_90"}
    assert all(row["ok"] == (row["reason"] == "") for row in rows)


def test_env_names_versions_variables_devices_and_caches_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "w"))
    monkeypatch.delenv("TOPS_VERIFY", raising=False)
    assert main(["env", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["workspace"]["value"], rows["workspace"]["source"]) == (str(tmp_path / "w"), "TOPS_WORKSPACE")
    assert {"python", "jax", "jaxlib", "libtpu", "numpy", "tops-kernels", "tops-manifest"} <= set(rows)
    assert {one.name for one in VARIABLES} <= set(rows)
    assert rows["TOPS_WORKSPACE"]["source"] == "environment"
    assert (rows["TOPS_VERIFY"]["value"], rows["TOPS_VERIFY"]["source"]) == ("1", "default")
    assert "cpu" in rows["devices"]["value"]
    assert rows["workspace/xla"]["value"] == "0 files, 0.0 MiB"
    assert not (tmp_path / "w").exists()


def test_env_tells_what_is_broken_and_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPS_COMPILE", "perhaps")
    monkeypatch.setattr(report, "_DEVICES", "import os; os.abort()")
    monkeypatch.setattr(report, "version", lambda name: 1 / 0)
    assert main(["env", "--json"]) == 0
    rows = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert rows["TOPS_COMPILE"].startswith("error: TOPS_COMPILE is 'perhaps'; expected auto, cache-only or forbid")
    assert rows["devices"].startswith("error: status -6")
    assert rows["jax"] == "error: ZeroDivisionError: division by zero"
    monkeypatch.setattr(report, "_DEVICES", "import time; time.sleep(60)")
    monkeypatch.setattr(report, "_TIMEOUT", 0.1)
    assert main(["env", "--json"]) == 0
    rows = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert rows["devices"].startswith("error: no answer within")


def test_a_variable_that_holds_what_it_may_not_is_wrong_use(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPS_OFFLINE", "yes")
    assert main(["install", "http://127.0.0.1:1/b.tar"]) == 2
    assert "TOPS_OFFLINE is 'yes'; expected 0 or 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "required: COMMAND"),
        (["nonsense"], "invalid choice"),
        (["support", "nonsense"], "invalid choice"),
        (["list", "--nonsense"], "unrecognized arguments"),
    ],
)
def test_wrong_use_is_exit_2_with_one_line_of_what_was_expected(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_it_runs_as_a_module_and_as_a_command() -> None:
    command = Path(sys.executable).parent / "tops-kernels"
    for start in ([sys.executable, "-m", "tops_kernels"], [str(command)]):
        done = subprocess.run([*start, "support", "matmul", "--backend", "xla", "--target", "cpu"], capture_output=True)
        assert done.returncode == 0, done.stderr
        assert b"matmul" in done.stdout
