"""Sums of log decays whose differences are exact, at any gate.

exp(G_i - G_j), G being the running sum of log decays inside a chunk, is the decay between two steps. As plain float32 the difference of two
large sums is wrong by as much as the sums are rounded: after one gate of -1000, by 3e-5 for every pair behind it. So each log decay is split in
two, l = coarse + fine: `coarse` a multiple of 2^-8, `fine` at most 2^-9. Sums of multiples of 2^-8 up to 2^14 are exact in float32, and
so are their differences; sums of what is left stay below 1/4, and their rounding is that of numbers below 1/4. Below -120 a log decay makes no difference:
its exponential is 0 in float32, and it is taken as -120. So -inf is a number like others, and 128 steps sum up to less than 2^14.
"""

import jax
import jax.numpy as jnp

FLOOR = -120.0
_GRID = 256.0


def log_decays(g: jax.Array | None, g_gamma: jax.Array | None, shape: tuple[int, ...]) -> jax.Array:
    """g [B, T, H] or None, g_gamma [H] or None -> their sum, `shape` [B, T, H] float32."""
    total = jnp.zeros(shape, jnp.float32)
    if g is not None:
        total = total + g.astype(jnp.float32)
    return total if g_gamma is None else total + g_gamma.astype(jnp.float32)


def gradients_of(
    dlog: jax.Array, g: jax.Array | None, g_gamma: jax.Array | None
) -> tuple[jax.Array | None, jax.Array | None]:
    """The gradient of `log_decays` [B, T, H] -> those of g and g_gamma in their dtypes, None where these are."""
    dg = None if g is None else dlog.astype(g.dtype)
    return dg, None if g_gamma is None else jnp.sum(dlog, axis=(0, 1)).astype(g_gamma.dtype)


def split(log: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log decays, float32 of any shape -> (coarse, fine). Derivatives flow through `fine`: rounding has none."""
    log = jnp.maximum(log, FLOOR)
    coarse = jnp.round(log * _GRID) * (1 / _GRID)
    return coarse, log - coarse
