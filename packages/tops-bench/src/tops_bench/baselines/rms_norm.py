"""rms_norm and add_rms_norm as a user of JAX writes them: float32 inside, one rounding at the end; gradients by autodiff."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def rms_norm_jnp(
    x: jax.Array, scale: jax.Array | None = None, *, eps: float = 1e-6, scale_offset: float = 0.0
) -> jax.Array:
    """x [*B, D], scale [D] -> [*B, D]: the formula word by word in jnp (arXiv:1910.07467, eq. 4)."""
    x32 = x.astype(jnp.float32)
    y = x32 / jnp.sqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    if scale is not None:
        y = y * (scale.astype(jnp.float32) + scale_offset)
    return y.astype(x.dtype)


def rms_norm_lax(
    x: jax.Array, scale: jax.Array | None = None, *, eps: float = 1e-6, scale_offset: float = 0.0
) -> jax.Array:
    """x [*B, D], scale [D] -> [*B, D]: as model libraries have it, with lax.rsqrt instead of a square root and a division."""
    x32 = x.astype(jnp.float32)
    y = x32 * lax.rsqrt(jnp.mean(lax.square(x32), axis=-1, keepdims=True) + eps)
    if scale is not None:
        y = y * (scale.astype(jnp.float32) + scale_offset)
    return y.astype(x.dtype)


def _add_rms_norm(
    norm: Callable[..., jax.Array],
    x: jax.Array,
    residual: jax.Array,
    scale: jax.Array | None,
    eps: float,
    scale_offset: float,
) -> tuple[jax.Array, jax.Array]:
    """The sum stays in float32 on its way into the norm; what is handed on is rounded once."""
    h = x.astype(jnp.float32) + residual.astype(jnp.float32)
    return norm(h, scale, eps=eps, scale_offset=scale_offset).astype(x.dtype), h.astype(x.dtype)


def add_rms_norm_jnp(
    x: jax.Array,
    residual: jax.Array,
    scale: jax.Array | None = None,
    *,
    eps: float = 1e-6,
    scale_offset: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """x, residual [*B, D], scale [D] -> normed sum, sum; both [*B, D]."""
    return _add_rms_norm(rms_norm_jnp, x, residual, scale, eps, scale_offset)


def add_rms_norm_lax(
    x: jax.Array,
    residual: jax.Array,
    scale: jax.Array | None = None,
    *,
    eps: float = 1e-6,
    scale_offset: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """x, residual [*B, D], scale [D] -> normed sum, sum; both [*B, D]."""
    return _add_rms_norm(rms_norm_lax, x, residual, scale, eps, scale_offset)


BASELINES: Mapping[str, Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "rms_norm": MappingProxyType({"jnp": rms_norm_jnp, "lax": rms_norm_lax}),
        "add_rms_norm": MappingProxyType({"jnp": add_rms_norm_jnp, "lax": add_rms_norm_lax}),
    }
)
