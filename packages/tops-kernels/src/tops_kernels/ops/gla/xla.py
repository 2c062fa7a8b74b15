"""gla in plain JAX: the loops of `_xla_loops`, with one of two exact forms a chunk. A chunk whose gates are weak takes `_xla_narrow`, any other
`_xla_chunk`; a `lax.cond` on the chunk's own gates decides.
"""

import jax

from tops_kernels.ops.gla import _xla_chunk, _xla_loops, _xla_narrow

_FORMS = _xla_loops.Forms(_xla_chunk, _xla_narrow, _xla_narrow.narrow_chunks)


def gla_fwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
) -> tuple[jax.Array, jax.Array]:
    """q [B, T, HQ, K], k, g [B, T, H, K], v [B, T, H, V], initial_state [B or N, H, K, V] or None, cu_seqlens [N + 1] or None
    -> o [B, T, HQ, V] in v's dtype, final_state like initial_state, float32."""
    return _xla_loops.forward(q, k, v, g, initial_state, cu_seqlens, scale=scale, reverse=reverse, forms=_FORMS)


def gla_bwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    do: jax.Array,
    dfinal: jax.Array,
    *,
    scale: float,
    reverse: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """The arguments of `gla_fwd`, do and dfinal the cotangents of its outputs -> gradients of q, k, v, g and initial_state (None where
    that is None), in their dtypes."""
    arrays = q, k, v, g, initial_state, cu_seqlens, do, dfinal
    return _xla_loops.backward(*arrays, scale=scale, reverse=reverse, forms=_FORMS)


def gla_end(
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    rows: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
) -> jax.Array:
    """Arguments of `gla_fwd`; rows [2]: the first that takes part and the one after the last, None: all -> final_state alone."""
    return _xla_loops.end(k, v, g, initial_state, rows, scale=scale, reverse=reverse, forms=_FORMS)


def gla_start(
    q: jax.Array,
    v: jax.Array,
    g: jax.Array,
    do: jax.Array,
    dfinal: jax.Array,
    rows: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
) -> jax.Array:
    """Arguments of `gla_bwd`, rows as for `gla_end` -> the gradient of initial_state alone, float32."""
    return _xla_loops.start(q, v, g, do, dfinal, rows, scale=scale, reverse=reverse, forms=_FORMS)
