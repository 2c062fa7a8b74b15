"""Attempts on what is locked, judged by the packages' own commands on a copy: what the stage gate compares with the base, these
compare within the tree. And the whole of it once: tests weakened together with their kernel."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.tests.bypass.tree import KERNELS, MANIFEST, TESTS, Tree, copy_of
from tools.trust import gate, replay
from tools.trust.revision import Git
from tools.trust.stages import PACKAGES

ROOT = Path(__file__).resolve().parents[3]
_NORM = f"{MANIFEST}ops/rms_norm.toml"
# One comparison of the conformance suite, seconds; the gate's replay runs all of it.
_HOLD = """
import tops_manifest
from tops_tests import subject

op = tops_manifest.op("rms_norm")
subject.measure(subject.dispatched(op), subject.case(op, {"B": (4,), "D": 64}), "fwd")
"""
_SLOPPY = """

_exact = rms_norm


def rms_norm(x, *args, **options):
    return 1.01 * _exact(x, *args, **options)
"""
_DTYPES = ('X = ["float32", "bfloat16"]', 'X = ["float32", "bfloat16", "float16"]')


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Tree:
    return copy_of(ROOT, tmp_path_factory.mktemp("copy"))


@pytest.fixture
def tree(copied):
    yield copied
    copied.restore()


def _run(tree: Tree, *command: str) -> tuple[int, str]:
    path = os.pathsep.join(str(tree.root / stage.folder / "src") for stage in PACKAGES)
    ran = subprocess.run(
        [sys.executable, "-m", *command], cwd=tree.root, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, ran.stdout + ran.stderr


def test_the_copy_keeps_its_locks(tree):
    assert _run(tree, "tops_manifest", "check")[0] == 0
    assert _run(tree, "tops_tests", "tolerances", "--check")[0] == 0


def test_a_manifest_dtype_edited_under_its_version_is_caught_by_the_lock(tree):
    tree.replace(_NORM, *_DTYPES)
    status, said = _run(tree, "tops_manifest", "check")
    assert status == 1
    assert "op.version" in said


def test_a_manifest_dtype_that_was_not_locked_is_caught(tree):
    tree.replace(_NORM, *_DTYPES)
    tree.replace(_NORM, "version = 1", "version = 2")
    status, said = _run(tree, "tops_manifest", "check")
    assert status == 1
    assert "tops-manifest lock" in said


def test_a_lock_edited_by_hand_is_caught(tree):
    tree.replace(f"{MANIFEST}manifest.lock", 'contract = "', 'contract = "0000')
    status, said = _run(tree, "tops_manifest", "check")
    assert status == 1
    assert "manifest.lock" in said


def test_a_contract_cannot_be_locked_under_its_old_version(tree):
    tree.replace(_NORM, *_DTYPES)
    assert _run(tree, "tops_manifest", "lock")[0] == 1
    assert tree.git("status", "--porcelain").split() == ["M", _NORM]


def test_a_tolerance_edited_beside_its_lock_is_caught(tree):
    tree.replace(f"{TESTS}tolerances.py", '"fwd", ("y",), float32=1e-6', '"fwd", ("y",), float32=1e-1')
    status, said = _run(tree, "tops_tests", "tolerances", "--check")
    assert status == 1
    assert "bump tops-tests and say why" in said


def test_a_tolerance_weakened_by_the_rules_together_with_its_kernel_fails_the_base_replay(tree):
    """Version, changelog, table and lock all say so; the tests as they were do not."""
    tree.replace(f"{TESTS}tolerances.py", '"fwd", ("y",), float32=1e-6', '"fwd", ("y",), float32=1e-1')
    tree.replace(f"{TESTS}tolerances.lock", '"rms_norm/float32/y/fwd": 1e-06', '"rms_norm/float32/y/fwd": 0.1')
    tree.replace("packages/tops-tests/pyproject.toml", 'version = "0.', 'version = "1.')
    version = tomllib.loads((tree.root / "packages/tops-tests/pyproject.toml").read_text())["project"]["version"]
    tree.replace(
        "CHANGELOG.md", "## tops-tests\n", f"## tops-tests\n\n### {version}\n\n- A tolerance of rms_norm is 0.1 now.\n"
    )
    tree.append(f"{KERNELS}__init__.py", _SLOPPY)
    head = tree.commit()
    verdict = gate.judge(Git(tree.root), "clean", head)
    assert not {"tolerance-ratchet", "stage-gate"} & {fault.check for fault in verdict.faults}
    assert verdict.needs_replay
    (fault,) = replay.check(Git(tree.root), verdict.base, head, built=False, commands=[("-c", _HOLD)])
    assert fault.check == "base-replay"
    assert "the label contract-change; an owner's approval; a higher version of tops-kernels" in fault.do
