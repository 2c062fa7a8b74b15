from pathlib import Path

from tools.tests.bypass.workspace import workspace, write
from tools.trust import purity

ROOT = Path(__file__).resolve().parents[2]
_KERNELS = "packages/tops-kernels/src/tops_kernels/__init__.py"


def test_importing_the_kernels_changes_nothing_that_belongs_to_others():
    assert [str(fault) for fault in purity.check(ROOT)] == []


def test_each_kind_of_change_is_named_and_nothing_else(tmp_path):
    code = {
        "jax.config.jax_enable_x64": 'jax.config.update("jax_enable_x64", True)',
        "os.environ.X_TOPS": 'os.environ["X_TOPS"] = "1"',
        "meta_path": "sys.meta_path.reverse()",
        "jax.shortcut": "jax.shortcut = 1",
        "jax.numpy.dot": "jax.numpy.dot = jax.numpy.matmul",
        "numpy.errors": "numpy.seterr(all='raise')",
        "jax backends": "jax.devices()",
    }
    # A submodule that is imported for the first time is no change.
    imports = "import os, sys, jax, numpy\nimport jax.experimental.pallas\nimport numpy.polynomial\n"
    write(workspace(tmp_path), _KERNELS, imports + "\n".join(code.values()) + "\n")
    found = {fault.what.removeprefix("importing tops_kernels changes ") for fault in purity.check(tmp_path)}
    assert found == set(code)


def test_an_import_that_fails_is_a_fault_that_says_why(tmp_path):
    write(workspace(tmp_path), _KERNELS, "raise ImportError('no such thing')\n")
    (fault,) = purity.check(tmp_path)
    assert "no such thing" in fault.what
