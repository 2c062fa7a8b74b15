"""simple_gla in plain JAX: the loops of gla, with the arithmetic of a chunk that has one decay a step and head."""

import jax

from tops_kernels.ops.gla import _xla_loops
from tops_kernels.ops.simple_gla import _xla_chunk
from tops_kernels.ops.simple_gla.decays import gradients_of, log_decays
from tops_kernels.runtime.manual import cast, varying

_FORMS = _xla_loops.Forms(_xla_chunk)


def simple_gla_fwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array | None,
    g_gamma: jax.Array | None,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
) -> tuple[jax.Array, jax.Array]:
    """q [B, T, HQ, K], k [B, T, H, K], v [B, T, H, V], g [B, T, H] or None, g_gamma [H] or None, initial_state [B or N, H, K, V] or None,
    cu_seqlens [N + 1] or None -> o [B, T, HQ, V] in v's dtype, final_state like initial_state, float32."""
    gates = _gates(g, g_gamma, k)
    return _xla_loops.forward(q, k, v, gates, initial_state, cu_seqlens, scale=scale, reverse=reverse, forms=_FORMS)


def simple_gla_bwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array | None,
    g_gamma: jax.Array | None,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    do: jax.Array,
    dfinal: jax.Array,
    *,
    scale: float,
    reverse: bool,
) -> tuple[jax.Array | None, ...]:
    """The arguments of `simple_gla_fwd`, do and dfinal the cotangents of its outputs -> gradients of q, k, v, g, g_gamma and initial_state
    (None where one is None), in their dtypes."""
    arrays = q, k, v, _gates(g, g_gamma, k), initial_state, cu_seqlens, do, dfinal
    dq, dk, dv, dlog, dinitial = _xla_loops.backward(*arrays, scale=scale, reverse=reverse, forms=_FORMS)
    return dq, dk, dv, *gradients_of(dlog[..., 0], g, g_gamma), dinitial


def _gates(g: jax.Array | None, g_gamma: jax.Array | None, k: jax.Array) -> jax.Array:
    """[B, T, H, 1] float32."""
    log: jax.Array = cast(
        log_decays(g, g_gamma, k.shape[:3]), varying(k)
    )  # without any gate it varies over no mesh axis by itself
    return log[..., None]
