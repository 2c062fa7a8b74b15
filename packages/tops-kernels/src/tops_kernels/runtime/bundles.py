"""Units for somewhere else: a folder or a tar file of <name>.unit files and `artifacts.lock`, their sha256, which is written last.

Bundles come from elsewhere. So nothing in one is believed before it is checked: names are plain ones, members are regular files, sizes
are bounded, nothing is unpacked to where it says, and a unit is parsed after its checksum held.
"""

import dataclasses
import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tops_kernels.runtime.artifacts import ENDING, MAX_BYTES
from tops_kernels.runtime.spec import FORMAT, canonical
from tops_kernels.runtime.storing import read_whole, warn, write_whole
from tops_kernels.runtime.toolchain import version
from tops_kernels.runtime.variables import VERIFY
from tops_kernels.runtime.workspace import is_plain_name

LOCK = "artifacts.lock"
MAX_FILES = 100_000
MAX_LOCK = 32 << 20
_MAX_TOTAL = 256 << 30


class BundleError(ValueError):
    """A bundle that is not what it should be; the message names it, the file in it and what is wrong."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What the lock says of a file."""

    sha256: str
    size: int


def write_lock(folder: Path, names: Iterable[str]) -> None:
    """Makes a folder of units a bundle: the last thing that is written. Raises BundleError where it cannot be."""
    files = {}
    for name in sorted(names):
        data = read_whole(folder / name, MAX_BYTES)
        if data is None:
            raise BundleError(f"{folder / name}: cannot be read back")
        files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    lock = {"format": FORMAT, "tops-kernels": version("tops-kernels"), "files": files}
    if not write_whole(folder / LOCK, canonical(lock) + b"\n"):
        raise BundleError(f"{folder / LOCK}: cannot be written")


def read_lock(data: bytes, where: str) -> Mapping[str, Entry]:
    """The files of a bundle by name. Raises BundleError for anything but a lock of this format."""
    try:
        lock = json.loads(data, object_pairs_hook=_once)
        if lock["format"] != FORMAT:
            raise ValueError(f"format is {lock['format']!r}; expected {FORMAT}: another version of tops wrote it")
        files = {name: Entry(_digest(one["sha256"]), _size(one["bytes"])) for name, one in lock["files"].items()}
        if len(files) > MAX_FILES or sum(one.size for one in files.values()) > _MAX_TOTAL:
            raise ValueError(f"{len(files)} files; expected at most {MAX_FILES}, and {_MAX_TOTAL >> 30} GiB")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BundleError(f"{where}: {LOCK}: {type(error).__name__}: {error}") from None
    for name in files:
        check_name(name, where)
    return files


def check_name(name: object, where: str) -> None:
    """Raises BundleError for what could name anything but a unit beside the lock."""
    if not is_plain_name(name) or not str(name).endswith(ENDING):
        raise BundleError(f"{where}: a file is called {name!r}; expected a plain name that ends in {ENDING}")


def check(data: bytes, entry: Entry, name: str, where: str) -> None:
    """Holds a file against the lock. Raises BundleError; with TOPS_VERIFY=0 warns, each time."""
    if not VERIFY.value():
        warn(f"{where}: {name} is not verified, by TOPS_VERIFY=0; for debugging only")
        return
    if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise BundleError(f"{where}: {name}: its sha256 is not the one in {LOCK}; it is damaged or was changed")


def read(path: Path) -> Iterator[tuple[str, bytes]]:
    """The units of a bundle in a folder or a tar file, each checked against the lock before it is given. Raises BundleError."""
    yield from _read_folder(path) if path.is_dir() else _read_tar(path)


def _read_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    where = str(folder)
    try:
        found = sorted(os.listdir(folder))
    except OSError as error:
        raise BundleError(f"{where}: {error.strerror or error}") from None
    for name in found:
        if not stat.S_ISREG((folder / name).lstat().st_mode):
            raise BundleError(f"{where}: {name} is a link, a folder or a device; expected regular files alone")
    files = _lock_of(read_whole(folder / LOCK, MAX_LOCK), where)
    _check_all_there(files, [name for name in found if name != LOCK], where)
    for name, entry in files.items():
        data = read_whole(folder / name, min(entry.size, MAX_BYTES))
        if data is None:
            raise BundleError(f"{where}: {name} is not of {entry.size} bytes as {LOCK} says, or cannot be read")
        check(data, entry, name, where)
        yield name, data


def _read_tar(path: Path) -> Iterator[tuple[str, bytes]]:
    """Members are read, never extracted."""
    where = str(path)
    try:
        with tarfile.open(path, "r:") as archive:  # not compressed: a small file cannot become a huge one
            members: dict[str, tarfile.TarInfo] = {}
            for member in archive:
                if member.name in members:
                    raise BundleError(f"{where}: {member.name} is there twice")
                if not member.isreg() or member.issparse():
                    raise BundleError(
                        f"{where}: {member.name!r} is a link, a folder or a device; expected regular files alone"
                    )
                if member.name != LOCK:
                    check_name(member.name, where)
                if member.size > (MAX_LOCK if member.name == LOCK else MAX_BYTES) or len(members) > MAX_FILES:
                    raise BundleError(f"{where}: {member.name} is of {member.size} bytes, too many")
                members[member.name] = member
            lock = members.pop(LOCK, None)
            files = _lock_of(None if lock is None else _content(archive, lock, where), where)
            _check_all_there(files, list(members), where)
            for name, entry in files.items():
                data = _content(archive, members[name], where)
                check(data, entry, name, where)
                yield name, data
    except (OSError, tarfile.TarError, ValueError, EOFError) as error:
        if isinstance(error, BundleError):
            raise
        raise BundleError(f"{where}: no bundle: {error}") from None


def write_tar(folder: Path, path: Path) -> None:
    """A bundle's folder as one file, the same bytes for the same units: sorted, without times, owners or modes. Raises BundleError."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in [*sorted(name for name in os.listdir(folder) if name.endswith(ENDING)), LOCK]:
            data = read_whole(folder / name, MAX_BYTES)
            if data is None:
                raise BundleError(f"{folder / name}: cannot be read back")
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
    if not write_whole(path, buffer.getvalue()):
        raise BundleError(f"{path}: cannot be written")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, where: str) -> bytes:
    file = archive.extractfile(member)
    data = b"" if file is None else file.read(member.size + 1)
    if len(data) != member.size:
        raise BundleError(f"{where}: {member.name} is cut off")
    return data


def _lock_of(data: bytes | None, where: str) -> Mapping[str, Entry]:
    if data is None:
        raise BundleError(f"{where}: no {LOCK}: no bundle, or one that was not finished")
    return read_lock(data, where)


def _check_all_there(files: Mapping[str, Entry], found: list[str], where: str) -> None:
    for name in sorted(set(files) ^ set(found)):
        raise BundleError(f"{where}: {name} is {'missing' if name in files else f'not in {LOCK}'}")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key is given twice")
    return result


def _digest(value: object) -> str:
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"sha256 is {value!r}")
    return value


def _size(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_BYTES:
        raise ValueError(f"bytes is {value!r}; expected a number to {MAX_BYTES}")
    return value
