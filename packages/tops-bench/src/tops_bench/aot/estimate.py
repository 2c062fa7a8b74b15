"""From a followed schedule to cycles, bytes and a time. All figures are schedule estimates, never measurements.

    cycles = sum over loop nests of max(bundles run, cycles the busiest MXU is occupied)
    time   = max(C, M) + min(C, M) / steps,   C = cycles / clock,  M = DMA bytes / HBM bandwidth

The second term is the pipeline's ends: of `steps` equal steps, one's shorter part overlaps with nothing.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from tops_bench.aot import follow
from tops_bench.aot.bundles import Bundle, Listing, Op
from tops_bench.aot.dumps import Dump
from tops_bench.aot.follow import Trace
from tops_bench.aot.targets import Chip, Target

_WIDTH = {
    "bf16": 16,
    "f16": 16,
    "f32": 32,
    "s8": 8,
    "u8": 8,
    "f8e5m2": 8,
    "f8e4m3b11": 8,
    "f8e4m3": 8,
    "f8e4m3fn": 8,
    "s4": 4,
    "u4": 4,
}
_UNIT = re.compile(r"\.mxu(\d)")


@dataclasses.dataclass(frozen=True, slots=True)
class LoopFigures:
    """A loop of the schedule; `bundles` is one trip through it, inner loops counted once."""

    first: int
    last: int
    depth: int
    trips: int
    trips_known: bool
    bundles: int
    bundles_run: int  # in all, its inner loops' included
    fills: int  # vector registers reloaded from spill slots, and spilled, in one trip
    spills: int


@dataclasses.dataclass(frozen=True, slots=True)
class KernelFigures:
    """One program's schedule on one chip. `low` figures skip every region whose condition is not known."""

    name: str
    bundles: int
    bundles_run: int
    bundles_run_low: int
    mxu_cycles: float
    cycles: float
    cycles_low: float
    dma_bytes: int
    dma_bytes_low: int
    steps: int
    seconds: float
    seconds_low: float
    binds: str  # "hbm", or the fullest slot
    utilization: dict[str, float]  # slot -> share of its capacity over all bundles run
    fills: int
    spills: int
    vmem_bytes: int
    smem_bytes: int
    loops: tuple[LoopFigures, ...]
    exact: bool
    complete: bool


def matmul_bits(op: Op) -> int | None:
    """Operand width of a vmatmul; None for other ops."""
    if not op.mnemonic.startswith("vmatmul"):
        return None
    return next((_WIDTH[part] for part in op.mnemonic.split(".") if part in _WIDTH), 32)


def reaches_hbm(op: Op) -> bool:
    """Whether a DMA moves bytes to or from HBM, not within the chip. XLA's general ones, whose ends are not named, do."""
    return "hbm" in op.mnemonic or op.mnemonic == "dma.general"


def mxu_cycles(listing: Listing, counts: tuple[int, ...], chip: Chip) -> float:
    """Cycles that the busiest MXU is occupied over a program's run."""
    units: Counter[str] = Counter()
    floating = 0.0
    for bundle, count in zip(listing.bundles, counts, strict=True):
        for unit, cycles in _occupancy(bundle, chip):
            if unit:
                units[unit] += round(cycles * count)
            else:
                floating += cycles * count
    return max(units.values(), default=0) + floating / chip.mxus


def _occupancy(bundle: Bundle, chip: Chip) -> list[tuple[str, float]]:
    result = []
    for op in bundle.ops:
        bits = matmul_bits(op)
        if bits is not None:
            unit = _UNIT.search(op.mnemonic)
            result.append((unit.group(1) if unit else "", chip.matmul_cycles(bits)))
    return result


def kernel(
    dump: Dump, target: Target, chip: Chip, operands: Mapping[int, Sequence[int]] | None = None
) -> KernelFigures:
    """`operands`: as follow.follow takes them. Raises DumpError where the schedule cannot be followed."""
    cores = chip.cores if _splits_cores(dump.listing) else 1
    traces = [
        follow.follow(dump.listing, target.delay_slots, operands=operands, core=core, packs_idle=target.packs_idle)
        for core in range(cores)
    ]
    return figures(dump, traces, target, chip)


