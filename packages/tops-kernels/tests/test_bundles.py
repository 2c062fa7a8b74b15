"""A bundle from elsewhere: checked before it is believed, never unpacked to where it says, the same bytes when built again."""

import hashlib
import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tops_kernels.cli
from tops_kernels.runtime import artifacts, installing, storing, toolchain
from tops_kernels.runtime.artifacts import Unit, pack
from tops_kernels.runtime.bundles import LOCK, BundleError, read, write_lock, write_tar
from tops_kernels.runtime.installing import install
from tops_kernels.runtime.spec import Spec, spec


@pytest.fixture(autouse=True)
def _workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setattr(storing, "_warned", set())


def units() -> list[Unit]:
    specs = [spec("rms_norm", {"x": np.ones((rows, 8), np.float32)}, target="cpu") for rows in (1, 2, 3)]
    draw = random.Random(1)
    return [Unit(one, ((one.arguments[0].shape, "float32"),), True, draw.randbytes(300)) for one in specs]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "bundle"
    place.mkdir()
    for unit in units():
        (place / f"{unit.spec.name}.unit").write_bytes(pack(unit))
    write_lock(place, [f"{unit.spec.name}.unit" for unit in units()])
    return place


@pytest.fixture
def tar(folder: Path, tmp_path: Path) -> Path:
    write_tar(folder, tmp_path / "bundle.tar")
    return tmp_path / "bundle.tar"


def tarred(path: Path, members: list[tuple[Any, bytes]]) -> Path:
    """A tar file of members given as names or TarInfos."""
    with tarfile.open(path, "w") as archive:
        for member, data in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if info.isreg():
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def locked(content: dict[str, bytes], **other: Any) -> bytes:
    entries = {name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in content.items()}
    return json.dumps({"format": 1, "tops-kernels": "0", "files": entries} | other).encode()


def everything(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_what_is_installed_is_what_was_built(form: str, request: pytest.FixtureRequest) -> None:
    done = install(str(request.getfixturevalue(form)))
    assert set(done.names) == {unit.spec.name for unit in units()}
    assert done.ignored == ()
    for unit in units():
        assert artifacts.find(unit.spec) == unit


def test_the_same_units_make_the_same_bytes(folder: Path, tar: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    for path in sorted(folder.iterdir(), reverse=True):
        (again / path.name).write_bytes(path.read_bytes())
        os.utime(again / path.name, (1, 1))
    os.chmod(again / LOCK, 0o600)
    write_tar(again, tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == tar.read_bytes()


def test_of_400_damaged_bundles_none_is_installed_as_if_it_were_whole(tar: Path, tmp_path: Path) -> None:
    whole, draw = tar.read_bytes(), random.Random(2)
    right = dict(read(tar))
    damaged = tmp_path / "damaged.tar"
    refused = 0
    for number in range(400):
        at = draw.randrange(len(whole))
        match number % 4:
            case 0 | 1:
                data = whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :]
            case 2:
                data = whole[:at]
            case _:
                data = whole[:at] + draw.randbytes(draw.randrange(1, 700)) + whole[at + draw.randrange(700) :]
        damaged.write_bytes(data)
        try:
            found = dict(read(damaged))
        except BundleError:
            refused += 1
        else:
            assert found == right  # a bit that nothing hangs on: padding, or an owner
    assert refused > 250


@pytest.mark.parametrize(
    "name",
    ["../evil.unit", "/etc/evil.unit", "a/b.unit", ".hidden.unit", "evil", "x\n.unit", "-x.unit", "é.unit", "C:x.unit"],
)
@pytest.mark.parametrize("place", ["tar", "lock"])
def test_a_name_that_could_lead_elsewhere_is_refused(name: str, place: str, tmp_path: Path) -> None:
    member = name if place == "tar" else "plain.unit"
    bundle = tarred(tmp_path / "b.tar", [(member, b"x"), (LOCK, locked({name: b"x"}))])
    before = everything(tmp_path)
    with pytest.raises(BundleError, match="a file is called"):
        install(str(bundle))
    assert everything(tmp_path) == before


def kind(what: bytes, name: str = "a.unit") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = what, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    "what",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
        tarfile.GNUTYPE_SPARSE,
    ],
)
def test_a_tar_file_of_anything_but_regular_files_is_refused(what: bytes, tmp_path: Path) -> None:
    bundle = tarred(tmp_path / "b.tar", [(kind(what), b""), (LOCK, locked({"a.unit": b""}))])
    with pytest.raises(BundleError, match=r"link|no bundle"):
        install(str(bundle))


