"""Where packed sequences begin and end: values that rise from 0 to at most a dimension's size."""

import dataclasses
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
from tops_workloads.distributions import draw_rising

_TOML = """
schema = 1
[op]
name = "scan"
family = "scan"
version = 1
status = "planned"
ref = "none"
doc = "none"
kernel_map = ["xla"]
[inputs]
q = { shape = "B T K", dtype = "float32" }
s = { shape = "B K", with = { cu_seqlens = "N K" }, dtype = "float32", optional = true }
cu_seqlens = { shape = "N+1", dtype = "int32", optional = true, rises = "T" }
[outputs]
o = { shape = "B T K", dtype = "float32" }
"""
_OP = contract.from_table(tomllib.loads(_TOML), Path("ops/scan.toml"))
_T, _N = 40, 6


def _workload(*present: str) -> Workload:
    batch = 1 if "cu_seqlens" in present else 2
    return Workload(Case(_OP, "row", {"B": batch, "T": _T, "K": 4, "N": _N}, {}, {}, present, {}, ("fwd",)))


def _values(seed: int, size: int = _N + 1, end: int = _T, dtype: str = "int32") -> np.ndarray:
    drawn = draw_rising(jax.random.key(seed), size, dtype, end)
    assert drawn.shape == (size,)
    assert drawn.dtype == jnp.dtype(dtype)
    return np.asarray(drawn).astype(np.int64)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 20), size=st.integers(1, 300), end=st.integers(0, 1 << 20))
def test_values_rise_from_zero_to_at_most_the_end(seed: int, size: int, end: int) -> None:
    values = _values(seed, size, end)
    assert values[0] == 0
    assert np.all(np.diff(values) >= 0)
    assert values[-1] <= end


def test_the_last_value_is_the_end_in_most_draws_and_short_of_it_in_some() -> None:
    last = np.array([_values(seed)[-1] for seed in range(200)])
    assert 0.8 < np.mean(last == _T) < 0.97
    assert np.all(last >= _T // 2)


def test_some_sequences_are_empty_and_most_are_not() -> None:
    """Two of 6 ends in a million fall on one value by chance: what is equal here was made so."""
    lengths = np.concatenate([np.diff(_values(seed, end=1_000_000)) for seed in range(200)])
    assert 0.05 < np.mean(lengths == 0) < 0.2
    firsts = [np.diff(_values(seed, end=1_000_000))[0] for seed in range(200)]
    assert 0 in firsts, "the first sequence is empty at times"


def test_ends_lie_all_over_the_length() -> None:
    inside = np.concatenate([_values(seed, end=1000)[1:-1] for seed in range(200)])
    assert 400 < inside.mean() < 600
    assert len(np.unique(inside)) > 400


@pytest.mark.parametrize(("size", "expected"), [(0, []), (1, [0])])
def test_no_sequence_at_all_has_no_end_but_the_first(size: int, expected: list[int]) -> None:
    assert _values(0, size).tolist() == expected


def test_a_length_of_zero_has_empty_sequences_alone() -> None:
    assert _values(0, 5, 0).tolist() == [0] * 5


@pytest.mark.parametrize(("dtype", "end"), [("int8", 128), ("int32", 2**31 - 1), ("int32", -1)])
def test_an_end_that_the_dtype_does_not_hold_is_refused(dtype: str, end: int) -> None:
    with pytest.raises(ValueError, match=f"end is {end}; {dtype} rises from 0 to at most"):
        draw_rising(jax.random.key(0), 3, dtype, end)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_another_integer_dtype_has_the_same_values(dtype: str) -> None:
    np.testing.assert_array_equal(_values(3, dtype=dtype), _values(3))


def test_a_64_bit_dtype_needs_x64_and_x64_changes_no_value() -> None:
    with pytest.raises(ValueError, match="dtype int64 needs jax_enable_x64"):
        draw_rising(jax.random.key(0), 3, "int64", 5)
    without = _values(3)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(_values(3), without)
        np.testing.assert_array_equal(_values(3, dtype="int64"), without)


def test_drawing_can_be_traced() -> None:
    traced = jax.jit(lambda key: draw_rising(key, 7, "int32", _T))(jax.random.key(4))
    np.testing.assert_array_equal(np.asarray(traced), _values(4))


def test_the_values_of_a_key_are_the_ones_they_were() -> None:
    """Records and certificates name a seed: another distribution is a new version of this package, not an accident."""
    assert _values(0).tolist() == [0, 0, 2, 7, 7, 39, 40]


def test_a_workload_draws_what_rises_up_to_its_dimension() -> None:
    for seed in range(20):
        inputs = _workload("s", "cu_seqlens").gen_inputs(jax.random.key(seed))
        values = np.asarray(inputs["cu_seqlens"])
        assert values.dtype == np.int32
        assert (values[0], values.shape) == (0, (_N + 1,))
        assert np.all(np.diff(values) >= 0)
        assert values[-1] <= _T
    assert {name: aval.shape for name, aval in _workload("s", "cu_seqlens").avals().items()} == {
        "q": (1, _T, 4), "s": (_N, 4), "cu_seqlens": (_N + 1,),
    }  # fmt: skip
    assert _workload("s").avals()["s"].shape == (2, 4)


def test_the_values_depend_on_key_shape_and_length_alone() -> None:
    both, alone = (
        _workload(*present).gen_inputs(jax.random.key(2)) for present in (("s", "cu_seqlens"), ("cu_seqlens",))
    )
    np.testing.assert_array_equal(np.asarray(both["cu_seqlens"]), np.asarray(alone["cu_seqlens"]))
    case = _workload("cu_seqlens").case
    longer = Workload(dataclasses.replace(case, dims={**case.dims, "T": 10 * _T})).gen_inputs(jax.random.key(2))
    assert int(longer["cu_seqlens"][-1]) > _T
