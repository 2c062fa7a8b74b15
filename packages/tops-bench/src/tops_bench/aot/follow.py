"""Follows a schedule's control flow: how often each bundle runs, exactly where the scalar unit's values are known.

The control flow of a kernel is arithmetic on the grid's indices, so it can be run. What depends on data (a scalar read from a
prefetched operand, a loop whose bound comes in) cannot: such a region is counted once as taken (high) and once as skipped (low).
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from tops_bench.aot import scalar
from tops_bench.aot.bundles import DumpError, Listing, Op, branch_target

MAX_STEPS = 12_000_000  # scalar ops followed before the rest is scaled up: about ten seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the schedule: bundles [first, last], run `trips` times in all over the program."""

    first: int
    last: int
    trips: int
    known: bool  # False: its exit depends on data, and one trip was counted


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """counts[bundle]: how often it ran with every undecided region taken; low_counts: with each skipped."""

    counts: tuple[int, ...]
    low_counts: tuple[int, ...]
    loops: tuple[Loop, ...]
    transfers: tuple["Transfer", ...]
    complete: bool  # False: cut at MAX_STEPS and scaled up

    @property
    def exact(self) -> bool:
        return self.complete and self.counts == self.low_counts and all(loop.known for loop in self.loops)


@dataclasses.dataclass(slots=True)
class Transfer:
    """A DMA of the schedule, over the whole run."""

    bundle: int
    op: Op
    size: scalar.Read
    runs: int = 0  # times issued, and at least
    runs_low: int = 0
    granules: int = 0
    granules_low: int = 0
    unknown: int = 0  # times issued with a size that is not known, counted as nothing


@dataclasses.dataclass(slots=True)
class _Block:
    """Straight-line bundles [first, last] that end with a branch (its delay slots within), or with the program."""

    first: int
    last: int
    at: int  # the branch's bundle
    branch: Op | None
    target: int
    before: tuple[scalar.Step, ...]  # up to the branch, which is included
    after: tuple[scalar.Step, ...]  # in its delay slots
    transfers: tuple[tuple[Transfer, int], ...]  # and how many of `before` run ahead of it


