"""Attempts on what is locked, judged by the packages' own commands on a copy: what the stage gate compares with the base, these
compare within the tree. And the whole of it once: tests weakened together with their kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.tests.bypass.tree import MANIFEST, TESTS, Tree, copy_of
from tools.trust.stages import PACKAGES

ROOT = Path(__file__).resolve().parents[3]
_NORM = f"{MANIFEST}ops/rms_norm.toml"
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
