"""How many compilers fit here at once: by cores, and by memory, which runs out first."""

import os
from pathlib import Path

PER_COMPILER = 3 << 30  # bytes: jax, a TPU's compiler and a large program; measured peaks are half of it
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")  # of a container: version 2


def available() -> int | None:
    """Bytes that a new process can take without swapping or being killed; None where nobody says."""
    found = []
    for line in _text(_MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    limit, used = _text(_CGROUP / "memory.max").strip(), _text(_CGROUP / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        found.append(max(int(limit) - int(used), 0))
    return min(found, default=None)


def compilers(wanted: int | None = None) -> int:
    """Processes to compile in at once, at least one. `wanted`: by the user, who knows better."""
    if wanted is not None:
        return max(wanted, 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room = available()
    return max(1, cores if room is None else min(cores, room // PER_COMPILER))


def is_tight() -> bool:
    """Whether there is not even room for half a compiler: time to wait for those that run."""
    room = available()
    return room is not None and room < PER_COMPILER // 2


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
