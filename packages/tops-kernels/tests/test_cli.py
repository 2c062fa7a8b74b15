"""The command: what it prints, for people and for machines, and its exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tops_manifest
from tops_kernels import source_digest
from tops_kernels.cli import main


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


def test_env_names_versions_and_the_workspace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "w"))
    assert main(["env", "--json"]) == 0
    rows = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert rows["workspace"] == str(tmp_path / "w")
    assert {"python", "jax", "jaxlib", "libtpu", "numpy", "tops-kernels", "tops-manifest"} <= set(rows)
    assert not (tmp_path / "w").exists()


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