@pytest.mark.parametrize(
    "make", [lambda path: path.symlink_to("/etc/passwd"), lambda path: path.mkdir(), lambda path: os.mkfifo(path)]
)
def test_a_folder_with_anything_but_regular_files_is_refused(make: Callable[[Path], None], folder: Path) -> None:
    make(folder / "a.unit")
    with pytest.raises(BundleError, match=r"a\.unit is a link, a folder or a device"):
        install(str(folder))


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        (b"", "artifacts.lock"),
        (b"[]", "artifacts.lock"),
        (locked({}, format=2), "another version of tops"),
        (locked({}, files=[]), "artifacts.lock"),
        (locked({}, files={"a.unit": {"sha256": "0" * 63, "bytes": 1}}), "sha256 is"),
        (locked({}, files={"a.unit": {"sha256": "0" * 64, "bytes": -1}}), "bytes is -1"),
        (locked({}, files={"a.unit": {"sha256": "0" * 64, "bytes": 1 << 60}}), "bytes is"),
        (b'{"format": 1, "format": 1, "files": {}}', "a key is given twice"),
        (b"[" * 100_000, "artifacts.lock"),
        (locked({"a.unit": b"y"}), "its sha256 is not the one"),
        (locked({"a.unit": b"x", "b.unit": b""}), r"b\.unit is missing"),
        (locked({}), r"a\.unit is not in artifacts\.lock"),
        (None, r"no artifacts\.lock"),
    ],
)
def test_a_lock_that_is_none_or_does_not_hold_is_refused(lock: bytes | None, words: str, tmp_path: Path) -> None:
    members: list[tuple[Any, bytes]] = [("a.unit", b"x")]
    bundle = tarred(tmp_path / "b.tar", members if lock is None else [*members, (LOCK, lock)])
    with pytest.raises(BundleError, match=words):
        install(str(bundle))


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    bundle = tarred(tmp_path / "b.tar", [("a.unit", b"x"), ("a.unit", b"y"), (LOCK, locked({"a.unit": b"x"}))])
    with pytest.raises(BundleError, match="is there twice"):
        install(str(bundle))


def test_nothing_is_parsed_before_its_checksum_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def parsed(data: bytes) -> Unit:
        raise AssertionError("parsed")

    monkeypatch.setattr(installing, "unpack", parsed)
    name = f"{units()[0].spec.name}.unit"
    for path in folder.glob("*.unit"):
        path.write_bytes(b"evil" + path.read_bytes())
    with pytest.raises(BundleError, match=r"artifacts\.lock"):
        install(str(folder))
    assert name
    assert not (tmp_path / "workspace").exists()


def test_of_a_bundle_with_one_bad_unit_none_is_installed(folder: Path, tmp_path: Path) -> None:
    last = max(folder.glob("*.unit"))
    last.write_bytes(pack(units()[0]))
    write_lock(folder, [path.name for path in folder.glob("*.unit")])
    with pytest.raises(BundleError, match="holds rms_norm-xla"):
        install(str(folder))
    assert not (tmp_path / "workspace").exists()


def test_verification_can_be_switched_off_and_warns_each_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lock = json.loads((folder / LOCK).read_text())
    for entry in lock["files"].values():
        entry["sha256"] = "0" * 64
    (folder / LOCK).write_text(json.dumps(lock))
    with pytest.raises(BundleError, match="sha256"):
        install(str(folder))
    monkeypatch.setenv("TOPS_VERIFY", "0")
    assert len(install(str(folder)).names) == 3
    warned = len(caplog.records)
    assert warned >= 3
    assert "TOPS_VERIFY=0" in caplog.text
    install(str(folder))
    assert len(caplog.records) == 2 * warned


def test_units_of_another_toolchain_are_ignored_with_one_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolchain, "version", lambda name: "9.9")
    done = install(str(folder))
    assert done.names == ()
    assert len(done.ignored) == 3
    assert len(caplog.records) == 1
    assert "3 of 3 units are ignored" in caplog.text
    assert "jaxlib" in caplog.text
    assert tops_kernels.cli.main(["install", str(folder), "--json"]) == 1
    assert all(not row["installed"] and "9.9" in row["reason"] for row in json.loads(capsys.readouterr().out))


def test_a_unit_of_another_machine_or_of_other_sources_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    one: Spec = units()[0].spec
    assert installing.mismatch(one) == ""
    monkeypatch.setattr(toolchain, "cpu", lambda: "another processor")
    assert "another processor" in installing.mismatch(one)
    monkeypatch.setattr(installing, "source_digest", lambda *_: "0")
    assert "source" in installing.mismatch(one)


def test_an_empty_name_is_no_bundle_and_not_this_folder() -> None:
    with pytest.raises(BundleError, match="name is empty"):
        install("")


def test_a_bundle_that_is_not_there_is_an_error_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert tops_kernels.cli.main(["install", "nothing-here"]) == 1
    assert "nothing-here: no such file or folder; to take bundles by name set TOPS_MIRROR" in capsys.readouterr().err


def test_a_workspace_that_cannot_be_written_is_an_error_not_half_an_installation(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "workspace").write_text("in the way")
    with pytest.raises(BundleError, match="cannot be written"):
        install(str(folder))
