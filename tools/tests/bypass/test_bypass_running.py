"""Attempts that no reader of files sees: what a suite does while it runs, and a judge that was edited to look away."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import audit
from tools.tests.bypass.tree import BENCH, KERNELS, TESTS, Tree, copy_of
from tools.trust.stages import by_name

ROOT = Path(__file__).resolve().parents[3]
_ORACLE = f"{TESTS}oracles/rms_norm.py"


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Tree:
    return copy_of(ROOT, tmp_path_factory.mktemp("copy"))


@pytest.fixture
def tree(copied):
    yield copied
    copied.restore()


def _swallowing(code: str) -> str:
    """Code under test may hide the refusal: the log still has it."""
    return f"try:\n    {code}\nexcept Exception:\n    pass\n"


def _in_a_child(code: str) -> str:
    return f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}])\n"


@pytest.mark.parametrize(
    ("stage", "code", "says"),
    [
        pytest.param("kernels", f"open('/'.join({_ORACLE.split('/')!r})).read()", f"opens ROOT/{_ORACLE}", id="opening-the-oracle"),
        pytest.param("kernels", _swallowing(f"open({_ORACLE!r})"), f"opens ROOT/{_ORACLE}", id="and-hiding-the-refusal"),
        pytest.param("kernels", f"import os; os.open({_ORACLE!r}, os.O_RDONLY)", f"opens ROOT/{_ORACLE}", id="by-descriptor"),
        pytest.param("kernels", "__import__('tops_' + 'tests')", "imports tops_tests", id="importing-by-a-built-name"),
        pytest.param("bench", "__import__('tops_' + 'tests')", "imports tops_tests", id="importing-the-judge-from-bench"),
        pytest.param("kernels", "import tops_manifest.workloads", "imports tops_manifest.workloads", id="reading-the-workload-rows"),
        pytest.param("bench", _in_a_child("__import__('tops_' + 'tests')"), "imports tops_tests", id="in-a-child-process"),
        pytest.param(
            "kernels", _in_a_child(_in_a_child(f"open('/'.join({_ORACLE.split('/')!r}))")), f"opens ROOT/{_ORACLE}", id="in-a-grandchild"
        ),
        pytest.param("bench", f"import subprocess; subprocess.run(['cat', {_ORACLE!r}])", "starts a process that names", id="by-cat"),
        pytest.param(
            "bench", "import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', 'pass'])", "does not reach", id="a-child-without-hook"
        ),
        pytest.param("bench", "open('tools/trust/stages.py')", "opens ROOT/tools/trust/stages.py", id="opening-the-tools"),
    ],
)  # fmt: skip
def test_the_audit_catches(tree, stage, code, says):
    status, faults = audit.run(by_name(stage), tree.root, [sys.executable, "-c", code])
    assert [fault.check for fault in faults] == ["audit"] * len(faults), (status, faults)
    said = says.replace("ROOT", os.path.realpath(tree.root))
    assert any(said in fault.what for fault in faults), faults
    assert all("see CONTRIBUTING.md" in fault.do for fault in faults)


@pytest.mark.parametrize("stage", ["bench", "kernels"])
def test_the_audit_lets_a_stage_see_what_it_may(tree, stage):
    seen = "tops_manifest, tops_kernels" + (
        ", tops_workloads, tops_bench, tops_manifest.workloads" if stage == "bench" else ""
    )
    code = f"import json, {seen}; open('CHANGELOG.md').read(); {_in_a_child('import json')}"
    assert audit.run(by_name(stage), tree.root, [sys.executable, "-c", code]) == (0, [])


def test_the_audit_command_fails_a_suite_that_passes_and_peeks(tree, capfd):
    tree.write(
        "packages/tops-bench/tests/test_attempt.py", f"def test_peek():\n    {_swallowing(f'open({_ORACLE!r})')!r}\n"
    )
    tree.write(
        "packages/tops-bench/tests/test_attempt.py",
        f"import pytest\n\n\ndef test_peek():\n    with pytest.raises(PermissionError):\n        open({_ORACLE!r})\n",
    )
    assert audit.main(["bench", "--root", str(tree.root), "--", "-k", "test_peek"]) == 1
    out = capfd.readouterr().out
    assert "[audit] opens" in out
    assert "test_peek" in out


def _gate(tree: Tree, head: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/stage_gate.py", "clean", head, "--no-replay", *more]
    return subprocess.run(command, cwd=tree.root, capture_output=True, text=True, check=False)


def test_a_gate_that_was_edited_to_look_away_is_not_the_judge(tree):
    tree.replace("tools/trust/gate.py", "def _mixed(", "def _mixed(*_):\n    return ()\n\n\ndef _unused(")
    tree.append(f"{KERNELS}__init__.py", "\n# a kernel\n")
    ran = _gate(tree, tree.commit())
    assert ran.returncode == 1
    assert "the base's copy judges" in ran.stderr
    assert "[stage-gate]" in ran.stdout


def test_a_change_of_one_stage_passes_the_gate(tree):
    tree.append(f"{BENCH}__init__.py", "\n# faster\n")
    tree.append("CHANGELOG.md", "\n- Faster.\n")
    ran = _gate(tree, tree.commit())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "bench: 1 file\n" in ran.stdout


def test_a_revision_that_is_none_is_wrong_use_and_no_traceback(tree):
    ran = _gate(tree, "no-such-revision")
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert "fetch-depth" in ran.stderr
