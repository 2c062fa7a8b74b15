"""Importing the package and looking up every public name: no backend, no Pallas, no file but its own, nothing of jax's state or the process's changed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_PROBE = r"""
import json, os, sys
import jax, numpy
before = set(sys.modules)
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import tops_kernels
at_once = sorted(set(sys.modules) - before)
for name in tops_kernels.__all__:
    getattr(tops_kernels, name)
from jax._src import xla_bridge
print(json.dumps({
    "at once": at_once,
    "modules": sorted(set(sys.modules) - before),
    "opened": opened,
    "backends": xla_bridge.backends_are_initialized(),
    "package": os.path.dirname(tops_kernels.__file__),
    "manifest": os.path.dirname(sys.modules["tops_manifest"].__file__),
    "stdlib": os.path.dirname(os.__file__),
    "jax": os.path.dirname(jax.__file__),
}))
"""


@pytest.fixture(scope="module")
def probe() -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=True, timeout=120)
    return dict(json.loads(done.stdout))


def test_no_backend_is_initialised(probe: dict[str, object]) -> None:
    assert probe["backends"] is False


def test_ops_come_at_their_first_use(probe: dict[str, object]) -> None:
    modules = probe["at once"]
    assert isinstance(modules, list)
    assert [name for name in modules if name.startswith("tops_")] == ["tops_kernels"]


def test_pallas_and_what_only_tests_need_stay_out(probe: dict[str, object]) -> None:
    modules = probe["modules"]
    assert isinstance(modules, list)
    assert "tops_kernels.ops.matmul.op" in modules
    for name in ("jax.experimental.pallas", "jax._src.pallas"):
        assert name not in modules, name
    roots = {name.split(".")[0] for name in modules}
    assert {name for name in roots if name.startswith("tops_")} == {"tops_kernels", "tops_manifest"}
    assert not roots & {"pytest", "hypothesis", "matplotlib", "rich"}


def test_no_file_is_read_but_code_of_its_own_of_jax_and_of_the_standard_library(probe: dict[str, object]) -> None:
    own = tuple(f"{probe[name]}/" for name in ("package", "manifest", "stdlib", "jax"))
    opened = probe["opened"]
    assert isinstance(opened, list)
    assert opened, "the hook saw nothing: this test could not fail"
    assert [path for path in opened if not path.startswith(own)] == []


def test_the_package_is_typed_and_every_public_name_is_documented() -> None:
    import tops_kernels

    assert (Path(tops_kernels.__file__).parent / "py.typed").is_file()
    for name in tops_kernels.__all__:
        assert (getattr(tops_kernels, name).__doc__ or "").strip(), name
