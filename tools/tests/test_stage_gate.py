import itertools

import pytest

from tools.tests.bypass.tree import Tree
from tools.tests.bypass.workspace import workspace, write
from tools.trust import gate, replay
from tools.trust.revision import Git
from tools.trust.stages import STAGES

_TOUCH = {
    "manifest": "packages/tops-manifest/src/tops_manifest/bind.py",
    "workloads": "packages/tops-workloads/src/tops_workloads/draw.py",
    "tests": "packages/tops-tests/src/tops_tests/compare.py",
    "kernels": "packages/tops-kernels/src/tops_kernels/__init__.py",
    "bench": "packages/tops-bench/src/tops_bench/run.py",
    "tools": "tools/gate.py",
    "shared": "CHANGELOG.md",
}
_RIDE = {"kernels", "tests", "workloads"}
_TEST = "packages/tops-tests/tests/test_norm.py"
_NONE = replay.Override()
_SUITE = [("-m", "pytest", "-q", "-p", "no:cacheprovider", "packages/tops-tests/tests")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Tree:
    """Five packages; one test of the test stage holds what one kernel promises."""
    tree = Tree(workspace(tmp_path_factory.mktemp("gate")))
    for path in _TOUCH.values():
        write(tree.root, path, "# first\n")
    write(tree.root, "pyproject.toml", "[tool.pytest.ini_options]\n")
    write(tree.root, "uv.lock", "")
    write(tree.root, _TOUCH["kernels"], "def norm(x):\n    return x\n")
    write(tree.root, _TEST, "from tops_kernels import norm\n\n\ndef test_norm():\n    assert norm(1.0) == 1.0\n")
    tree.git("init", "--quiet")
    tree.commit()
    tree.git("tag", "clean")
    return tree


@pytest.fixture
def tree(repository):
    yield repository
    repository.restore()


def _judge(tree: Tree) -> gate.Verdict:
    return gate.judge(Git(tree.root), "clean", tree.commit())


def _touch(tree: Tree, *stages: str) -> None:
    for stage in stages:
        tree.append(_TOUCH[stage], "# second\n")


def test_every_stage_is_tried():
    assert set(_TOUCH) == {stage.name for stage in STAGES}


@pytest.mark.parametrize("stage", sorted(_TOUCH))
def test_a_stage_alone_passes_with_a_line_in_the_changelog(tree, stage):
    _touch(tree, *{stage, "shared"})
    verdict = _judge(tree)
    assert verdict.faults == ()
    assert not verdict.needs_replay


@pytest.mark.parametrize("pair", [*itertools.combinations(sorted(set(_TOUCH) - {"shared"}), 2)], ids="-".join)
def test_two_stages_ride_together_only_among_kernels_tests_and_workloads(tree, pair):
    _touch(tree, *pair)
    verdict = _judge(tree)
    assert [fault.check for fault in verdict.faults] == ([] if set(pair) <= _RIDE else ["stage-gate"])
    assert verdict.needs_replay == (set(pair) <= _RIDE and "kernels" in pair)


def test_the_message_gives_files_owners_and_commands_that_split(tree):
    _touch(tree, "manifest", "kernels", "tests", "bench")
    (fault,) = _judge(tree).faults
    for stage in ("manifest", "kernels", "tests", "bench"):
        assert f"{stage} (@tops-kernels/{stage}): {_TOUCH[stage]}" in fault.what
    assert (
        fault.do.index("git switch -c manifest ")
        < fault.do.index("git switch -c tests-kernels ")
        < fault.do.index("git switch -c bench ")
    )


def test_a_move_counts_by_both_its_names(tree):
    tree.git("mv", _TOUCH["tests"], "packages/tops-tests/src/tops_tests/close.py")
    verdict = _judge(tree)
    assert verdict.faults == ()
    assert len(verdict.stages["tests"]) == 2


def test_a_submodule_is_refused(tree):
    commit = tree.git("rev-parse", "HEAD")
    tree.git("update-index", "--add", "--cacheinfo", f"160000,{commit},packages/tops-kernels/src/tops_kernels/sub")
    tree.git("commit", "--quiet", "-m", "sub")
    verdict = gate.judge(Git(tree.root), "clean", "HEAD")
    assert any(fault.check == "file-kind" and "submodule" in fault.what for fault in verdict.faults)


def test_an_attribute_hides_no_file_from_the_judge(tree):
    tree.write("packages/tops-kernels/src/tops_kernels/hidden.py", "exec('1')\n")
    tree.write("packages/tops-kernels/src/tops_kernels/.gitattributes", "hidden.py export-ignore\n")
    assert "dynamic-import" in {fault.check for fault in _judge(tree).faults}


def test_what_the_base_branch_did_meanwhile_is_not_the_changes_doing(tree):
    tree.git("switch", "--quiet", "-c", "feature")
    _touch(tree, "kernels")
    head = tree.commit()
    tree.git("switch", "--quiet", "-c", "trunk", "clean")
    _touch(tree, "bench")
    base = tree.commit()
    verdict = gate.judge(Git(tree.root), base, head)
    assert set(verdict.stages) == {"kernels"}
    tree.git("switch", "--quiet", "--detach", "clean")
    tree.git("branch", "--quiet", "-D", "feature", "trunk")


def _replayed(tree: Tree, override: replay.Override = _NONE, commands=_SUITE) -> list[str]:
    verdict = _judge(tree)
    assert verdict.needs_replay
    return [
        str(fault)
        for fault in replay.check(Git(tree.root), verdict.base, "HEAD", override, built=False, commands=commands)
    ]


def _weaken(tree: Tree) -> None:
    tree.replace(_TOUCH["kernels"], "return x", "return 1.5 * x")
    tree.replace(_TEST, "norm(1.0) == 1.0", "norm(1.0) < 2.0")


def test_a_test_weakened_together_with_its_kernel_fails_the_replay(tree):
    _weaken(tree)
    (fault,) = _replayed(tree)
    assert "[base-replay]" in fault
    assert "Mend the kernel" in fault
    assert "a higher version of tops-kernels; a higher version of tops-tests" in fault


def test_a_better_kernel_with_a_new_test_passes_the_replay(tree):
    tree.replace(_TOUCH["kernels"], "return x", "return 1.0 * x")
    tree.append(_TEST, "\n\ndef test_more():\n    assert norm(2.0) == 2.0\n")
    assert _replayed(tree) == []


def test_a_test_may_not_vanish_from_the_replay(tree):
    tree.git("rm", "--quiet", _TEST)
    tree.replace(_TOUCH["kernels"], "return x", "return 0.0")
    assert len(_replayed(tree)) == 1


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("bumped", [("kernels", "tests"), ("kernels",), ()], ids=str)
def test_only_label_approval_and_versions_together_override_a_failing_replay(tree, label, approved, bumped):
    _weaken(tree)
    for stage in bumped:
        tree.replace(f"packages/tops-{stage}/pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"')
    override = replay.Override(("other", "contract-change") if label else ("other",), approved)
    quick = [("-c", "from tops_kernels import norm; assert norm(1.0) == 1.0")]
    assert (_replayed(tree, override, quick) == []) == (label and approved and len(bumped) == 2)
