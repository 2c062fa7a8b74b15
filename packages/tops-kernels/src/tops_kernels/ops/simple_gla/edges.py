"""What sequence parallelism needs beside the op itself: the state after a shard's steps, and the gradient of the state before them.

With one decay a step and head each is one product over all steps, with weights: the decay from step j to the end, or from the start through
step i. Their logs are running sums that begin at the edge, so nothing is taken away again: a gate of -inf is a weight of 0 for what lies
behind it and says nothing of the rest. In plain JAX on every platform: there is nothing here that a kernel would do better.
"""

import jax
import jax.numpy as jnp
from jax import lax

from tops_kernels.ops.simple_gla.decays import log_decays


def end(
    k: jax.Array,
    v: jax.Array,
    g: jax.Array | None,
    g_gamma: jax.Array | None,
    state: jax.Array | None,
    rows: jax.Array | None,
    *,
    reverse: bool,
) -> jax.Array:
    """k [B, T, H, K], v [B, T, H, V], g [B, T, H] or None, g_gamma [H] or None; state [B, H, K, V] float32 before the rows, None: zeros; rows
    [2]: the first that takes part and the one after the last, None: all -> the state after them, float32."""
    log = _inside(log_decays(g, g_gamma, k.shape[:3]), rows)
    through = lax.cumsum(log, axis=1, reverse=not reverse)  # of step j and all after it, in the order of time
    weights = jnp.exp(_after(through, reverse))[..., None]
    own = _product("bthk,bthv->bhkv", _inside(k, rows).astype(jnp.float32) * weights, _inside(v, rows), k)
    if state is None:
        return own
    return jnp.exp(_last(through, not reverse))[:, :, None, None] * state + own


def start(
    q: jax.Array,
    k: jax.Array,
    g: jax.Array | None,
    g_gamma: jax.Array | None,
    do: jax.Array,
    dstate: jax.Array,
    rows: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
) -> jax.Array:
    """q [B, T, HQ, K], do [B, T, HQ, V]; dstate [B, H, K, V] float32: the gradient of the state after the rows; the rest as for `end`, k for its
    shape -> the gradient of the state before them, float32."""
    log = _inside(log_decays(g, g_gamma, k.shape[:3]), rows)
    through = lax.cumsum(log, axis=1, reverse=reverse)  # of step i and all before it
    weights = (scale * jnp.exp(through))[..., None, None]
    b, t, h = k.shape[:3]
    query = _inside(q, rows).astype(jnp.float32).reshape(b, t, h, -1, q.shape[3]) * weights
    own = _product("bthgk,bthgv->bhkv", query, _inside(do, rows).reshape(b, t, h, -1, do.shape[3]), q)
    return jnp.exp(_last(through, reverse))[:, :, None, None] * dstate + own


def _inside(x: jax.Array, rows: jax.Array | None) -> jax.Array:
    """[B, T, ..], zeros outside of rows: no key, no value, no decay. A select, so that a NaN there stays there."""
    if rows is None:
        return x
    row = jnp.arange(x.shape[1]).reshape(-1, *[1] * (x.ndim - 2))
    return jnp.where((row >= rows[0]) & (row < rows[1]), x, 0)


def _after(through: jax.Array, reverse: bool) -> jax.Array:
    """Sums that leave out the step itself: those of the next step in the order of time."""
    none = jnp.zeros_like(through[:, :1])
    parts = [none, through[:, :-1]] if reverse else [through[:, 1:], none]
    return jnp.concatenate(parts, axis=1)


def _last(through: jax.Array, first_row: bool) -> jax.Array:
    """The sum over all steps, [B, H]: it stands in the first row where sums run up from the last."""
    return through[:, 0] if first_row else through[:, -1]


def _product(subscripts: str, weighted: jax.Array, x: jax.Array, like: jax.Array) -> jax.Array:
    """float32. Operands in bfloat16 have nothing that the last passes of a float32 product on TPU would add to."""
    precision = lax.Precision.HIGHEST if like.dtype == jnp.float32 else lax.Precision.HIGH
    return jnp.einsum(
        subscripts, weighted, x.astype(jnp.float32), precision=precision, preferred_element_type=jnp.float32
    )
