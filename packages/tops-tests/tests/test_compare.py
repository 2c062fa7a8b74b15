"""The one measure of distance: what it counts, what it refuses to measure, and that it cannot be talked round."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tops_tests.compare import ConformanceError, relative_error


def test_it_is_the_larger_of_the_two_norms_ratios() -> None:
    want = np.array([3.0, 4.0])
    assert relative_error("y", want, want) == 0.0
    assert relative_error("y", want + np.array([0.0, 0.5]), want) == pytest.approx(max(0.5 / 5.0, 0.5 / 4.0))


def test_one_wrong_element_among_many_is_seen_by_the_max_norm() -> None:
    want = np.ones(1_000_000)
    got = want.copy()
    got[7] = 1.5
    assert relative_error("y", got, want) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("got", "want", "says"),
    [
        ([1.0, math.nan], [1.0, 2.0], r"y is NaN at \(1,\); the oracle has 2.0"),
        ([1.0, math.inf], [1.0, 2.0], r"y is inf at \(1,\); the oracle has 2.0"),
        ([1.0, 2.0], [1.0, math.inf], r"y is 2.0 at \(1,\); the oracle has inf"),
        ([1.0, -math.inf], [1.0, math.inf], r"y is -inf at \(1,\)"),
        ([1.0, 2.0], [1.0, math.nan], r"the oracle is NaN at \(1,\); no kernel is judged there"),
        ([1.0], [1.0, 2.0], r"y has shape \(1,\); the oracle's is \(2,\)"),
    ],
)
def test_what_has_no_distance_is_a_fault_with_its_place(got: list[float], want: list[float], says: str) -> None:
    with pytest.raises(ConformanceError, match=says):
        relative_error("y", np.array(got), np.array(want))


def test_equal_infinities_are_equal_and_hide_nothing_else() -> None:
    want = np.array([math.inf, 2.0])
    assert relative_error("y", want, want) == 0.0
    assert relative_error("y", np.array([math.inf, 3.0]), want) == pytest.approx(0.5)


def test_anything_but_zero_is_infinitely_far_from_zero() -> None:
    assert relative_error("y", np.array([0.0, 0.0]), np.zeros(2)) == 0.0
    assert relative_error("y", np.array([0.0, 1e-30]), np.zeros(2)) == math.inf


def test_the_rounding_of_terms_is_forgiven_up_to_their_own_size_and_no_further() -> None:
    want = np.zeros(4)  # a sum of terms of size 1 that cancel
    assert relative_error("y", np.full(4, 5e-7), want, terms=1.0) == 0.0
    assert relative_error("y", np.full(4, 1e-5), want, terms=1.0) == math.inf


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.floats(1e-6, 1e6))
def test_it_does_not_depend_on_scale(values: list[float], factor: float) -> None:
    want = np.array(values) + 3e6
    got = want * (1 + 1e-3)
    assert relative_error("y", got * factor, want * factor) == pytest.approx(relative_error("y", got, want), rel=1e-6)


def test_no_elements_have_no_error() -> None:
    assert relative_error("y", np.zeros((0, 3)), np.zeros((0, 3))) == 0.0
