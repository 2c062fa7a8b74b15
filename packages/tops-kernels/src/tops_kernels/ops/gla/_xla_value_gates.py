"""gla with gates on values too, in plain JAX: chunk after chunk of 64 steps, the state carried along, exact at any gate.

    S_t = diag(exp(g_t)) S_(t-1) diag(exp(gv_t)) + k_t v_t^T

The decay from step j to step i is a factor of each key channel and a factor of each value channel. Both are anchored between the halves of
a block, as in `_xla_chunk`: on the keys' side they go to q and k, on the values' side to v and, after the product, to o. So there is one product
with v a level, where without gates on values the levels inside of 16 steps share one.

Inside, the two gates lie side by side, [.., K + V]: one array of log decays, as `_xla_walk` has it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tops_kernels.ops.gla._xla_chunk import SUB, _dot, _flat, _onward, _pairs, _spread
from tops_kernels.ops.gla._xla_walk import Chunks, back, through

CHUNK = 64


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
    call = Chunks(q, k, v, cu_seqlens, reverse=reverse, most=CHUNK)
    arrays = call.queries(q, scale), call.keys(k), call.keys(v), call.keys(_beside(g, gv))
    o, final = through(call, arrays, call.states(initial_state), _forward)
    return call.rows(o, v.dtype), call.as_given(final)


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
    """The arguments of `gla_fwd`, do and dfinal the cotangents of its outputs -> gradients of q, k, v, g, initial_state (None where that is
    None) and gv, in their dtypes."""
    call = Chunks(q, k, v, cu_seqlens, reverse=reverse, most=CHUNK)
    arrays = call.queries(q, scale), call.keys(k), call.keys(v), call.keys(_beside(g, gv))
    states = call.states(initial_state), call.states(dfinal)
    dstate, (dq, *grads) = back(call, arrays, call.queries(do, 1.0), *states, _next_state, _backward)
    dk, dv, dgates = (call.rows(x[:, :, None], jnp.float32) for x in grads)
    dg, dgv = _apart(dgates, g.shape[-1])
    dinitial = None if initial_state is None else call.as_given(dstate).astype(initial_state.dtype)
    dq = call.rows(dq * scale, q.dtype)
    return dq, dk.astype(k.dtype), dv.astype(v.dtype), dg.astype(g.dtype), dinitial, dgv.astype(gv.dtype)


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
    """Arguments of `gla_fwd`; rows [2]: the first that takes part and the one after the last, None: all -> final_state alone."""
    call = Chunks(k, k, v, None, reverse=reverse, most=CHUNK)
    arrays = tuple(call.keys(_rows_of(x, rows)) for x in (k, v, _beside(g, gv)))

    def step(state: jax.Array, xs: Any) -> tuple[jax.Array, None]:
        k, v, gates = xs
        return _next_state(k, v, gates, state), None

    return call.as_given(lax.scan(step, call.states(initial_state), arrays)[0])


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
    """Arguments of `gla_bwd`, rows as for `gla_end` -> the gradient of initial_state alone, float32."""
    call = Chunks(q, g, v, None, reverse=reverse, most=CHUNK)
    queries, cotangents = call.queries(_rows_of(q, rows), scale), call.queries(_rows_of(do, rows), 1.0)
    arrays = queries, call.keys(_rows_of(_beside(g, gv), rows)), cotangents

    def step(dstate: jax.Array, xs: Any) -> tuple[jax.Array, None]:
        q, gates, do = xs
        return _state_before(q, gates, do, dstate), None

    return call.as_given(lax.scan(step, call.states(dfinal), arrays, reverse=True)[0])


def _beside(g: jax.Array, gv: jax.Array) -> jax.Array:
    """[B, T, H, K + V] float32."""
    return jnp.concatenate([g.astype(jnp.float32), gv.astype(jnp.float32)], axis=-1)


def _apart(gates: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """The inverse: K = width."""
    return gates[..., :width], gates[..., width:]


def _rows_of(x: jax.Array, rows: jax.Array | None) -> jax.Array:
    """[B, T, H, W], zeros outside of rows."""
    if rows is None:
        return x
    row = jnp.arange(x.shape[1])[:, None, None]
    return jnp.where((row >= rows[0]) & (row < rows[1]), x, 0)


# The arithmetic of one chunk. Shapes as in `_xla_chunk`; a = exp(g) [N, C, K] and b = exp(gv) [N, C, V].


def _local(
    q: jax.Array, k: jax.Array, v: jax.Array, a: jax.Array, b: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """What a chunk does by itself.

    Returns: o [N, G, C, V] from the chunk's own keys; q decayed from the chunk's start [N, G, C, K]; the decay of o's channels from there
    [N, 1, C, V]; what the chunk adds to the state [N, K, V]; the whole chunk's decays [N, K] and [N, V].
    """
    size = k.shape[-2]
    sub = min(SUB, size)
    o = jnp.sum(q * k[:, None], axis=-1, keepdims=True) * v[:, None]  # i = j needs no decay
    qd, kd, whole_k = q * a[:, None], k, a
    od, vd, whole_v = b[:, None], v, b
    half = 1
    while half < size:
        if half < sub:
            found = _dot("ngbik,nbjk->ngbij", _spread(qd, sub), _spread(kd, sub))
            scores = jnp.where(_pairs(sub, half), found, 0.0)
            o = o + od * _flat(_dot("ngbij,nbjv->ngbiv", scores, _spread(vd, sub)))
        else:
            right, left = _spread(qd, half)[:, :, 1::2], _spread(kd, half)[:, 0::2]
            scores = _dot("ngbik,nbjk->ngbij", right, left)
            found = _dot("ngbij,nbjv->ngbiv", scores, _spread(vd, half)[:, 0::2]) * _spread(od, half)[:, :, 1::2]
            both = jnp.stack([jnp.zeros_like(found), found], axis=3)
            o = o + _flat(both.reshape(*found.shape[:2], -1, *found.shape[3:]))
        qd, kd, whole_k = _onward(qd, kd, whole_k)
        od, vd, whole_v = _onward(od, vd, whole_v)
        half *= 2
    return o, qd, od, _dot("nck,ncv->nkv", kd, vd), whole_k[:, 0], whole_v[:, 0]


def _decays(k: jax.Array, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _apart(jnp.exp(gates), k.shape[-1])


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, gates: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """-> o [N, G, C, V], state after the chunk [N, K, V]."""
    o, qd, od, added, whole_k, whole_v = _local(q, k, v, *_decays(k, gates))
    return o + od * _dot("ngck,nkv->ngcv", qd, state), _over(whole_k, whole_v, state) + added


def _next_state(k: jax.Array, v: jax.Array, gates: jax.Array, state: jax.Array) -> jax.Array:
    """The second of `_forward` alone."""
    a, b = _decays(k, gates)
    kd, whole_k = _to_the_end(k, a)
    vd, whole_v = _to_the_end(v, b)
    return _over(whole_k, whole_v, state) + _dot("nck,ncv->nkv", kd, vd)


def _state_before(q: jax.Array, gates: jax.Array, do: jax.Array, dstate: jax.Array) -> jax.Array:
    """The last of `_backward` alone."""
    a, b = _decays(q, gates)
    qd, whole_k = _from_the_start(q, a)
    dod, whole_v = _from_the_start(do, b)
    return _over(whole_k, whole_v, dstate) + _dot("ngck,ngcv->nkv", qd, dod)


def _backward(
    q: jax.Array, k: jax.Array, v: jax.Array, gates: jax.Array, state: jax.Array, do: jax.Array, dstate: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """state: before the chunk; dstate: of the state after it -> gradients of q, k, v, gates and of the state before.

    As in `_xla_chunk.backward`: the products of `_local` are differentiated as products, so nothing cancels and nothing is divided.
    """
    a, b = _decays(k, gates)
    (_, qd, od, _, whole_k, whole_v), pull = jax.vjp(_local, q, k, v, a, b)
    dod = od * do
    through_state = state * dstate
    dwhole_k = jnp.sum(through_state * whole_v[:, None, :], axis=2)
    dwhole_v = jnp.sum(through_state * whole_k[:, :, None], axis=1)
    dfrom_start = jnp.sum(do * _dot("ngck,nkv->ngcv", qd, state), axis=1, keepdims=True)
    dq, dk, dv, da, db = pull((do, _dot("ngcv,nkv->ngck", dod, state), dfrom_start, dstate, dwhole_k, dwhole_v))
    dgates = jnp.concatenate([da * a, db * b], axis=-1)
    return dq, dk, dv, dgates, _over(whole_k, whole_v, dstate) + _dot("ngck,ngcv->nkv", qd, dod)


def _over(whole_k: jax.Array, whole_v: jax.Array, state: jax.Array) -> jax.Array:
    """The state [N, K, V] after a chunk's decays."""
    return whole_k[:, :, None] * state * whole_v[:, None, :]


def _to_the_end(x: jax.Array, decay: jax.Array) -> tuple[jax.Array, jax.Array]:
    """x and decay [N, C, W] -> x decayed to the chunk's end, the whole chunk's decay [N, W]."""
    unused: Any = x[:, None]
    total = decay
    while total.shape[-2] > 1:
        _, x, total = _onward(unused, x, total)
    return x, total[:, 0]


def _from_the_start(x: jax.Array, decay: jax.Array) -> tuple[jax.Array, jax.Array]:
    """x [N, G, C, W], decay [N, C, W] -> x decayed from the chunk's start, the whole chunk's decay [N, W]."""
    x, total = x * decay[:, None], decay
    while total.shape[-2] > 1:
        x, _, total = _onward(x, decay, total)
    return x, total[:, 0]
