"""What is done to a float32 sum before it is rounded, and its derivative: shared by every implementation, kernels included."""

import jax
import jax.numpy as jnp
from jax import lax

_SQRT_2_OVER_PI = 0.7978845608028654
_CUBIC = 0.044715  # gelu in its tanh form, arXiv:1606.08415 section 2


def activated(z: jax.Array, activation: str) -> jax.Array:
    """activation(z), elementwise; "none", "relu", "gelu" (tanh form) or "silu"."""
    match activation:
        case "relu":
            return jnp.maximum(z, 0)
        case "gelu":
            return 0.5 * z * (1.0 + jnp.tanh(_SQRT_2_OVER_PI * (z + _CUBIC * (z * z * z))))
        case "silu":
            return z * lax.logistic(z)
    return z


def slope(z: jax.Array, activation: str) -> jax.Array:
    """The derivative at z; relu's at 0 is 0."""
    match activation:
        case "relu":
            return jnp.where(z > 0, 1.0, 0.0).astype(z.dtype)
        case "gelu":
            t = jnp.tanh(_SQRT_2_OVER_PI * (z + _CUBIC * (z * z * z)))
            return 0.5 * (1.0 + t) + 0.5 * z * (1.0 - t * t) * (_SQRT_2_OVER_PI * (1.0 + 3.0 * _CUBIC * (z * z)))
        case "silu":
            s = lax.logistic(z)
            return s * (1.0 + z * (1.0 - s))
    return jnp.ones_like(z)
