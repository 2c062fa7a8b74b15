"""Writes tables of tuned configurations: whole or not at all, and nothing lost where several write at once.

Not `runtime.storing`: that one goes on without a cache where a disk is full. Here the user named the file, and is told.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tops_kernels.runtime import tables
from tops_kernels.runtime.tables import Key, Row

_PATIENCE = 60.0  # seconds that a writer waits for the others


def merge(path: Path, put: Iterable[Row], drop: Iterable[Key]) -> None:
    """Puts rows in and takes keys out, of what the file holds at that moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        held = {row.key: row for row in tables.read(path)} if path.exists() else {}
        for key in drop:
            held.pop(key, None)
        held |= {row.key: row for row in put}
        _write_whole(path, tables.dumps(held.values()))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps other writers of the folder out. The system lifts the lock of a process that ends, however it ends; no lock file is left."""
    try:
        import fcntl
    except ImportError:  # Windows: files there are written whole, and two writers at once are the caller's business
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"{folder}: another process has been writing for {_PATIENCE:.0f} s") from None
                time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def _write_whole(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:50]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:  # tidied up after, and raised again
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