class _Follower:
    def __init__(
        self,
        listing: Listing,
        delay_slots: int,
        max_steps: int,
        operands: Mapping[int, Sequence[int]],
        *,
        packs_idle: bool,
    ) -> None:
        self.operands = operands
        self.bundles, self.delay, self.max_steps = listing.bundles, delay_slots, max_steps
        self.packs_idle = packs_idle
        self.starts = listing.region_starts()
        self.branches = [
            (at, op) for at, bundle in enumerate(self.bundles) for op in bundle.ops if op.mnemonic.startswith("sbr.")
        ]
        self.branch_at = {at for at, _ in self.branches}
        self.steps_at = [
            tuple(step for op in scalar.ordered(bundle.ops) if (step := scalar.compile_op(op)) is not None)
            for bundle in self.bundles
        ]
        targets = (branch_target(op) for _, op in self.branches)
        self.leaders = sorted({self.starts[region] for region in targets if region in self.starts})
        self.blocks: dict[int, _Block] = {}
        self.runs: Counter[tuple[int, int]] = Counter()  # [first, last] of what ran
        self.low_runs: Counter[tuple[int, int]] = Counter()
        self.transfers_at = [
            tuple(Transfer(at, op, scalar.granules(op)) for op in bundle.ops if is_transfer(op))
            for at, bundle in enumerate(self.bundles)
        ]
        self.back: Counter[tuple[int, int]] = Counter()  # (header, branch) -> times taken
        self.entered: Counter[tuple[int, int]] = Counter()
        self.unknown_exits: set[tuple[int, int]] = set()
        self.name = listing.name

    def block(self, first: int) -> _Block:
        if first not in self.blocks:
            self.blocks[first] = self._block(first)
        return self.blocks[first]

    def _block(self, first: int) -> _Block:
        end = len(self.bundles) - 1
        at, branch = next(((at, op) for at, op in self.branches if at >= first), (end, None))
        join = next((leader for leader in self.leaders if first < leader <= at), None)
        if join is not None:  # another way leads to here: a block of its own, so that each is counted by itself
            at, branch = join - 1, None
        target = 0
        last = at
        if branch is not None:
            # A region that is empty and last has no bundle to stand at: its start is the program's end.
            region = branch_target(branch)
            target = len(self.bundles) if region is None else self.starts.get(region, len(self.bundles))
            last = self._last_slot(at, is_backward=target <= at)
        before: list[scalar.Step] = []
        transfers: list[tuple[Transfer, int]] = []
        for index in range(first, at + 1):
            transfers += [(one, len(before)) for one in self.transfers_at[index]]
            before += self.steps_at[index]
        after = [step for index in range(at + 1, last + 1) for step in self.steps_at[index]]
        transfers += [(one, len(before)) for index in range(at + 1, last + 1) for one in self.transfers_at[index]]
        return _Block(first, last, at, branch, target, tuple(before), tuple(after), tuple(transfers))

    def _last_slot(self, at: int, *, is_backward: bool) -> int:
        """The last bundle that still runs after the branch at `at`, taken or not.

        Where idle cycles are packed into one bundle, the slots are fewer bundles than cycles: an empty one fills what is left.
        Behind a loop's branch more may follow it, as what the next trip starts from is copied there: all that is in the loop.
        """
        end = min(at + self.delay, len(self.bundles) - 1)
        if not self.packs_idle:
            return end
        for index in range(at + 1, end + 1):
            bundle = self.bundles[index]
            left = bool(bundle.ops) and bundle.depth < self.bundles[at].depth
            if index > at + 1 and (bundle.regions or index in self.branch_at or (is_backward and left)):
                return index - 1
            if not bundle.ops and not is_backward:
                return index
        return end

    def run(self, core: int) -> bool:
        """Whether it came to the program's end."""
        state = scalar.State(core=core, arrays={f"operand{index}": words for index, words in self.operands.items()})
        at, steps = 0, 0
        doubt: list[tuple[int, scalar.State]] = []  # regions entered undecided: where they end, the state before
        while at < len(self.bundles):
            if steps > self.max_steps:
                return False
            while doubt and at >= doubt[-1][0]:
                _merge(state, doubt.pop()[1])
            block = self.block(at)
            steps += len(block.before) + len(block.after) + 4
            self.runs[block.first, block.last] += 1
            if not doubt:
                self.low_runs[block.first, block.last] += 1
            self._straight(block, state, not doubt)
            if block.branch is None:
                at = block.last + 1
                continue
            taken = True if block.branch.predicate is None else scalar.holds(state, block.branch.predicate)
            for step in block.after:
                step(state)
            at = self._next(block, taken, state, doubt)
        return True

    def _straight(self, block: _Block, state: scalar.State, certain: bool) -> None:
        """The ops up to the branch, and the DMAs among them."""
        done = 0
        for one, ahead in block.transfers:
            for step in block.before[done:ahead]:
                step(state)
            done = ahead
            held = True if one.op.predicate is None else scalar.holds(state, one.op.predicate)
            if held is False:
                continue
            size = one.size(state)
            known = size if isinstance(size, int) else 0
            one.runs += 1
            one.granules += known
            one.unknown += not isinstance(size, int)
            if held and certain:
                one.runs_low += 1
                one.granules_low += known
            fetch = scalar.prefetch(one.op)
            if fetch is not None:
                fetch(state)
        for step in block.before[done:]:
            step(state)

    def _next(
        self, block: _Block, taken: bool | None, state: scalar.State, doubt: list[tuple[int, scalar.State]]
    ) -> int:
        if block.target == len(self.bundles) and taken is not False and state.core == 0:
            raise DumpError(
                f"{self.name}: bundle {block.at:#x} branches to {branch_target(block.branch)}, which starts nowhere"
                if block.branch is not None
                else self.name
            )
        backward = block.target <= block.first or block.target <= block.at
        if backward:
            edge = (block.target, block.last)
            if taken:
                self.back[edge] += 1
                return block.target
            self.entered[edge] += 1  # each leaving is one entering
            if taken is None:
                self.unknown_exits.add(edge)
        elif taken:
            return block.target
        elif taken is None and not (doubt and block.target > doubt[-1][0]):
            doubt.append((block.target, state.copy()))
        return block.last + 1


def is_transfer(op: Op) -> bool:
    """A DMA that moves bytes, not the wait for one."""
    return op.mnemonic.startswith("dma.") and not op.mnemonic.startswith("dma.done")


def _merge(state: scalar.State, before: scalar.State) -> None:
    """After a region that may have been skipped: what differs is unknown."""
    for name in set(state.scalars) | set(before.scalars):
        if state.scalars.get(name) != before.scalars.get(name):
            state.scalars[name] = None
    for slot in set(state.memory) | set(before.memory):
        if state.memory.get(slot) != before.memory.get(slot):
            state.memory[slot] = None


def follow(
    listing: Listing,
    delay_slots: int,
    max_steps: int = MAX_STEPS,
    operands: Mapping[int, Sequence[int]] | None = None,
    core: int = 0,
    *,
    packs_idle: bool = False,
) -> Trace:
    """Runs the control flow from the first bundle to the last. `delay_slots`, `packs_idle`: see targets.Target. `operands`: words of the program's operands that are known,
    by index (what a kernel prefetches to scalar memory); `core`: which of the chip's cores runs it. Raises DumpError for a branch to nowhere."""
    follower = _Follower(listing, delay_slots, max_steps, operands or {}, packs_idle=packs_idle)
    complete = follower.run(core)
    counts, low = _per_bundle(follower.runs, len(listing.bundles)), _per_bundle(follower.low_runs, len(listing.bundles))
    loops = []
    for (header, last), times in sorted((follower.back + follower.entered).items()):
        loops.append(Loop(header, last, times, (header, last) not in follower.unknown_exits))
    transfers = tuple(one for ones in follower.transfers_at for one in ones if one.runs)
    return Trace(counts, low, tuple(loops), transfers, complete)


def _per_bundle(runs: Counter[tuple[int, int]], size: int) -> tuple[int, ...]:
    changes = [0] * (size + 1)
    for (first, last), times in runs.items():
        changes[first] += times
        changes[last + 1] -= times
    counts, running = [], 0
    for change in changes[:-1]:
        running += change
        counts.append(running)
    return tuple(counts)
