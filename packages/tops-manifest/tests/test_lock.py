"""manifest.lock: no contract changes unseen, and none changes under its version."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tops_manifest import contract
from tops_manifest.check import check, relock
from tops_manifest.cli import main
from tops_manifest.errors import Fault
from tops_manifest.tree import PACKAGE, Tree, checkout, installed

_CHANGE = ('vjp = ["x", "scale"]', 'vjp = ["x"]')  # of the contract


@pytest.fixture
def files(tmp_path: Path) -> Tree:
    """A checkout with the packaged files, locked."""
    shutil.copytree(contract.ops_folder(), tmp_path / PACKAGE / "ops")
    tree = checkout(tmp_path)
    assert relock(tree)[0] == []
    assert check(tree) == []
    return tree


def _edit(files: Tree, *pairs: tuple[str, str], op: str = "rms_norm") -> None:
    path = files.ops / f"{op}.toml"
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def _lock(files: Tree) -> list[Fault]:
    before = files.lock.read_bytes()
    faults = relock(files)[0]
    if faults:
        assert files.lock.read_bytes() == before, "a refused lock must leave the file as it was"
    return faults


def _keys(faults: list[Fault]) -> list[tuple[str, str]]:
    return [(fault.file, fault.key) for fault in faults]


def test_an_edit_without_lock_is_a_fault_and_lock_mends_it(files: Tree) -> None:
    _edit(files, ("B*D*(3 + has_scale)", "B*D*(4 + has_scale)"))
    assert _keys(check(files)) == [("manifest.lock", "ops.rms_norm.cost"), ("docs/ops.md", "(file)")]
    assert "run `tops-manifest lock`" in check(files)[0].expected
    assert _lock(files) == []
    assert check(files) == []


def test_comments_and_order_need_no_lock(files: Tree) -> None:
    _edit(files, ("schema = 1", "# a comment\nschema = 1"))
    assert check(files) == []


def test_a_changed_contract_under_the_same_version_is_refused_by_lock_and_by_check(files: Tree) -> None:
    _edit(files, _CHANGE)
    for faults in (_lock(files), check(files)):
        assert _keys(faults) == [("ops/rms_norm.toml", "op.version")]
        assert faults[0].value == "1"
        assert faults[0].expected.startswith("2: the contract is not the one that was locked as version 1")


def test_a_changed_contract_with_a_new_version_wants_a_lock(files: Tree) -> None:
    _edit(files, _CHANGE, ("version = 1", "version = 2"))
    assert _keys(check(files)) == [
        ("manifest.lock", "ops.rms_norm.version"),
        ("manifest.lock", "ops.rms_norm.contract"),
        ("docs/ops.md", "(file)"),
    ]
    assert _lock(files) == []
    assert check(files) == []


def test_a_version_never_goes_down(files: Tree) -> None:
    _edit(files, _CHANGE, ("version = 1", "version = 3"))
    assert _lock(files) == []
    _edit(files, ("version = 3", "version = 2"))
    for faults in (_lock(files), check(files)):
        assert _keys(faults) == [("ops/rms_norm.toml", "op.version")]
        assert faults[0].expected == "3 or more: that is locked"


def test_going_back_to_an_older_contract_needs_a_new_version_too(files: Tree) -> None:
    _edit(files, _CHANGE, ("version = 1", "version = 2"))
    assert _lock(files) == []
    _edit(files, (_CHANGE[1], _CHANGE[0]))
    assert _keys(_lock(files)) == [("ops/rms_norm.toml", "op.version")]
    _edit(files, ("version = 2", "version = 3"))
    assert _lock(files) == []


def test_an_op_goes_only_after_it_was_deprecated(files: Tree) -> None:
    removed = files.ops / "rms_norm.toml"
    text = removed.read_text()
    removed.unlink()
    for faults in (_lock(files), check(files)):
        assert _keys(faults) == [("ops/rms_norm.toml", "(file)")]
        assert 'set status = "deprecated"' in faults[0].expected
    removed.write_text(text.replace('status = "implemented"', 'status = "deprecated"'))
    assert _lock(files) == []
    removed.unlink()
    assert _keys(check(files)) == [("manifest.lock", "ops.rms_norm"), ("docs/ops.md", "(file)")]
    assert _lock(files) == []
    assert check(files) == []
    assert "rms_norm]" not in files.lock.read_text().replace("add_rms_norm]", "")


def test_a_new_op_wants_a_lock(files: Tree) -> None:
    text = (files.ops / "rms_norm.toml").read_text().replace('name = "rms_norm"', 'name = "other_norm"')
    (files.ops / "other_norm.toml").write_text(text)
    assert _keys(check(files)) == [("manifest.lock", "ops.other_norm"), ("docs/ops.md", "(file)")]
    assert _lock(files) == []
    assert check(files) == []


def test_the_table_of_ops_must_be_in_step(files: Tree) -> None:
    assert files.table is not None
    files.table.write_text(files.table.read_text().replace("matmul", "matmull"))
    assert _keys(check(files)) == [("docs/ops.md", "(file)")]
    files.table.unlink()
    assert check(files)[0].value == "nothing there"
    files.table.write_bytes(b"\xff")
    assert check(files)[0].value == "other text"
    assert main(["table", "--write", "--root", str(files.root)]) == 0
    assert check(files) == []


def test_a_package_installed_alone_has_no_table_to_be_in_step(files: Tree) -> None:
    alone = Tree(files.package, None)
    assert files.table is not None
    files.table.unlink()
    assert check(alone) == []
    assert relock(alone)[0] == []
    assert not files.table.exists()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("<<<<<<< HEAD\nschema = 1", "(file)"),
        ("schema = 2", "schema"),
        ("schema = 1\nops = 3", "ops"),
        ("schema = 1\n[ops.rms_norm]\nversion = 1", "ops.rms_norm.contract"),
        ("schema = 1\n[ops.rms_norm]\nversion = true", "ops.rms_norm.version"),
        ('schema = 1\n[ops.rms_norm]\ncontract = "12"', "ops.rms_norm.contract"),
        ('schema = 1\n[ops.rms_norm]\nsha = "12"', "ops.rms_norm.sha"),
        ("schema = 1\nby = 'hand'", "by"),
        ("\x00\xff", "(file)"),
        ("", "schema"),
    ],
)
def test_a_lock_that_was_edited_or_half_merged_is_a_fault_and_is_not_written_over(
    files: Tree, text: str, key: str
) -> None:
    files.lock.write_bytes(text.encode("latin-1"))
    assert ("manifest.lock", key) in _keys(check(files))
    assert ("manifest.lock", key) in _keys(_lock(files))


def test_without_a_lock_every_op_is_told(files: Tree) -> None:
    files.lock.unlink()
    assert {key for _, key in _keys(check(files))} == {f"ops.{name}" for name in contract.op_names()}
    assert relock(files)[0] == []
    assert check(files) == []


def test_faults_of_files_keep_the_lock_as_it_was_and_are_not_told_as_missing_ops(files: Tree) -> None:
    _edit(files, ('status = "implemented"', 'status = "done"'))
    assert _keys(check(files)) == [("ops/rms_norm.toml", "op.status")]
    assert _keys(_lock(files)) == [("ops/rms_norm.toml", "op.status")]


def test_faults_of_several_files_and_the_lock_come_at_once(files: Tree) -> None:
    _edit(files, ('status = "implemented"', 'status = "done"'))
    _edit(files, ("vmap = true", "vmap = 1"), op="matmul")
    _edit(files, ("B*D*(4 + has_scale)", "B*D*5"), op="add_rms_norm")
    assert set(_keys(check(files))) == {
        ("ops/rms_norm.toml", "op.status"),
        ("ops/matmul.toml", "contract.vmap"),
        ("manifest.lock", "ops.add_rms_norm.cost"),
    }


def _junk(path: Path) -> None:
    path.write_bytes(b"\x00\xff\x7fELF" * 100)


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 24)  # sparse; a manifest file is a page or two


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _deep(path: Path) -> None:
    path.write_text("schema = " + "[" * 50_000)


@pytest.mark.parametrize("make", [_junk, _folder, _loop, _pipe, _large, _empty, _deep], ids=lambda make: make.__name__)
def test_a_file_that_is_none_is_a_fault_of_that_file_and_never_a_traceback(
    files: Tree, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    make(files.ops / "broken.toml")
    assert {file for file, _ in _keys(check(files))} == {"ops/broken.toml"}
    for command in (["check"], ["lock"], ["list"], ["table"], ["show", "broken"]):
        assert main([*command, "--root", str(files.root)]) == 1
        told = capsys.readouterr()
        assert "ops/broken.toml: " in told.out + told.err
        assert "; expected " in told.out + told.err
    assert main(["show", "matmul", "--root", str(files.root)]) == 0, "one bad file must not hide the others"


def test_a_file_far_too_large_is_not_read(files: Tree) -> None:
    _large(files.ops / "broken.toml")
    assert str(check(files)[0]) == "ops/broken.toml: (file): got 16777216 bytes; expected at most 1048576"


def test_strange_file_names_are_told(files: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    (files.ops / "notes.txt").write_text("x")
    (files.ops / os.fsdecode(b"\xff.toml")).write_text("x")
    assert len(check(files)) == 2
    assert main(["check", "--root", str(files.root)]) == 1
    assert "notes.txt" in capsys.readouterr().out


def test_an_empty_folder_is_a_fault(files: Tree) -> None:
    shutil.rmtree(files.ops)
    files.ops.mkdir()
    assert ("ops", "(folder)") in _keys(check(files))


def test_what_is_packaged_is_in_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "faults": []}
    assert installed().lock.is_file(), "a wheel must carry the lock"