def figures(dump: Dump, traces: Sequence[Trace], target: Target, chip: Chip) -> KernelFigures:
    """`traces`: one a core. The first core's schedule is told of; the time is the slowest one's, the bytes are all of them's."""
    listing, trace = dump.listing, traces[0]
    high, low = max(sum(one.counts) for one in traces), max(sum(one.low_counts) for one in traces)
    occupied, occupied_low = (
        max(mxu_cycles(listing, getattr(one, which), chip) for one in traces) for which in ("counts", "low_counts")
    )
    outward = [one for each in traces for one in each.transfers if reaches_hbm(one.op)]
    moved = sum(one.granules for one in outward) * target.granule
    moved_low = sum(one.granules_low for one in outward) * target.granule
    steps = max((one.runs for one in outward), default=1)
    cycles, cycles_low = max(high, occupied), max(low, occupied_low)
    seconds, seconds_low = _time(cycles, moved, steps, chip), _time(cycles_low, moved_low, steps, chip)
    used = utilization(dump, trace)
    loops = tuple(_loop(dump, trace, loop) for loop in trace.loops)
    slots = dump.utilization.slots
    fill, spill = (slots.index(name) if name in slots else None for name in ("VLOAD:FILL", "VSTORE:SPILL"))
    rows = dump.utilization.rows
    return KernelFigures(
        name=dump.name,
        bundles=len(listing.bundles),
        bundles_run=high,
        bundles_run_low=low,
        mxu_cycles=occupied,
        cycles=cycles,
        cycles_low=cycles_low,
        dma_bytes=moved,
        dma_bytes_low=moved_low,
        steps=steps,
        seconds=seconds,
        seconds_low=seconds_low,
        binds=_binds(cycles, occupied, moved, used, chip),
        utilization=used,
        fills=sum(row[fill] for row in rows) if fill is not None else 0,
        spills=sum(row[spill] for row in rows) if spill is not None else 0,
        vmem_bytes=dump.allocations.vmem_bytes,
        smem_bytes=dump.allocations.smem_bytes,
        loops=loops,
        exact=trace.exact,
        complete=trace.complete,
    )


def _splits_cores(listing: Listing) -> bool:
    """A program that reads which core it is on runs on each: with a share of the grid, or the others leave at once."""
    return any("core id" in op.comment for bundle in listing.bundles for op in bundle.ops)


def _time(cycles: float, moved: float, steps: int, chip: Chip) -> float:
    compute, memory = cycles / chip.clock, moved / chip.hbm_bytes_per_second
    return max(compute, memory) + min(compute, memory) / max(steps, 1)


def utilization(dump: Dump, trace: Trace) -> dict[str, float]:
    """Share of each slot's capacity that is used, over every bundle run."""
    total = sum(trace.counts) or 1
    sums = [0] * len(dump.utilization.slots)
    for row, count in zip(dump.utilization.rows, trace.counts, strict=True):
        if count:
            for at, used in enumerate(row):
                sums[at] += used * count
    return {
        slot: sums[at] / (total * capacity)
        for at, (slot, capacity) in enumerate(zip(dump.utilization.slots, dump.utilization.capacity, strict=True))
    }


def _binds(cycles: float, occupied: float, moved: float, used: dict[str, float], chip: Chip) -> str:
    if moved / chip.hbm_bytes_per_second > cycles / chip.clock:
        return "HBM"
    if occupied >= 0.9 * cycles:
        return "MXU"
    vector = {slot: share for slot, share in used.items() if slot != "MXU" and ":" not in slot}
    slot = max(vector, key=lambda name: vector[name], default="")
    return slot if slot and vector[slot] >= 0.6 else "latency"


def _loop(dump: Dump, trace: Trace, loop: follow.Loop) -> LoopFigures:
    inside = range(loop.first, loop.last + 1)
    depth = sum(1 for other in trace.loops if other.first <= loop.first and loop.last <= other.last)
    slots = dump.utilization.slots
    columns = [dump.utilization.column(name) if name in slots else () for name in ("VLOAD:FILL", "VSTORE:SPILL")]
    fills, spills = (sum(column[at] for at in inside) if column else 0 for column in columns)
    return LoopFigures(
        first=loop.first,
        last=loop.last,
        depth=depth,
        trips=loop.trips,
        trips_known=loop.known,
        bundles=len(inside),
        bundles_run=sum(trace.counts[at] for at in inside),
        fills=fills,
        spills=spills,
    )
