from pathlib import Path

import pytest

from tools.tests.bypass.workspace import faults, shown, workspace, write
from tools.trust import allow, codeowners
from tools.trust.__main__ import main
from tools.trust.banned import DYNAMIC
from tools.trust.finding import Finding
from tools.trust.source import Repository
from tools.trust.stages import STAGES, stage_of

ROOT = Path(__file__).resolve().parents[2]
_FILE = "packages/tops-kernels/src/tops_kernels/cache.py"


@pytest.fixture
def tree(tmp_path):
    return workspace(tmp_path)


def test_every_tracked_file_has_exactly_one_stage():
    files = Repository(ROOT).files
    assert len(files) > 50
    assert [path for path in files if stage_of(path) is None] == []


def test_no_path_of_a_stage_lies_within_anothers():
    paths = [path for stage in STAGES for path in stage.paths]
    assert [
        (a, b) for a in paths for b in paths if a is not b and b.startswith(a if a.endswith("/") else f"{a}/")
    ] == []
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize(
    "path", ["scripts/run.py", "packages/tops-extra/src/x.py", "packages/conftest.py", "notes.txt", "tools.py"]
)
def test_a_path_in_no_stages_place_has_none(path):
    assert stage_of(path) is None


def test_codeowners_gives_each_stage_to_its_owner():
    text = (ROOT / codeowners.PATH).read_text()
    for stage in STAGES:
        for path in stage.paths:
            assert any(line.split() == [f"/{path}", stage.owner] for line in text.splitlines()), path


def test_only_a_line_with_a_reason_permits_and_only_there(tree):
    write(tree, _FILE, "def load(path):\n    return open(path)\n\n\ndef other(path):\n    return open(path)\n")
    assert shown(tree, _FILE) == ["2 file-read", "6 file-read"]
    write(tree, allow.PATH, f"{_FILE}::load | open | reads what save wrote, under workspace_dir()\n")
    assert shown(tree) == ["6 file-read"]


@pytest.mark.parametrize(
    "row",
    [
        f"{_FILE}::load | open",
        f"{_FILE}::load | open | needed",
        f"{_FILE}::* | open | reads what save wrote",
        "packages/* | open | reads what save wrote",
        f"{_FILE} | | reads what save wrote",
        f"{_FILE} | open | reads what save wrote | pending soon",
        f"{_FILE} | open | reads what save wrote | pending 2999-01-01 | more",
    ],
)
def test_a_line_without_reason_or_with_a_wildcard_is_a_fault(tree, row):
    write(tree, allow.PATH, f"# comment\n\n{row}\n")
    assert shown(tree) == ["3 allowlist"]


def test_a_line_that_permits_nothing_is_a_fault_unless_it_waits(tree):
    row = f"{_FILE}::load | open | reads what save wrote"
    write(tree, allow.PATH, f"{row}\n{row} | pending 2999-01-01\n{row} | pending 2020-01-01\n")
    assert shown(tree) == ["1 allowlist", "3 allowlist"]


def test_no_line_permits_a_crossing():
    line = f"{_FILE} | importlib.import_module | loads an implementation by its name\n"
    inside = Finding(_FILE, 1, "", "importlib.import_module", DYNAMIC)
    crossing = Finding(_FILE, 2, "", "importlib.import_module", DYNAMIC, "of tops_tests", absolute=True)
    assert [fault.line for fault in allow.apply(line, [inside, crossing])] == [2]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ('[project.entry-points.pytest11]\nx = "tops_kernels.x"\n', "entry-point group 'pytest11'"),
        ('[project.entry-points."tops.baselines"]\nx = "tops_kernels.x"\n', "entry-point group 'tops.baselines'"),
        ('[project.scripts]\npytest = "tops_kernels.cli:main"\n', "script pytest"),
        ('[project.gui-scripts]\nx = "tops_kernels.x:y"\n', "gui-scripts"),
        ('[tool.pytest.ini_options]\naddopts = "-k nothing"\n', "table tool.pytest"),
        ('[tool.uv.sources]\njax = { path = "../fake" }\n', "tool.uv.sources.jax"),
        ('[tool.hatch.build.targets.sdist]\nx = "y"\n', "table tool.hatch"),
        ('[dependency-groups]\ndev = ["tops-tests"]\n', "depends on tops-tests"),
        ('[project.optional-dependencies]\nx = ["torch"]\n', "depends on torch"),
    ],
)
def test_a_pyproject_declares_and_changes_no_tool(tree, table, what):
    path = "packages/tops-kernels/pyproject.toml"
    write(tree, path, (tree / path).read_text() + table)
    (fault,) = faults(tree)
    assert what in fault.what
    assert fault.check in ("package-config", "dependencies")


def test_bench_registers_baselines_of_its_own_alone(tree):
    path = "packages/tops-bench/pyproject.toml"
    table = '[project.entry-points."tops.baselines"]\nnorm = "tops_bench.baselines.norm:BASELINES"\n'
    write(tree, path, (tree / path).read_text() + table)
    assert shown(tree) == []
    write(tree, path, (tree / path).read_text() + 'fast = "tops_kernels.fast:BASELINES"\n')
    assert shown(tree) == ["0 package-config"]


def test_the_command_says_what_to_do_and_ends_with_one(tree, capsys):
    write(tree, "packages/tops-kernels/tests/conftest.py", "")
    assert main(["static", "--root", str(tree)]) == 1
    out = capsys.readouterr().out
    assert "packages/tops-kernels/tests/conftest.py: [conftest]" in out
    assert "in the test's own file" in out
    assert main(["static", "--root", str(tree), "--json"]) == 1
    assert '"check": "conftest"' in capsys.readouterr().out


def test_a_folder_that_is_no_checkout_is_wrong_use(tmp_path, capsys):
    assert main(["static", "--root", str(tmp_path)]) == 2
    assert "no packages/ here" in capsys.readouterr().err
