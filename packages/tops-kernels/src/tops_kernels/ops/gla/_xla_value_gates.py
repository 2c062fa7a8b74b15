"""gla with gates on values too in plain JAX: the loops of `_xla_loops`, with the arithmetic of a chunk that takes both gates.

Inside, the two lie side by side, [.., K + V]: one array of log decays, weak where both are.
"""

import jax
import jax.numpy as jnp

from tops_kernels.ops.gla import _xla_loops, _xla_narrow, _xla_value_chunk, _xla_value_narrow

_FORMS = _xla_loops.Forms(_xla_value_chunk, _xla_value_narrow, _xla_narrow.narrow_chunks)


def gla_fwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    gv: jax.Array,
    *,
    scale: float,
    reverse: bool,
) -> tuple[jax.Array, jax.Array]:
    """The arguments of `xla.gla_fwd`, and gv [B, T, H, V] -> what that gives."""
    return _xla_loops.forward(
        q, k, v, _beside(g, gv), initial_state, cu_seqlens, scale=scale, reverse=reverse, forms=_FORMS
    )


def gla_bwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    gv: jax.Array,
    do: jax.Array,
    dfinal: jax.Array,
    *,
    scale: float,
    reverse: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None, jax.Array]:
    """The arguments of `xla.gla_bwd`, and gv -> what that gives, and the gradient of gv."""
    given = q, k, v, _beside(g, gv), initial_state, cu_seqlens, do, dfinal
    dq, dk, dv, dgates, dinitial = _xla_loops.backward(*given, scale=scale, reverse=reverse, forms=_FORMS)
    dg, dgv = _xla_value_chunk.apart(dgates, g.shape[-1])
    return dq, dk, dv, dg.astype(g.dtype), dinitial, dgv.astype(gv.dtype)


def gla_end(
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    rows: jax.Array | None,
    gv: jax.Array,
    *,
    scale: float,
    reverse: bool,
) -> jax.Array:
    """The arguments of `xla.gla_end`, and gv -> what that gives."""
    return _xla_loops.end(k, v, _beside(g, gv), initial_state, rows, scale=scale, reverse=reverse, forms=_FORMS)


def gla_start(
    q: jax.Array,
    v: jax.Array,
    g: jax.Array,
    do: jax.Array,
    dfinal: jax.Array,
    rows: jax.Array | None,
    gv: jax.Array,
    *,
    scale: float,
    reverse: bool,
) -> jax.Array:
    """The arguments of `xla.gla_start`, and gv -> what that gives."""
    return _xla_loops.start(q, v, _beside(g, gv), do, dfinal, rows, scale=scale, reverse=reverse, forms=_FORMS)


def _beside(g: jax.Array, gv: jax.Array) -> jax.Array:
    """[B, T, H, K + V] float32."""
    return jnp.concatenate([g.astype(jnp.float32), gv.astype(jnp.float32)], axis=-1)
