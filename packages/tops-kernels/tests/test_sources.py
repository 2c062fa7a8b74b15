"""The digest of an implementation: changes with every file it is made of, and with no other."""

import shutil
from pathlib import Path

import pytest

import tops_kernels
import tops_manifest
from tops_kernels import source_digest, source_mtime
from tops_kernels.runtime import sources

KEYS = [(op.name, key) for op in tops_manifest.ops() if op.status == "implemented" for key in op.kernel_map]


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of the package that the digests are taken of, free to be changed."""
    root = tmp_path / "tops_kernels"
    shutil.copytree(Path(tops_kernels.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "_ROOT", root)
    return root


@pytest.mark.parametrize(("op", "key"), KEYS)
def test_it_covers_the_ops_folder_dispatch_and_the_argument_checks(op: str, key: str) -> None:
    root = Path(tops_kernels.__file__).parent
    names = {path.relative_to(root).as_posix() for path in sources.source_files(op, key)}
    family = tops_manifest.op(op).family
    assert {f"ops/{family}/op.py", f"ops/{family}/xla.py", "runtime/dispatch.py", "runtime/arguments.py"} <= names
    for kernel in ("pallas_tpu", "pallas_gpu"):
        assert (f"ops/{family}/{kernel}.py" in names) == (key == kernel)
    others = [name for name in names if name.startswith("ops/") and not name.startswith(f"ops/{family}/")]
    # Of another family what this one imports: pieces, never its function or an implementation.
    doors = {"op.py", "xla.py", "pallas_tpu.py", "pallas_gpu.py"}
    assert not [name for name in others if name.rpartition("/")[2] in doors]
    assert not others or family == "simple_gla"


@pytest.mark.parametrize(("op", "key"), KEYS)
def test_each_of_its_files_changes_it_and_no_other_does(copy: Path, op: str, key: str) -> None:
    before = source_digest(op, key)
    own = set(sources.source_files(op, key))
    for path in sorted(copy.rglob("*.py")):
        original = path.read_text()
        path.write_text(original + "\n# changed\n")
        assert (source_digest(op, key) != before) == (path in own), path
        path.write_text(original)
    assert source_digest(op, key) == before


def test_a_file_that_comes_to_be_imported_counts_from_then_on(copy: Path) -> None:
    before = source_digest("rms_norm", "xla")
    helper = copy / "runtime" / "helper.py"
    helper.write_text("X = 1\n")
    assert source_digest("rms_norm", "xla") == before
    xla = copy / "ops" / "rms_norm" / "xla.py"
    xla.write_text(xla.read_text() + "\ndef f() -> int:\n    from tops_kernels.runtime.helper import X\n    return X\n")
    with_helper = source_digest("rms_norm", "xla")
    assert helper in sources.source_files("rms_norm", "xla")
    helper.write_text("X = 2\n")
    assert source_digest("rms_norm", "xla") != with_helper


@pytest.mark.parametrize(
    "line", ["from tops_kernels.ops.rms_norm._pallas_gpu_twist import f", "from ._pallas_gpu_twist import f"]
)
def test_an_imported_file_counts_whatever_its_name_and_however_it_is_imported(copy: Path, line: str) -> None:
    twist = copy / "ops" / "rms_norm" / "_pallas_gpu_twist.py"
    twist.write_text("def f(y):\n    return y\n")
    xla = copy / "ops" / "rms_norm" / "xla.py"
    xla.write_text(f"{line}\n{xla.read_text()}")
    before = {key: source_digest("rms_norm", key) for key in ("xla", "pallas_tpu")}
    twist.write_text("def f(y):\n    return y * 1.5\n")
    assert all(source_digest("rms_norm", key) != digest for key, digest in before.items())


def test_a_renamed_file_changes_it(copy: Path) -> None:
    before = source_digest("matmul", "xla")
    (copy / "ops" / "matmul" / "epilogue.py").rename(copy / "ops" / "matmul" / "epilogue2.py")
    assert source_digest("matmul", "xla") != before


def test_the_mtime_is_the_newest_files(copy: Path) -> None:
    import os

    path = copy / "runtime" / "dispatch.py"
    os.utime(path, (4e9, 4e9))
    assert source_mtime("matmul", "xla") == 4e9


def test_an_unknown_op_or_implementation_is_refused() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        source_digest("nonsense", "xla")
    with pytest.raises(ValueError, match=r"matmul: implementation is 'nonsense'; expected one of xla, "):
        source_digest("matmul", "nonsense")
