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
    h: jax.Array, scale: jax.Array | None, dy: jax.Array, dh: jax.Array | None, *, eps: float, scale_offset: float
) -> tuple[jax.Array, jax.Array | None]:
    """Gradients of the normed array and of the scale.

    h [..., D] is what was normed, dy [..., D] the cotangent of y, dh that of new_residual, or None where there is none.
    Returns dh in h's dtype and dscale in scale's, both summed in float32. With r = rstd, u = dy * (scale + scale_offset):
    dh = r * (u - x_hat * mean(u * x_hat)), x_hat = h * r. The statistic is computed again: cheaper than keeping a row vector.
    """
    h32, u = h.astype(jnp.float32), dy.astype(jnp.float32)
    rstd = lax.rsqrt(jnp.mean(h32 * h32, axis=-1, keepdims=True) + eps)
    x_hat = h32 * rstd
    dscale = None
    if scale is not None:
        dscale = jnp.sum(u * x_hat, axis=tuple(range(h.ndim - 1))).astype(scale.dtype)
        u = u * factor(scale, scale_offset)
    grad = rstd * (u - x_hat * jnp.mean(u * x_hat, axis=-1, keepdims=True))
    if dh is not None:
        grad = grad + dh.astype(jnp.float32)
    return grad.astype(h.dtype), dscale
