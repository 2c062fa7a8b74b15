"""Medians, their intervals, and what two sets of times say about each other. Standard library alone."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal

CONFIDENCE = 0.95
THRESHOLD = 0.95  # the 95 % rule: a head slower than this share of its base's speed is a regression

Judgement = Literal["ok", "slower", "within noise"]


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A median and an interval that holds the true one with (at least) `confidence`, whatever the distribution."""

    median: float
    low: float
    high: float
    confidence: float  # reached, not wished for: five samples cannot give 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Times of one contender, in seconds an iteration."""

    median: float
    low: float  # interval of the median, see Interval
    high: float
    confidence: float
    iqr: float  # spread of single samples: third quartile less the first
    count: int


def interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The sample median with its order-statistics interval: from the k-th smallest sample to the k-th largest.

    The number of samples below the true median is binomial(n, 1/2), so the coverage is 1 - 2 P(at most k-1 below), for
    any continuous distribution: no normality, no outlier rule. k is the largest with enough coverage, at least 1.
    Raises ValueError where there are no samples, or one that is not a positive finite number.
    """
    if not samples or not all(math.isfinite(value) and value > 0 for value in samples):
        raise ValueError(f"samples: got {list(samples)[:5]}; expected one or more positive finite numbers")
    ordered = sorted(samples)
    count, tail = len(ordered), 0.0
    k, coverage = 1, 1 - 2 * 0.5**count
    for below in range(count // 2):
        tail += math.comb(count, below) * 0.5**count
        if 1 - 2 * tail < confidence:
            break
        k, coverage = below + 1, 1 - 2 * tail
    return Interval(statistics.median(ordered), ordered[k - 1], ordered[count - k], max(coverage, 0.0))


def summary(samples: Sequence[float]) -> Summary:
    """Raises ValueError as `interval` does."""
    found = interval(samples)
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else (0.0, 0.0, 0.0)
    return Summary(found.median, found.low, found.high, found.confidence, third - first, len(samples))


def paired_speed(base: Sequence[float], head: Sequence[float]) -> Interval:
    """Speed of head over base (2.0: twice as fast) from samples taken in turns: the ratio is taken within each round,
    so what slows a whole round down drops out. Raises ValueError where the numbers of rounds differ."""
    if len(base) != len(head):
        raise ValueError(f"rounds: base has {len(base)}, head {len(head)}; expected as many: they take turns")
    return interval([one / other for one, other in zip(base, head, strict=True)])


def unpaired_speed(base: Sequence[float], head: Sequence[float]) -> Interval:
    """The same from two separate runs: the extremes of both intervals, so wider and never narrower than the noise
    within the runs. What changed on the machine between them is not in it: take turns where you can."""
    b, h = interval(base), interval(head)
    return Interval(b.median / h.median, b.low / h.high, b.high / h.low, min(b.confidence, h.confidence))


def judge(speed: Interval, threshold: float = THRESHOLD) -> Judgement:
    """The 95 % rule. "slower": the whole interval is below the threshold, so noise does not explain it; "within noise":
    the median is below, the interval is not; "ok" otherwise."""
    if speed.high < threshold:
        return "slower"
    return "within noise" if speed.median < threshold else "ok"
