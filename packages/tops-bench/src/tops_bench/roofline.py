"""What this machine can do at best, measured, and how near a row comes to it.

A ceiling is the best of several tries of a plain program: a large square matmul for each dtype, a copy for each of a few
working sets (a copy that fits a cache is faster than one that does not, so a row is held against a copy of its own size).
Measured once a machine and kept in the workspace folder under the machine's key.
"""

import dataclasses
import datetime
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import tops_kernels
from tops_bench import files
from tops_bench.machine import Machine, machine
from tops_bench.timing import Effort, race
from tops_manifest.model import Pass
from tops_manifest.workloads import Case

SCHEMA = 1
DTYPES = ("float32", "bfloat16", "int8")
_EFFORT = Effort(rounds=5, sample_seconds=0.05)
_MATMUL_SECONDS = 0.05  # large enough: a product that takes this long
_MAX_SIDE = 16384
_COPIES = tuple(1 << exponent for exponent in range(16, 29, 2))  # 64 KiB to 256 MiB, in plus out


@dataclasses.dataclass(frozen=True, slots=True)
class Ceilings:
    """Best rates seen on one machine."""

    machine: Machine
    matmul: Mapping[str, float]  # dtype -> operations a second
    copy: Mapping[int, float]  # bytes moved by one copy -> bytes a second
    method: str
    measured: str  # ISO date

    def bandwidth(self, nbytes: int) -> float:
        """Bytes a second that a copy of as many bytes, or the next smaller one measured, reaches; larger ones count too,
        as a bigger working set never makes memory slower than it was measured."""
        smaller = [size for size in self.copy if size <= nbytes]
        floor = max(smaller, default=min(self.copy))
        return max(rate for size, rate in self.copy.items() if size >= floor)

    def as_data(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "machine": dataclasses.asdict(self.machine),
            "matmul": dict(self.matmul),
            "copy": {str(size): rate for size, rate in self.copy.items()},
            "method": self.method,
            "measured": self.measured,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Roofline:
    """One row against the ceilings."""

    bound: str  # "compute" or "memory": the ceiling that is met first
    seconds: float  # the least time the ceilings allow
    fraction: float  # that least time over the measured one; over 1: the ceiling measured is too low
    ceiling: float  # of the bound: operations or bytes a second


def roofline(ceilings: Ceilings, case: Case, which: Pass, seconds: float) -> Roofline | None:
    """Holds a time against the manifest's matrix operations and bytes. Elementwise work has no ceiling here: it is bound
    by memory, or by itself, and then the fraction says so. None where the dtype has no ceiling."""
    operations = case.flops(which).get("mxu", 0.0)
    peak = ceilings.matmul.get(next(iter(case.inputs().values())).dtype)
    if operations and peak is None:
        return None
    nbytes = case.bytes(which)
    bandwidth = ceilings.bandwidth(nbytes)
    compute, memory = (operations / peak if peak else 0.0), nbytes / bandwidth
    if compute > memory:
        return Roofline("compute", compute, compute / seconds, peak or math.nan)
    return Roofline("memory", memory, memory / seconds, bandwidth)


def path(key: str) -> Path:
    """Where the ceilings of a machine are kept."""
    return tops_kernels.workspace_dir() / "bench" / f"ceilings-{key}.json"


def ceilings(
    *, again: bool = False, dtypes: Iterable[str] = DTYPES, progress: Callable[[str], None] = lambda _: None
) -> Ceilings:
    """This machine's: read where they were measured before, measured and kept otherwise."""
    here = machine()
    if not again:
        found = read(path(here.key), here)
        if found is not None and set(dtypes) <= set(found.matmul):
            return found
    measured = measure(here, dtypes, progress)
    files.write(path(here.key), files.dumps(measured.as_data()))
    return measured


def read(source: Path, here: Machine) -> Ceilings | None:
    """None where there is no such file, or one of another machine or form: then they are measured again."""
    try:
        data = files.read_object(source)
        if data["schema"] != SCHEMA or data["machine"] != dataclasses.asdict(here):
            return None
        found = Ceilings(
            here,
            {str(dtype): float(rate) for dtype, rate in data["matmul"].items()},
            dict(sorted((int(size), float(rate)) for size, rate in data["copy"].items())),
            str(data["method"]),
            str(data["measured"]),
        )
    except (files.FileError, KeyError, TypeError, ValueError, AttributeError):
        return None
    rates = [*found.matmul.values(), *found.copy.values()]
    return found if found.matmul and found.copy and all(math.isfinite(rate) and rate > 0 for rate in rates) else None


def measure(here: Machine, dtypes: Iterable[str], progress: Callable[[str], None] = lambda _: None) -> Ceilings:
    """Takes about a second a ceiling."""
    matmul = {}
    for dtype in dtypes:
        progress(f"ceiling: {dtype} matmul")
        matmul[dtype] = matmul_rate(dtype)
    copy, method = {}, ""
    for size in _COPIES:
        progress(f"ceiling: copy of {size >> 10} KiB")
        copy[size], method = copy_rate(size)
    return Ceilings(here, matmul, copy, method, datetime.datetime.now(datetime.UTC).date().isoformat())


def copy_rate(size: int, effort: Effort = _EFFORT) -> tuple[float, str]:
    """(bytes a second, method) of a copy that moves `size` bytes, in and out together."""
    # x + 1 rather than a copy, which XLA drops: as many bytes in as out, and no arithmetic to speak of.
    timing = race({"copy": lambda x: x + 1}, [jnp.zeros(size // 8, jnp.float32)], effort)["copy"]
    return size / min(timing.samples), timing.method


def matmul_rate(dtype: str, least_seconds: float = _MATMUL_SECONDS, effort: Effort = _EFFORT) -> float:
    """Operations a second of the best square product tried; the side doubles until one takes `least_seconds`."""
    side, best = 512, 0.0
    accumulator = jnp.int32 if jnp.issubdtype(dtype, jnp.integer) else jnp.float32

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, preferred_element_type=accumulator)

    while True:
        a = jnp.clip(jax.random.normal(jax.random.key(0), (side, side)) * 32, -127, 127).astype(dtype)  # within int8
        seconds = min(race({"matmul": product}, [a, a], effort)["matmul"].samples)
        best = max(best, 2 * side**3 / seconds)
        if seconds > least_seconds or side >= _MAX_SIDE:
            return best
        side *= 2
