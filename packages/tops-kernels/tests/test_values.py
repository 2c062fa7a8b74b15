"""Both implementations on shapes at the edges: nothing, one, odd, and wider than VMEM. The oracle's word is the test stage's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tops_kernels import add_rms_norm, matmul, rms_norm

HOW: dict[str, dict[str, Any]] = {
    "xla": {"backend": "xla"},
    "tpu": {"interpret": True},
    "gpu": {"interpret": True, "backend": "pallas_gpu"},
}


def _array(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> jax.Array:
    values = np.random.default_rng(seed).standard_normal(shape)
    return jnp.asarray(np.clip(values * 9, -127, 127) if dtype == "int8" else values, dtype)


def _norm(x: Any) -> np.ndarray:
    wide = np.asarray(x).astype(np.float64)
    return wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", [(1,), (7,), (1, 1), (0, 5), (3, 0, 5), (2, 3, 129), (17, 128), (1, 16385)])
def test_rms_norm_on_any_shape(shape: tuple[int, ...], how: str) -> None:
    x, residual = _array(shape), _array(shape, seed=1)
    np.testing.assert_allclose(rms_norm(x, **HOW[how]), _norm(x), rtol=1e-5, atol=1e-5)
    y, h = add_rms_norm(x, residual, **HOW[how])
    np.testing.assert_allclose(h, np.asarray(x + residual), rtol=1e-6)
    np.testing.assert_allclose(y, _norm(np.asarray(x + residual)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, 1), (1, 1)),
        ((0, 4), (4, 3)),
        ((3, 0), (0, 4)),
        ((3, 4), (4, 0)),
        ((0, 3, 4), (4, 5)),
        ((2, 0, 4), (2, 4, 5)),
        ((2, 3, 5, 7), (7, 11)),
        ((2, 3, 5, 7), (2, 3, 7, 11)),
        ((129, 257), (257, 127)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_matmul_on_any_shape(dtype: str, a: tuple[int, ...], b: tuple[int, ...], how: str) -> None:
    left, right = _array(a, dtype), _array(b, dtype, seed=1)
    wide = [np.asarray(x).astype(np.float64) for x in (left, right)]
    got = matmul(left, right, out_dtype=None if dtype == "int8" else "float32", **HOW[how])
    if dtype == "int8":
        np.testing.assert_array_equal(np.asarray(got), wide[0] @ wide[1])
    else:
        np.testing.assert_allclose(got, wide[0] @ wide[1], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shapes", [((0, 4), (4, 3), (3,)), ((3, 0), (0, 4), (4,)), ((2, 0, 3), (3, 5), (5,))])
def test_gradients_of_empty_products_are_zeros_of_the_right_shape(
    shapes: tuple[tuple[int, ...], ...], how: str
) -> None:
    a, b, bias = (_array(shape) for shape in shapes)
    gradients = jax.grad(lambda *xs: jnp.sum(matmul(*xs, activation="silu", **HOW[how])), (0, 1, 2))(a, b, bias)
    assert [g.shape for g in gradients] == [x.shape for x in (a, b, bias)]
    assert not np.any(gradients[1])


@pytest.mark.parametrize("how", HOW)
def test_the_largest_finite_inputs_do_not_overflow_the_mean_square_unless_it_does_in_float32(how: str) -> None:
    x = jnp.full((2, 128), 1e18)  # squares are 1e36
    np.testing.assert_allclose(rms_norm(x, **HOW[how]), np.ones((2, 128)), rtol=1e-6)
    np.testing.assert_array_equal(rms_norm(jnp.zeros((2, 128)), **HOW[how]), np.zeros((2, 128)))
    np.testing.assert_array_equal(rms_norm(jnp.zeros((2, 128)), eps=1e-12, **HOW[how]), np.zeros((2, 128)))


@pytest.mark.parametrize("how", HOW)
def test_gradients_of_large_rows_overflow_no_product_on_the_way(how: str) -> None:
    x = jnp.full((1, 8), 1e18)
    dy = jnp.asarray([[1e21, -1e21, 2e21, 1e20, -3e21, 1e21, 5e20, 1e21]])
    scale = jnp.ones(8)
    dx, dscale = jax.vjp(lambda x, s: rms_norm(x, s, **HOW[how]), x, scale)[1](dy)
    wide = np.asarray(dy, np.float64)
    np.testing.assert_allclose(dx, (wide - wide.mean()) / 1e18, rtol=1e-4)
    np.testing.assert_allclose(dscale, wide[0], rtol=1e-5)


@pytest.mark.parametrize("how", HOW)
def test_a_nan_or_an_infinity_stays_in_its_row(how: str) -> None:
    x = _array((40, 130)).at[3, 5].set(jnp.nan).at[7, 129].set(jnp.inf)
    got = np.asarray(rms_norm(x, **HOW[how]))
    assert np.isnan(got[3]).all()
    assert np.isfinite(np.delete(got, [3, 7], axis=0)).all()
    a = _array((40, 20)).at[3, 5].set(jnp.nan)
    product = np.asarray(matmul(a, _array((20, 30)), **HOW[how]))
    assert np.isnan(product[3]).all()
    assert np.isfinite(np.delete(product, 3, axis=0)).all()


@settings(max_examples=15, deadline=None)
@given(batch=st.lists(st.integers(0, 3), max_size=2), m=st.integers(0, 40), k=st.integers(0, 40), n=st.integers(0, 40))
def test_the_kernels_are_the_xla_path_on_any_shape(batch: list[int], m: int, k: int, n: int) -> None:
    a, b = _array((*batch, m, k)), _array((k, n), seed=1)
    want, *others = (matmul(a, b, activation="gelu", **how) for how in HOW.values())
    for got in others:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)
