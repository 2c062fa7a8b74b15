"""Which rows this machine can run, at what size, and why not at their own."""

import dataclasses

import jax

from tops_manifest.model import Pass
from tops_manifest.workloads import Case
from tops_workloads import Room, cpu_room


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A row as it will be run. `case` None: no scaled row fits either. `reason`: why it is not at its own size."""

    original: Case
    which: Pass
    case: Case | None
    reason: str = ""


def room(*, quick: bool) -> Room:
    """On a CPU what the test stage keeps to as well, so that what is timed is what was checked; on an accelerator all but the
    rows that its memory cannot hold: inputs, outputs and as much again for temporaries, for the largest contender."""
    if jax.default_backend() == "cpu":
        return cpu_room(quick=quick)
    stats = jax.devices()[0].memory_stats() or {}
    memory = int(stats.get("bytes_limit", 16 << 30))
    return Room(memory // 4, 2e12 if quick else float("inf"))


def fit(case: Case, which: Pass, within: Room) -> Fitted:
    """The case itself where it fits, else the nearest scaled one."""
    needs, work = case.memory(which), sum(case.flops(which).values())
    reasons = []
    if needs > within.size:
        reasons.append(f"{needs / 2**20:.0f} MiB in and out, over {within.size / 2**20:.0f}")
    if work > within.work:
        reasons.append(f"{work:.2g} operations, over {within.work:.2g}")
    reason = "; ".join(reasons)
    try:
        return Fitted(case, which, within.fit(case, which), reason)
    except ValueError as error:
        return Fitted(case, which, None, f"{reason}; {error}")
