"""Positions along a dimension: none of them twice, some of them none at all."""

import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tops_manifest import contract
from tops_manifest.workloads import Case
from tops_workloads import Workload
from tops_workloads.distributions import draw_distinct

_TOML = """
schema = 1
[op]
name = "pick"
family = "pick"
version = 1
status = "planned"
ref = "none"
doc = "none"
kernel_map = ["xla"]
[inputs]
q = { shape = "B K", dtype = "float32" }
s = { shape = "B K", with = { index = "P K" }, dtype = "float32" }
index = { shape = "B", dtype = "int32", optional = true, indexes = "P" }
[outputs]
o = { shape = "B K", dtype = "float32" }
"""
_OP = contract.from_table(tomllib.loads(_TOML), Path("ops/pick.toml"))


def _values(seed: int, size: int = 6, count: int = 9, dtype: str = "int32") -> np.ndarray:
    drawn = draw_distinct(jax.random.key(seed), size, dtype, count)
    assert drawn.shape == (size,)
    assert drawn.dtype == jnp.dtype(dtype)
    return np.asarray(drawn).astype(np.int64)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 20), size=st.integers(0, 300), count=st.integers(0, 300))
def test_values_are_positions_none_of_them_twice_or_none_at_all(seed: int, size: int, count: int) -> None:
    values = _values(seed, size, count)
    assert np.all((values >= -1) & (values < count))
    found = values[values >= 0]
    assert len(np.unique(found)) == len(found)


def test_one_in_eight_is_none_where_there_is_room_for_all() -> None:
    values = np.concatenate([_values(seed, 64, 100) for seed in range(50)])
    assert 0.1 < np.mean(values == -1) < 0.15


def test_positions_come_in_every_order() -> None:
    firsts = np.array([_values(seed)[0] for seed in range(300)])
    assert set(firsts) == {-1, *range(9)}


def test_more_values_than_positions_leave_the_rest_without_one() -> None:
    values = _values(3, 40, 5)
    assert np.sum(values >= 0) <= 5
    assert np.all(_values(3, 40, 0) == -1)


@pytest.mark.parametrize(("dtype", "count"), [("int8", 128), ("int32", 2**31 - 1), ("int32", -1)])
def test_positions_that_the_dtype_does_not_hold_are_refused(dtype: str, count: int) -> None:
    with pytest.raises(ValueError, match=f"count is {count}; {dtype} holds positions along at most"):
        draw_distinct(jax.random.key(0), 3, dtype, count)


def test_x64_changes_no_value() -> None:
    without = _values(3)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(_values(3), without)
        np.testing.assert_array_equal(_values(3, dtype="int64"), without)


def test_the_values_of_a_key_are_the_ones_they_were() -> None:
    """Records and certificates name a seed: another distribution is a new version of this package, not an accident."""
    assert _values(0).tolist() == [-1, -1, 1, 4, 2, -1]


def test_a_workload_draws_positions_along_its_dimension_whatever_else_is_given() -> None:
    case = Case(_OP, "row", {"B": 6, "K": 4, "P": 7}, {}, {}, ("index",), {}, ("fwd",))
    inputs = Workload(case).gen_inputs(jax.random.key(2))
    values = np.asarray(inputs["index"])
    assert values.dtype == np.int32
    assert inputs["s"].shape == (7, 4)
    assert np.all((values >= -1) & (values < 7))
