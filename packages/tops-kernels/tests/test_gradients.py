"""Derivatives: dtypes, second derivatives, what is kept for the backward pass. Values are the test stage's business."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tops_kernels import add_rms_norm, matmul, rms_norm

# NumPy, not jnp: an array made at import would start a backend while pytest still collects.
RANDOM = np.random.default_rng(0)
X, SCALE, W, BIAS = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((5, 24), (24,), (24, 7), (7,)))


def _plain_norm(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def _plain_add_norm(x: Any, residual: Any, scale: Any) -> Any:
    return _plain_norm(x + residual, scale), x + residual


def _plain_matmul(a: Any, b: Any, bias: Any) -> Any:
    return jax.nn.gelu(jnp.matmul(a, b, precision="highest") + bias, approximate=True)


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "rms_norm": (rms_norm, _plain_norm, (X, SCALE)),
    "add_rms_norm": (add_rms_norm, _plain_add_norm, (X, X[::-1], SCALE)),
    "matmul": (lambda *xs: matmul(*xs, activation="gelu"), _plain_matmul, (X, W, BIAS)),
}


def _loss(function: Callable[..., Any], *arrays: Any) -> Any:
    return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(function(*arrays)))


@pytest.mark.parametrize("name", PAIRS)
def test_first_and_second_derivatives_are_those_of_plain_jnp(name: str) -> None:
    ours, plain, arrays = PAIRS[name]
    numbers = tuple(range(len(arrays)))

    def second(function: Callable[..., Any]) -> Any:
        def first(*xs: Any) -> Any:
            return sum(jnp.vdot(g, jnp.cos(g)) for g in jax.grad(lambda *ys: _loss(function, *ys), numbers)(*xs))

        return jax.jit(jax.grad(first, numbers))(*arrays)

    for got, want in zip(
        jax.grad(lambda *xs: _loss(ours, *xs), numbers)(*arrays),
        jax.grad(lambda *xs: _loss(plain, *xs), numbers)(*arrays),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    for got, want in zip(second(ours), second(plain), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("x_dtype", ["float32", "bfloat16"])
def test_each_gradient_has_its_primals_dtype(x_dtype: str, scale_dtype: str) -> None:
    x, scale = jnp.asarray(X, x_dtype), jnp.asarray(SCALE, scale_dtype)
    dx, dscale = jax.grad(lambda x, s: rms_norm(x, s).astype(jnp.float32).sum(), (0, 1))(x, scale)
    assert (dx.dtype, dscale.dtype) == (x.dtype, scale.dtype)
    a, b, bias = x, jnp.asarray(W, x_dtype), jnp.asarray(BIAS, x_dtype)
    for out_dtype in ("float32", "bfloat16"):
        gradients = jax.grad(lambda *xs, to=out_dtype: matmul(*xs, out_dtype=to).astype(jnp.float32).sum(), (0, 1, 2))(
            a, b, bias
        )
        assert [g.dtype for g in gradients] == [a.dtype] * 3


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_kept_has_a_name_that_checkpoint_policies_see(name: str) -> None:
    ours, _, arrays = PAIRS[name]
    text = str(jax.make_jaxpr(lambda *xs: jax.vjp(ours, *xs)[0])(*arrays))
    assert f"name={name}." in text


def test_a_policy_that_saves_z_recomputes_no_product() -> None:
    def products(policy: Any) -> int:
        run = jax.checkpoint(lambda a: matmul(a, W, activation="silu").sum(), policy=policy)
        return str(jax.make_jaxpr(jax.grad(run))(X)).count("tops_choose[")

    saved = products(jax.checkpoint_policies.save_only_these_names("matmul.z"))
    assert saved < products(jax.checkpoint_policies.nothing_saveable)


def test_a_replicated_weight_under_shard_map_gets_the_whole_gradient() -> None:
    """One device here; that the sum over the axis is taken once shows in the jaxpr whatever the axis' size."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    spec = jax.sharding.PartitionSpec

    def loss(x: Any, scale: Any) -> Any:
        run = jax.shard_map(lambda x, s: rms_norm(x, s), mesh=mesh, in_specs=(spec("x"), spec()), out_specs=spec("x"))
        return jnp.sum(jnp.sin(run(x, scale)))

    got = jax.jit(jax.grad(loss, (0, 1)))(X, SCALE)
    want = jax.grad(lambda x, s: jnp.sum(jnp.sin(_plain_norm(x, s))), (0, 1))(X, SCALE)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5)
    text = str(jax.make_jaxpr(jax.grad(loss, 1))(X, SCALE))
    assert len([line for line in text.splitlines() if "psum" in line]) == 1


def test_integers_have_no_gradient_and_say_so() -> None:
    a = jnp.ones((3, 4), jnp.int8)
    with pytest.raises(TypeError, match="int8"):
        jax.grad(lambda a: matmul(a, a.T).sum().astype(jnp.float32))(a)
