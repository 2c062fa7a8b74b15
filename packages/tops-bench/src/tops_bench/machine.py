"""Which machine this is, as far as its speed goes: what ceilings and records are tied to."""

import dataclasses
import hashlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

from tops_bench import files

_PACKAGES = ("jax", "jaxlib", "numpy", "tops-manifest", "tops-workloads", "tops-kernels", "tops-bench")


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    platform: str  # jax's: cpu, gpu, tpu
    device_kind: str
    devices: int
    host: str  # processor model and architecture
    cores: int  # that this process may use
    jaxlib: str  # its compiler makes the ceilings too
    flags: str  # XLA_FLAGS: threads and passes change what is measured

    @property
    def key(self) -> str:
        """Short digest: two runs with the same key may be compared."""
        return hashlib.sha256(files.canonical(dataclasses.asdict(self))).hexdigest()[:16]

    def __str__(self) -> str:
        where = self.host if self.platform == "cpu" else self.device_kind
        return f"{self.platform}: {where}, {self.cores} cores"


def machine() -> Machine:
    """This one. Initialises jax's backend."""
    device = jax.devices()[0]
    return Machine(
        platform=jax.default_backend(),
        device_kind=device.device_kind,
        devices=jax.device_count(),
        host=f"{_processor()} {platform.machine()}".strip(),
        cores=cores(),
        jaxlib=version("jaxlib"),
        flags=os.environ.get("XLA_FLAGS", ""),
    )


def cores() -> int:
    """Processor cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    """The model by name; Linux tells it in a file alone."""
    try:
        text = files.read_bytes(Path("/proc/cpuinfo")).decode(errors="replace")
    except files.FileError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def versions() -> dict[str, str]:
    """Versions of what a measurement hangs on; "absent" where a package is not installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found | {"python": platform.python_version()}
