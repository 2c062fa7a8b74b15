"""The values inputs get: in their domain, of their dtype, never zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tops_manifest.model import DTYPES, Interval
from tops_workloads.distributions import draw

_FLOATS = ["float32", "bfloat16", "float8_e4m3fn"]  # each other one compiles anew, and rounds between these
_INTEGERS = ["int4", "int8", "int32", "uint8"]
_DOMAINS = [None, "(-inf, 0]", "(-inf, 0)", "[0, inf)", "(0, inf)", "[0, 1]", "(0, 1)", "[-1, 1]", "(-2, 3)"]
_SHAPE = (32, 9)


def _values(dtype: str, domain: str | None, seed: int = 0, shape: tuple[int, ...] = _SHAPE) -> np.ndarray:
    array = draw(jax.random.key(seed), shape, dtype, domain)
    assert array.shape == shape
    assert array.dtype == jnp.dtype(dtype)
    return np.asarray(array).astype(np.float64)


def _assert_inside(values: np.ndarray, domain: str | None) -> None:
    interval = Interval.read(domain or "(-inf, inf)")
    assert np.all(values >= interval.low) if interval.low_closed else np.all(values > interval.low)
    assert np.all(values <= interval.high) if interval.high_closed else np.all(values < interval.high)


@pytest.mark.parametrize("domain", _DOMAINS)
@pytest.mark.parametrize("dtype", _FLOATS)
def test_floats_lie_in_their_domain_and_are_never_zero(dtype: str, domain: str | None) -> None:
    values = _values(dtype, domain)
    assert np.all(np.isfinite(values))
    assert np.all(values != 0)
    _assert_inside(values, domain)
    assert len(np.unique(values)) > 5


@pytest.mark.parametrize("domain", [None, "(-inf, 0]", "[0, inf)", "(0, 5)", "[-3, 3]"])
@pytest.mark.parametrize("dtype", _INTEGERS)
def test_integers_lie_in_their_domain_and_are_never_zero(dtype: str, domain: str | None) -> None:
    if dtype.startswith("u") and domain == "(-inf, 0]":
        with pytest.raises(ValueError, match=r"holds no uint\d+ but 0"):
            draw(jax.random.key(0), (4,), dtype, domain)
        return
    values = _values(dtype, domain)
    assert np.all(values != 0)
    assert np.all(np.abs(values) <= 127)
    _assert_inside(values, domain)
    assert len(np.unique(values)) >= 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_the_manifest_can_be_drawn(dtype: str) -> None:
    with jax.enable_x64(True):
        drawn = draw(jax.random.key(0), (3,), dtype, None)
    assert drawn.dtype == jnp.dtype(dtype)


def test_booleans_are_both() -> None:
    assert 0.3 < _values("bool", None).mean() < 0.7


def test_every_integer_of_a_small_domain_but_zero_is_drawn() -> None:
    assert set(_values("int32", "[-2, 3)").ravel()) == {-2, -1, 1, 2}


def test_gates_are_weak_decays_as_trained_models_have_them() -> None:
    """-softplus(normal) / 16 has mean -0.05: a state keeps e^-0.05 of itself a step, not e^-1."""
    gates = _values("float32", "(-inf, 0]", shape=(1 << 16,))
    assert -0.06 < gates.mean() < -0.04
    assert gates.min() > -0.5


def test_floats_without_a_domain_are_standard_normal() -> None:
    values = _values("float32", None, shape=(1 << 16,))
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02


@settings(max_examples=40, deadline=None)
@given(
    low=st.integers(-1000, 1000),
    width=st.integers(1, 1000),
    ends=st.sampled_from(["[]", "()", "[)", "(]"]),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_any_interval_holds_what_is_drawn_from_it(low: int, width: int, ends: str, dtype: str) -> None:
    domain = f"{ends[0]}{low / 8}, {(low + width) / 8}{ends[1]}"
    if width < 0.02 * abs(low + width / 2):
        return  # a short dtype may have no number strictly between two ends as near as that
    values = _values(dtype, domain, shape=(128,))
    _assert_inside(values, domain)
    assert np.all(values != 0)


@settings(max_examples=40, deadline=None)
@given(low=st.integers(-100, 100), width=st.integers(0, 50), ends=st.sampled_from(["[]", "()", "[)", "(]"]))
def test_any_interval_of_integers_holds_what_is_drawn_from_it(low: int, width: int, ends: str) -> None:
    domain = f"{ends[0]}{low}, {low + width + 1}{ends[1]}"
    inside = {
        number
        for number in range(low, low + width + 2)
        if number and (ends[0] == "[" or number > low) and (ends[1] == "]" or number < low + width + 1)
    }
    if not inside:
        with pytest.raises(ValueError, match="but 0"):
            draw(jax.random.key(0), (4,), "int32", domain)
        return
    assert set(_values("int32", domain, shape=(64,)).ravel()) <= inside


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64"])
def test_a_64_bit_dtype_needs_x64(dtype: str) -> None:
    with pytest.raises(ValueError, match=f"dtype {dtype} needs jax_enable_x64"):
        draw(jax.random.key(0), (2,), dtype, None)
    with jax.enable_x64(True):
        assert draw(jax.random.key(0), (2,), dtype, None).dtype == jnp.dtype(dtype)


@pytest.mark.parametrize("domain", [None, "(-inf, 0]"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_x64_changes_no_value_and_no_dtype(dtype: str, domain: str | None) -> None:
    without = draw(jax.random.key(3), _SHAPE, dtype, domain)
    with jax.enable_x64(True):
        with_x64 = draw(jax.random.key(3), _SHAPE, dtype, domain)
    assert with_x64.dtype == without.dtype
    np.testing.assert_array_equal(np.asarray(with_x64), np.asarray(without))


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_arrays_without_elements_can_be_drawn(dtype: str, shape: tuple[int, ...]) -> None:
    assert draw(jax.random.key(0), shape, dtype, None).shape == shape


def test_drawing_can_be_traced() -> None:
    drawn = jax.jit(lambda key: draw(key, (4, 3), "bfloat16", "(-inf, 0]"))(jax.random.key(0))
    assert drawn.shape == (4, 3)


@pytest.mark.parametrize("domain", ["(1, 1)", "[0, 0]", "0 to 1", "(inf, inf)", "[2, 1]"])
def test_a_domain_without_numbers_is_refused(domain: str) -> None:
    with pytest.raises(ValueError, match=r"no interval|no more than one"):
        draw(jax.random.key(0), (2,), "float32", domain)
