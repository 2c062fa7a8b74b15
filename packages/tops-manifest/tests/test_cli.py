"""The command: exit status, JSON, help, and no traceback."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tops_manifest
from tops_manifest import contract
from tops_manifest.cli import main
from tops_manifest.tree import PACKAGE

_COMMANDS = ["check", "lock", "show", "list", "diff", "table"]


@pytest.fixture
def root(tmp_path: Path) -> str:
    shutil.copytree(contract.ops_folder(), tmp_path / PACKAGE / "ops")
    assert main(["lock", "--root", str(tmp_path)]) == 0
    return str(tmp_path)


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert f"example: tops-manifest {command}" in " ".join(told.split())
    assert "--json" in told


@pytest.mark.parametrize(
    "argv", [[], ["chekc"], ["show"], ["diff"], ["check", "--fast"], ["show", "matmul", "rms_norm"]]
)
def test_wrong_use_leaves_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2
    assert "usage: tops-manifest" in capsys.readouterr().err


def test_an_unknown_op_is_wrong_use_and_the_known_ones_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "matmull"]) == 2
    told = capsys.readouterr()
    assert f"no op 'matmull'; known: {', '.join(tops_manifest.op_names())}" in told.err
    assert told.out == ""


@pytest.mark.parametrize("command", [["check"], ["lock"], ["list"], ["table"], ["show", "matmul"], ["diff", "HEAD"]])
def test_a_folder_that_is_no_checkout_is_wrong_use(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--root", str(tmp_path)]) == 2
    assert "is no checkout of tops" in capsys.readouterr().err


@pytest.mark.parametrize("name", tops_manifest.op_names())
def test_show_says_all_of_an_op_in_words_and_as_data(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name]) == 0
    text = capsys.readouterr().out
    op = tops_manifest.op(name)
    for word in (op.doc, op.ref, *(spec.name for spec in (*op.inputs, *op.outputs, *op.params))):
        assert word in text
    assert main(["show", name, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["name"] == name
    assert data["version"] == op.version
    assert [spec["name"] for spec in data["contract"]["inputs"]] == [spec.name for spec in op.inputs]
    assert data["contract"]["where"] == [condition.expr.text for condition in op.where]
    assert data["digests"]["contract"] in text
    assert len(data["workloads"]) >= 4


def test_list_has_a_line_an_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(tops_manifest.op_names())
    assert main(["list", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == list(tops_manifest.op_names())


def test_table_prints_every_op_row_and_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table"]) == 0
    text = capsys.readouterr().out
    for op in tops_manifest.ops():
        assert f"## {op.name}" in text
        assert all(f"`{spec.name}`" in text for spec in (*op.inputs, *op.params))
    cells = {line.count("|") - line.count("\\|") for line in text.splitlines() if line.startswith("|")}
    assert cells <= {5, 6}, "a bar in a cell breaks its table"
    assert main(["table", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["markdown"] == text


def test_bars_and_line_breaks_in_a_doc_stay_in_their_cell(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(root) / PACKAGE / "ops" / "rms_norm.toml"
    path.write_text(path.read_text().replace('doc = "added to the mean square"', 'doc = "|x|\\nand more"'))
    capsys.readouterr()
    assert main(["table", "--root", root]) == 0
    assert "| `eps` | float | `1e-06` | \\|x\\| and more |" in capsys.readouterr().out


def test_lock_says_what_it_changed(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    path = Path(root) / PACKAGE / "ops" / "rms_norm.toml"
    path.write_text(path.read_text().replace("B*D*(3 + has_scale)", "B*D*3"))
    assert main(["lock", "--json", "--root", root]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True, "faults": [], "changed": {"rms_norm": ["cost"]}, "removed": [],
    }  # fmt: skip
    assert main(["lock", "--root", root]) == 0
    assert capsys.readouterr().out == "nothing changed\n"


def test_check_gives_each_fault_as_data(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    path = Path(root) / PACKAGE / "ops" / "rms_norm.toml"
    path.write_text(path.read_text().replace('status = "implemented"', 'status = "done"'))
    assert main(["check", "--json", "--root", root]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert told["faults"] == [
        {
            "file": "ops/rms_norm.toml",
            "key": "op.status",
            "value": "'done'",
            "expected": "planned or implemented or deprecated",
        }
    ]
    for command in (["list"], ["table"], ["show", "rms_norm"]):
        assert main([*command, "--json", "--root", root]) == 1
        assert json.loads(capsys.readouterr().out)["faults"] == told["faults"]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tops_manifest", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_it_runs_as_a_module() -> None:
    done = _run("list")
    assert done.returncode == 0
    assert done.stderr == ""
    assert _run("show", "nope").returncode == 2


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tops_manifest", "table"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) in (0, 1)


def test_importing_the_root_is_light() -> None:
    """Kernels import the root at start-up, and must not see costs or rows."""
    program = (
        "import sys; before = set(sys.modules); import tops_manifest;"
        "tops_manifest.op('matmul'); print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "tops_manifest.bind" in loaded
    hidden = {"workloads", "cost", "digest", "tree", "check", "lock", "diff", "table", "show", "cli", "signature"}
    assert not loaded & {f"tops_manifest.{name}" for name in hidden}
    heavy = {"subprocess", "argparse", "asyncio", "logging", "importlib.resources", "jax", "numpy"}
    assert not loaded & heavy


def test_the_contract_s_digest_can_be_had_without_costs_or_rows() -> None:
    program = "import sys, tops_manifest.canonical as c; c.contract_digest('matmul'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert not {"tops_manifest.workloads", "tops_manifest.cost"} & set(done.stdout.split())
