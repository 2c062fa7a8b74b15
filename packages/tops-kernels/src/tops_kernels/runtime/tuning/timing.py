"""Times programs by turns, so that what changes on the machine meanwhile falls on all of them alike."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

_SAMPLE_SECONDS = 2e-3  # of one sample at least: the clock and the dispatch of one call are small beside it
_MOST_CALLS = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    medians: tuple[float, ...]  # seconds a call
    ratios: tuple[float, ...]  # to the first program: the median over the rounds, each round by itself


def interleaved(
    programs: Sequence[Callable[[], Any]], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> Times:
    """Seconds a call of each program. In each round every program is run, from another one on each time.

    Args:
      programs: each dispatches one call and gives its outputs; all were run before.
      clock: seconds, from anywhere.
    """
    counts = [_calls(program, clock) for program in programs]
    samples: list[list[float]] = [[] for _ in programs]
    for turn in range(rounds):
        for place in range(len(programs)):
            at = (place + turn) % len(programs)
            samples[at].append(_sample(programs[at], counts[at], clock))
    ratios = [statistics.median(one / first for one, first in zip(mine, samples[0], strict=True)) for mine in samples]
    return Times(tuple(statistics.median(mine) for mine in samples), tuple(ratios))


def _calls(program: Callable[[], Any], clock: Callable[[], float]) -> int:
    """How many calls make a sample long enough."""
    once = min(_sample(program, 1, clock) for _ in range(2))
    return max(1, min(_MOST_CALLS, round(_SAMPLE_SECONDS / max(once, 1e-9))))


def _sample(program: Callable[[], Any], count: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(count):
        outputs = program()
    jax.block_until_ready(outputs)  # type: ignore[no-untyped-call]  # jax has no types for it
    return (clock() - started) / count
