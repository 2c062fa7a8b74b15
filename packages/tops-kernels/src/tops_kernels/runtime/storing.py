"""Files that are whole or absent: written beside their place and renamed, read up to a bound. A full disk costs the cache, not the program."""

import logging
import os
import stat
import time
import uuid
from pathlib import Path

_log = logging.getLogger("tops_kernels")
_ROOT = Path(__file__).parent.parent  # the package's folder
_INSTALLED = _ROOT.parent if _ROOT.parent.name in ("site-packages", "dist-packages") else _ROOT
_PART = ".part"  # the ending of files that are being written
_STALE = 3600.0  # seconds: nothing here takes as long to write
_warned: set[str] = set()


def warn_once(what: str, message: str) -> None:
    """A warning through the logger "tops_kernels" (stderr, unless the program says otherwise), once a process for each `what`.

    Never an exception, whatever the warning filters say: what is warned of is a cache that is not there, and the program goes on.
    """
    if what not in _warned:
        _warned.add(what)
        _log.warning(message)


def warn(message: str) -> None:
    """As `warn_once`, each time."""
    _log.warning(message)


def write_whole(path: Path, data: bytes) -> bool:
    """Writes a file so that any reader, and whoever comes after a crash, sees all of it or what was there before.

    Makes the folders above. Never writes beside installed code.
    Returns: whether it was written. False (disk full or read-only, no permission) has warned, once a process.
    """
    if path.resolve().is_relative_to(_INSTALLED):
        warn_once("storing", f"{path} is beside installed code; nothing is written there. Set TOPS_WORKSPACE elsewhere")
        return False
    part = path.parent / f".{os.getpid()}-{uuid.uuid4().hex}{_PART}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:  # tidied up after, and raised again
            part.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        warn_once(
            "storing",
            f"cannot write {path}: {reason}; going on without. Set TOPS_WORKSPACE, or what names this place, to one with room",
        )
        return False
    return True


def read_whole(path: Path, max_bytes: int) -> bytes | None:
    """A regular file's content; None where it is missing, unreadable, no regular file or longer than `max_bytes`."""
    try:
        if not _fits(path.stat(), max_bytes):  # before it is opened: opening a pipe waits for its other end
            return None
        with path.open("rb") as file:
            if not _fits(os.fstat(file.fileno()), max_bytes):
                return None
            data = file.read(max_bytes + 1)
    except OSError:
        return None
    return data if len(data) <= max_bytes else None


def _fits(found: os.stat_result, max_bytes: int) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_size <= max_bytes


def sweep(folder: Path) -> None:
    """Removes what writers that were killed left in a folder, an hour later."""
    try:
        for path in folder.iterdir():
            if path.name.endswith(_PART) and time.time() - path.lstat().st_mtime > _STALE:
                path.unlink(missing_ok=True)
    except OSError:
        pass  # no such folder, or not ours to clean


def _sync_folder(folder: Path) -> None:
    """The rename itself on disk; not every file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
