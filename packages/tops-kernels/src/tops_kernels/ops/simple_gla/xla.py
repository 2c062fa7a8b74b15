"""simple_gla in plain JAX: a scan over chunks, the state carried along.

Nothing of size T * K * V is kept: the backward pass keeps the state before each chunk, a 64th of that.
"""

import jax

from tops_kernels.ops.simple_gla import _xla_chunk as chunk
from tops_kernels.ops.simple_gla._xla_walk import Chunks, back, through
from tops_kernels.ops.simple_gla.decays import gradients_of, log_decays

CHUNK = 64


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
    call = Chunks(q, k, v, cu_seqlens, reverse=reverse, most=CHUNK)
    arrays = call.queries(q, scale), call.keys(k), call.keys(v), _gates(call, g, g_gamma, k)
    o, final = through(call, arrays, call.states(initial_state), chunk.forward)
    return call.rows(o, v.dtype), call.as_given(final)


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
    call = Chunks(q, k, v, cu_seqlens, reverse=reverse, most=CHUNK)
    arrays = call.queries(q, scale), call.keys(k), call.keys(v), _gates(call, g, g_gamma, k)
    dstate, (dq, dk, dv, dlog) = back(
        call, arrays, call.queries(do, 1.0), call.states(initial_state), call.states(dfinal),
        chunk.next_state, chunk.backward,
    )  # fmt: skip
    dq = call.rows(dq * scale, q.dtype)
    dk, dv, dlog = (call.rows(x[:, :, None], y) for x, y in ((dk, k.dtype), (dv, v.dtype), (dlog, dlog.dtype)))
    dinitial = None if initial_state is None else call.as_given(dstate).astype(initial_state.dtype)
    return dq, dk, dv, *gradients_of(dlog[..., 0], g, g_gamma), dinitial


def _gates(call: Chunks, g: jax.Array | None, g_gamma: jax.Array | None, k: jax.Array) -> jax.Array:
    """[chunks, N, C, 1]; past T no decay: a constant one does not run on through padding."""
    return call.keys(log_decays(g, g_gamma, k.shape[:3])[..., None])
