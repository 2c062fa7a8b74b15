"""One process at a time for one unit of work, across processes. The lock of a process that died is free at once.

The kernel drops a flock when its last holder dies. What is written into the lock file, the owner's process id, when that process
started and on which machine, is for messages, and for the one case that flock cannot see: an owner that died and left a forked child
which still holds its files open.
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tops_kernels.runtime.storing import warn_once

_POLL = 0.02  # seconds between two tries
_ORPHANED = 3.0  # seconds that a lock must be held in the name of a dead owner: at a death the kernel needs none


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Holds the lock file `path` for the block. Where the place cannot be written to, the block runs without.

    Args:
      path: made where it is missing, removed afterwards.
      waiting: called with a line for people, "process 12 has it since 3 s", before each new try.
    """
    handle = _acquire(path, waiting)
    try:
        yield
    finally:
        if handle is not None:
            # Removed while it is held: who opened it meanwhile sees that the name is gone, and starts anew.
            with contextlib.suppress(OSError):
                if _is_named(handle, path):
                    path.unlink()
            os.close(handle)


def _acquire(path: Path, waiting: Callable[[str], None]) -> int | None:
    try:
        import fcntl  # here: not on Windows
    except ImportError:
        return None  # two processes may do the same work twice; what they store is whole all the same
    dead_since: float | None = None
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            warn_once("locking", f"cannot lock {path}: {error.strerror or error}; going on without")
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _read(handle)
            if owner is None or not is_dead(owner):
                dead_since = None
            elif dead_since is None:
                dead_since = time.monotonic()
            elif time.monotonic() - dead_since > _ORPHANED and _is_named(handle, path):
                # Not at once: the next owner holds the lock for a moment before its name is written. The orphan keeps the old file;
                # the name is free for a new one.
                with contextlib.suppress(OSError):
                    path.unlink()
            os.close(handle)
            waiting(_said(owner))
            time.sleep(_POLL)
            continue
        except OSError as error:  # a file system without locks
            os.close(handle)
            warn_once("locking", f"cannot lock {path}: {error.strerror or error}; going on without")
            return None
        if not _is_named(handle, path):  # its last owner removed it between our opening and locking it
            os.close(handle)
            continue
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(_myself()).encode(), 0)
        return handle


def is_dead(owner: dict[str, Any]) -> bool:
    """Whether the process that wrote this is gone for certain: same machine, and no such process or one started at another time."""
    pid = owner.get("pid")
    if owner.get("host") != _host() or not isinstance(pid, int) or pid < 1:
        return False
    started = _started(pid)
    return started is None or (owner.get("started") is not None and started != owner["started"])


def _myself() -> dict[str, Any]:
    return {"pid": os.getpid(), "started": _started(os.getpid()), "host": _host(), "since": time.time()}


def _host() -> str:
    """A process id means something within one machine, and on Linux within one pid namespace."""
    try:
        return f"{platform.node()} {Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return platform.node()


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks: tells a process from a later one of the same number. None: no such process."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if after_name[0] in "ZX" else after_name[19]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)  # no signal: only asks
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return "running"


def _is_named(handle: int, path: Path) -> bool:
    """Whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def _read(handle: int) -> dict[str, Any] | None:
    try:
        owner = json.loads(os.pread(handle, 4096, 0))
    except (OSError, ValueError):
        return None  # not yet written
    return owner if isinstance(owner, dict) else None


def _said(owner: dict[str, Any] | None) -> str:
    since = owner.get("since") if owner else None
    if owner is None or not isinstance(since, int | float):
        return "another process has it"
    return f"process {owner.get('pid')} has it since {max(time.time() - since, 0):.0f} s"
