"""The arithmetic of one chunk of gla with gates on values too, in plain JAX, exact at any gate.

    S_t = diag(exp(g_t)) S_(t-1) diag(exp(gv_t)) + k_t v_t^T

The decay from step j to step i is a factor of each key channel and a factor of each value channel. Both are anchored between the halves of
a block, as in `_xla_chunk`: on the keys' side they go to q and k, on the values' side to v and, after the product, to o. So there is one product
with v a level, where without gates on values the levels inside of 16 steps share one.

Shapes and functions as in `_xla_chunk`, with gates [N, C, K + V] for g: the two lie side by side. a = exp(g) [N, C, K], b = exp(gv) [N, C, V].
"""

from typing import Any

import jax
import jax.numpy as jnp

from tops_kernels.ops.gla._xla_chunk import SUB, _dot, _flat, _halves, _onward, _pairs, _spread, over_last


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
            (_, right), (left, _), (values, _), (_, out) = (_halves(x, half) for x in (qd, kd, vd, od))
            found = _dot("ngbij,nbjv->ngbiv", _dot("ngbik,nbjk->ngbij", right, left), values) * out
            o = o + _flat(_flat(jnp.stack([jnp.zeros_like(found), found], axis=3)))
        qd, kd, whole_k = _onward(qd, kd, whole_k)
        od, vd, whole_v = _onward(od, vd, whole_v)
        half *= 2
    return o, qd, od, _dot("nck,ncv->nkv", kd, vd), whole_k[:, 0], whole_v[:, 0]


def apart(gates: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """[.., K + V] -> [.., K] and [.., V], K = width."""
    return gates[..., :width], gates[..., width:]


def _decays(k: jax.Array, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
    return apart(jnp.exp(gates), k.shape[-1])


def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, gates: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """-> o [N * G, C, V], state after the chunk [N, K, V]."""
    o, qd, od, added, whole_k, whole_v = _local(q, k, v, *_decays(k, gates))
    o = o + od * _dot("ngck,nkv->ngcv", qd, state)
    return o.reshape(-1, *v.shape[1:]), _over(whole_k, whole_v, state) + added


def next_state(k: jax.Array, v: jax.Array, gates: jax.Array, state: jax.Array) -> jax.Array:
    """The second of `forward` alone."""
    a, b = _decays(k, gates)
    kd, whole_k = _to_the_end(k, a)
    vd, whole_v = _to_the_end(v, b)
    return _over(whole_k, whole_v, state) + _dot("nck,ncv->nkv", kd, vd)


def state_before(q: jax.Array, gates: jax.Array, do: jax.Array, dstate: jax.Array) -> jax.Array:
    """The last of `backward` alone."""
    a, b = _decays(q, gates)
    qd, whole_k = _from_the_start(q, a)
    dod, whole_v = _from_the_start(do, b)
    return _over(whole_k, whole_v, dstate) + _dot("ngck,ngcv->nkv", qd, dod)


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    gates: jax.Array,
    do: jax.Array,
    state: jax.Array,
    dstate: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """state: before the chunk; dstate: of the state after it -> gradients of q [N * G, C, K], k, v, gates and of the
    state before.

    As in `_xla_chunk.backward`: the products of `_local` are differentiated as products, so nothing cancels and nothing is divided.
    """
    a, b = _decays(k, gates)
    (_, qd, od, _, whole_k, whole_v), pull = jax.vjp(_local, q, k, v, a, b)
    dod = od * do
    through_state = state * dstate
    dwhole_k = over_last(through_state * whole_v[:, None, :])
    dwhole_v = jnp.sum(through_state * whole_k[:, :, None], axis=1)
    dfrom_start = jnp.sum(do * _dot("ngck,nkv->ngcv", qd, state), axis=1, keepdims=True)
    dq, dk, dv, da, db = pull((do, _dot("ngcv,nkv->ngck", dod, state), dfrom_start, dstate, dwhole_k, dwhole_v))
    dgates = jnp.concatenate([da * a, db * b], axis=-1)
    dq = dq.reshape(-1, *k.shape[1:])
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
