"""Intervals hold what they promise, and the 95 % rule is decided by them."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tops_bench import stats
from tops_bench.stats import Interval

_TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40)


@given(_TIMES)
def test_the_interval_holds_the_median_and_lies_within_the_samples(samples: list[float]) -> None:
    found = stats.interval(samples)
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)
    assert found.median == statistics.median(samples)
    assert 0 <= found.confidence <= 1


@pytest.mark.parametrize(
    ("count", "low", "high", "confidence"),
    # From the binomial table: P(1 <= B(6, 1/2) <= 5) = 31/32; at 15 samples the 4th and the 12th; at 5, 15/16 is all there is.
    [
        (1, 1, 1, 0.0),
        (5, 1, 5, 15 / 16),
        (6, 1, 6, 31 / 32),
        (7, 1, 7, 63 / 64),
        (8, 1, 8, 127 / 128),
        (9, 2, 8, 0.9609375),
        (15, 4, 12, 0.96484375),
    ],
)
def test_the_interval_is_that_of_the_binomial_table(count: int, low: int, high: int, confidence: float) -> None:
    found = stats.interval([float(value) for value in range(1, count + 1)])
    assert (found.low, found.high) == (low, high)
    assert found.confidence == pytest.approx(confidence)


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    draw = random.Random(0)
    covered = 0
    for _ in range(2000):
        found = stats.interval([math.exp(draw.gauss(0, 1)) for _ in range(15)])  # skewed, as times are; true median 1
        covered += found.low <= 1.0 <= found.high
    assert 0.95 <= covered / 2000 <= 0.98


@pytest.mark.parametrize("wrong", [[], [0.0], [-1.0], [1.0, math.nan], [math.inf]])
def test_samples_that_are_no_times_are_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="positive finite"):
        stats.interval(wrong)


def test_what_slows_a_whole_round_down_drops_out_of_a_paired_speed() -> None:
    weather = [1.0, 3.0, 0.5, 10.0, 2.0, 1.0, 4.0]
    found = stats.paired_speed(weather, [2 * value for value in weather])
    assert (found.low, found.median, found.high) == (0.5, 0.5, 0.5)
    apart = stats.unpaired_speed(weather, [2 * value for value in weather])
    assert apart.median == 0.5
    assert apart.low < 0.5 < apart.high


def test_rounds_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="take turns"):
        stats.paired_speed([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("low", "median", "high", "verdict"),
    [
        (0.80, 0.85, 0.90, "slower"),
        (0.90, 0.93, 0.949, "slower"),
        (0.90, 0.94, 0.96, "within noise"),
        (0.50, 0.94, 2.00, "within noise"),
        (0.94, 0.96, 0.98, "ok"),
        (0.95, 0.95, 0.95, "ok"),
        (1.10, 1.20, 1.30, "ok"),
    ],
)
def test_slower_means_that_the_whole_interval_is_below_95_percent(
    low: float, median: float, high: float, verdict: str
) -> None:
    assert stats.judge(Interval(median, low, high, 0.95)) == verdict


def _noisy(seed: int, factor: float, noise: float, count: int = 15) -> list[float]:
    draw = random.Random(seed)
    return [factor * math.exp(draw.gauss(0, noise)) for _ in range(count)]


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_noise_alone_is_hardly_ever_called_slower(noise: float) -> None:
    wrong = sum(
        stats.judge(stats.paired_speed(_noisy(seed, 1.0, noise), _noisy(seed + 9999, 1.0, noise))) == "slower"
        for seed in range(400)
    )
    assert wrong / 400 <= 0.03


def test_a_head_that_takes_a_tenth_longer_is_caught_at_two_percent_noise() -> None:
    caught = sum(
        stats.judge(stats.paired_speed(_noisy(seed, 1.0, 0.02), _noisy(seed + 9999, 1.12, 0.02))) == "slower"
        for seed in range(200)
    )
    assert caught / 200 >= 0.99


def test_a_summary_has_the_spread_of_single_samples() -> None:
    found = stats.summary([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.median, found.iqr, found.count) == (3.0, 2.0, 5)
    assert stats.summary([2.0]).iqr == 0.0
