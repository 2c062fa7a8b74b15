"""rms_norm and add_rms_norm in plain JAX: on a CPU as fast as the lines a user would write, and the fallback everywhere."""

import jax
import jax.numpy as jnp
from jax import lax


def norm(h: jax.Array, scale: jax.Array | None, *, eps: float, scale_offset: float) -> jax.Array:
    """h [..., D] float32, scale [D] or None -> y [..., D] float32."""
    y = h * lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + eps)
    return y if scale is None else y * factor(scale, scale_offset)


def factor(scale: jax.Array, scale_offset: float) -> jax.Array:
    """scale + scale_offset in float32."""
    scale = scale.astype(jnp.float32)
    return scale + scale_offset if scale_offset else scale


def rms_norm_fwd(x: jax.Array, scale: jax.Array | None, *, eps: float, scale_offset: float) -> jax.Array:
    """x [..., D], scale [D] or None -> y [..., D] in x's dtype."""
    return norm(x.astype(jnp.float32), scale, eps=eps, scale_offset=scale_offset).astype(x.dtype)


def add_rms_norm_fwd(
    x: jax.Array, residual: jax.Array, scale: jax.Array | None, *, eps: float, scale_offset: float
) -> tuple[jax.Array, jax.Array]:
    """x, residual [..., D] -> y, new_residual [..., D] in their dtype. y is the norm of the sum before it is rounded."""
    h = x.astype(jnp.float32) + residual.astype(jnp.float32)
    return norm(h, scale, eps=eps, scale_offset=scale_offset).astype(x.dtype), h.astype(x.dtype)


def rms_norm_bwd(
    x: jax.Array, scale: jax.Array | None, dy: jax.Array, *, eps: float, scale_offset: float
) -> tuple[jax.Array, jax.Array | None]:
    """Gradients of x and scale, from dy [..., D], the cotangent of y."""
    grad, dscale = _norm_bwd(x.astype(jnp.float32), scale, dy, eps=eps, scale_offset=scale_offset)
    return grad.astype(x.dtype), dscale


def add_rms_norm_bwd(
    x: jax.Array,
    residual: jax.Array,
    scale: jax.Array | None,
    dy: jax.Array,
    dh: jax.Array,
    *,
    eps: float,
    scale_offset: float,
) -> tuple[jax.Array, jax.Array | None]:
    """The gradient of x, which is that of residual too, and of scale, from the cotangents of y and new_residual [..., D]."""
    h = x.astype(jnp.float32) + residual.astype(jnp.float32)
    grad, dscale = _norm_bwd(h, scale, dy, eps=eps, scale_offset=scale_offset)
    return (grad + dh.astype(jnp.float32)).astype(x.dtype), dscale


def _norm_bwd(
    h: jax.Array, scale: jax.Array | None, dy: jax.Array, *, eps: float, scale_offset: float
) -> tuple[jax.Array, jax.Array | None]:
    """Through `norm`, in float32. With r = rstd, x_hat = h * r, u = dy * (scale + scale_offset):

    dh = r * (u - x_hat * mean(u * x_hat));  dscale = sum over rows of dy * x_hat.
    The statistic is computed again: cheaper than keeping a row vector.
    """
    u = dy.astype(jnp.float32)
    rstd = lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + eps)
    x_hat = h * rstd
    dscale = None
    if scale is not None:
        dscale = jnp.sum(u * x_hat, axis=tuple(range(h.ndim - 1))).astype(scale.dtype)
        u = u * factor(scale, scale_offset)
    return rstd * (u - x_hat * jnp.mean(u * x_hat, axis=-1, keepdims=True)), dscale
