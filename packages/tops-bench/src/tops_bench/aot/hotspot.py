"""Why a loop takes what it takes: where its bundles come from, which slots are full, what waits for what."""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from tops_bench.aot.bundles import Bundle, Op
from tops_bench.aot.dumps import Dump
from tops_bench.aot.follow import Loop, Trace

NO_LINE = "(the compiler's own: addresses, pipeline, spills)"
_NAME = re.compile(r"%(\w+)")
_CHAINS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """Ops of which each needs the one before. `span`: bundles from the first to the last; their count bounds the loop from below."""

    ops: int
    span: int
    first: str  # "file.py:line mnemonic"
    last: str
    mnemonics: tuple[str, ...]  # the most frequent, as "vadd.f32 x12"


@dataclasses.dataclass(frozen=True, slots=True)
class Hotspot:
    """The loop where a kernel spends most; all of one trip unless said otherwise. Bundles outside loops count as one loop of one trip."""

    kernel: str
    first: int
    last: int
    trips: int
    bundles: int
    bundles_run: int  # over all trips, its inner loops left out
    share: float  # of all bundles the kernel runs
    lines: tuple[tuple[str, float], ...]  # source line -> bundles run there over all trips, most first
    slots: tuple[tuple[str, float, int], ...]  # slot, share of its capacity, bundles where it is full
    idle: int  # bundles run without any op
    chains: tuple[Chain, ...]
    timeline: tuple[tuple[int, ...], ...]  # slots used, a row a bundle
    capacity: tuple[int, ...]


def hotspot(dump: Dump, trace: Trace) -> Hotspot:
    """Of the innermost loop (by bundles run in itself) that runs most."""
    size = len(dump.listing.bundles)
    whole = Loop(0, size - 1, 1, True)
    loops = [whole, *trace.loops]
    own = {loop: _own(loop, loops) for loop in loops}
    hottest = max(loops, key=lambda loop: sum(trace.counts[at] for at in own[loop]))
    inside = own[hottest]
    run = sum(trace.counts[at] for at in inside)
    names, capacity = dump.utilization.slots, dump.utilization.capacity
    rows = dump.utilization.rows
    slots = []
    for column, (name, room) in enumerate(zip(names, capacity, strict=True)):
        used = sum(rows[at][column] * trace.counts[at] for at in inside)
        slots.append((name, used / (room * run or 1), sum(rows[at][column] >= room for at in inside)))
    bundles = dump.listing.bundles
    return Hotspot(
        kernel=dump.name,
        first=hottest.first,
        last=hottest.last,
        trips=hottest.trips,
        bundles=len(inside),
        bundles_run=run,
        share=run / (sum(trace.counts) or 1),
        lines=tuple(_lines(bundles, trace.counts, inside).most_common()),
        slots=tuple(slots),
        idle=sum(trace.counts[at] for at in inside if not bundles[at].ops),
        chains=tuple(chains([bundles[at] for at in inside])),
        timeline=tuple(rows[at] for at in inside),
        capacity=capacity,
    )


def _own(loop: Loop, loops: Sequence[Loop]) -> list[int]:
    """A loop's bundles less those of the loops in it."""
    inner = [other for other in loops if other != loop and loop.first <= other.first and other.last <= loop.last]
    return [
        at for at in range(loop.first, loop.last + 1) if not any(other.first <= at <= other.last for other in inner)
    ]


def _lines(bundles: Sequence[Bundle], counts: Sequence[int], inside: Sequence[int]) -> Counter[str]:
    """Each bundle is shared out evenly among the source lines of its ops."""
    lines: Counter[str] = Counter()
    for at in inside:
        places = [place(op) for op in bundles[at].ops if op.loc is not None] or [NO_LINE]
        for line in places:
            lines[line] += counts[at] / len(places)  # type: ignore[assignment]  # Counter's stub knows whole counts alone
    return lines


def place(op: Op) -> str:
    """file.py:line, without folders."""
    return f"{PurePath(op.loc[0]).name}:{op.loc[1]}" if op.loc is not None else NO_LINE


def chains(bundles: Sequence[Bundle]) -> list[Chain]:
    """The ten longest dependency chains within one trip, no op in two of them."""
    flat = [(at, op) for at, bundle in enumerate(bundles) for op in bundle.ops]
    maker: dict[str, int] = {}
    needs: list[list[int]] = []
    for index, (_, op) in enumerate(flat):
        head, equals, tail = op.text.partition("=")
        read = tail if equals else head
        needs.append([] if op.mnemonic == "sphi" else [maker[name] for name in _NAME.findall(read) if name in maker])
        if equals and head.strip().startswith("%"):
            maker[head.strip().removeprefix("%")] = index
    taken: set[int] = set()
    found = []
    for _ in range(_CHAINS):
        chain = _longest(needs, taken)
        if len(chain) < 2:
            break
        taken.update(chain)
        found.append(_chain([flat[index] for index in chain]))
    return found


def _longest(needs: Sequence[Sequence[int]], taken: set[int]) -> list[int]:
    length, before = [0] * len(needs), [-1] * len(needs)
    best = -1
    for index, makers in enumerate(needs):
        if index in taken:
            continue
        length[index] = 1
        for maker in makers:
            if maker < index and maker not in taken and length[maker] + 1 > length[index]:
                length[index], before[index] = length[maker] + 1, maker
        if best < 0 or length[index] > length[best]:
            best = index
    chain = []
    while best >= 0:
        chain.append(best)
        best = before[best]
    return chain[::-1]


def _chain(ops: Sequence[tuple[int, Op]]) -> Chain:
    kinds: defaultdict[str, int] = defaultdict(int)
    for _, op in ops:
        kinds[re.sub(r"\.(mxu|mrf|mrb|xlu|msr)\w*", "", op.mnemonic)] += 1
    common = sorted(kinds.items(), key=lambda pair: (-pair[1], pair[0]))[:4]
    return Chain(
        ops=len(ops),
        span=ops[-1][0] - ops[0][0] + 1,
        first=f"{place(ops[0][1])} {ops[0][1].mnemonic}",
        last=f"{place(ops[-1][1])} {ops[-1][1].mnemonic}",
        mnemonics=tuple(f"{name} x{count}" for name, count in common),
    )


def from_json(data: dict[str, Any]) -> Hotspot:
    """Back from dataclasses.asdict through JSON."""
    chain_list = tuple(Chain(**{**chain, "mnemonics": tuple(chain["mnemonics"])}) for chain in data["chains"])
    lists = {name: tuple(tuple(item) for item in data[name]) for name in ("lines", "slots", "timeline")}
    return Hotspot(**{**data, **lists, "chains": chain_list, "capacity": tuple(data["capacity"])})
