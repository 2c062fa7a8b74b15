"""Which rows this machine can run, at what size, and why not at their own."""

import dataclasses

import jax

from tops_manifest.model import Pass
from tops_manifest.workloads import Case


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """How large a row may be: bytes that go in and come out, and operations."""

    nbytes: int
    operations: float


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A row as it will be run. `case` None: no scaled row fits either. `reason`: why it is not at its own size."""

    original: Case
    which: Pass
    case: Case | None
    reason: str = ""


def room(*, quick: bool) -> Room:
    """On a CPU the bounds of the test stage, so that what is timed is what was checked; on an accelerator all but the
    rows that its memory cannot hold: inputs, outputs and as much again for temporaries, for the largest contender."""
    if jax.default_backend() == "cpu":
        return Room(8 << 20, 1e9) if quick else Room(64 << 20, 3e10)
    stats = jax.devices()[0].memory_stats() or {}
    memory = int(stats.get("bytes_limit", 16 << 30))
    return Room(memory // 4, 2e12 if quick else float("inf"))


def fit(case: Case, which: Pass, within: Room) -> Fitted:
    """The case itself where it fits, else the nearest scaled one."""
    needs, work = case.memory(which), sum(case.flops(which).values())
    reasons = []
    if needs > within.nbytes:
        reasons.append(f"{needs / 2**20:.0f} MiB in and out, over {within.nbytes / 2**20:.0f}")
    if work > within.operations:
        reasons.append(f"{work:.2g} operations, over {within.operations:.2g}")
    reason = "; ".join(reasons)
    try:
        return Fitted(case, which, case.fit(within.nbytes, within.operations, which), reason)
    except ValueError as error:
        return Fitted(case, which, None, f"{reason}; {error}")
