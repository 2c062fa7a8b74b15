"""matmul with its epilogue as a user of JAX writes it: jnp.matmul or lax.dot_general, jax.nn activations; gradients by autodiff."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = MappingProxyType(
    {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
)


def _accumulator(a: jax.Array) -> jnp.dtype:
    """int32 for integers, float32 for anything shorter."""
    return jnp.dtype(jnp.int32) if jnp.issubdtype(a.dtype, jnp.integer) else jnp.promote_types(a.dtype, jnp.float32)


def _finish(a: jax.Array, y: jax.Array, bias: jax.Array | None, activation: str, out_dtype: str | None) -> jax.Array:
    """Bias and activation in the accumulator's dtype, then the one rounding."""
    if bias is not None:
        y = y + bias.astype(y.dtype)
    if activation != "none":
        y = _ACTIVATIONS[activation](y)
    return y.astype(out_dtype or (y.dtype if jnp.issubdtype(a.dtype, jnp.integer) else a.dtype))


def matmul_jnp(
    a: jax.Array,
    b: jax.Array,
    bias: jax.Array | None = None,
    *,
    activation: str = "none",
    out_dtype: str | None = None,
) -> jax.Array:
    """a [*B, M, K], b [K, N] or [*B, K, N], bias [N] -> [*B, M, N] by jnp.matmul."""
    return _finish(a, jnp.matmul(a, b, preferred_element_type=_accumulator(a)), bias, activation, out_dtype)


def matmul_lax(
    a: jax.Array,
    b: jax.Array,
    bias: jax.Array | None = None,
    *,
    activation: str = "none",
    out_dtype: str | None = None,
) -> jax.Array:
    """a [*B, M, K], b [K, N] or [*B, K, N], bias [N] -> [*B, M, N] by one lax.dot_general, no reshapes."""
    batch = tuple(range(b.ndim - 2))
    dimensions = (((a.ndim - 1,), (b.ndim - 2,)), (batch, batch))
    return _finish(
        a, lax.dot_general(a, b, dimensions, preferred_element_type=_accumulator(a)), bias, activation, out_dtype
    )


BASELINES: Mapping[str, Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {"matmul": MappingProxyType({"jnp": matmul_jnp, "lax": matmul_lax})}
)
