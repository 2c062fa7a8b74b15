"""The arithmetic of one chunk in plain JAX, exact at any gate: decays are products of exp(g) <= 1, never differences of sums.

A chunk of C steps (a power of two) is halved again and again. At a level with halves of s steps, every pair (i in a right half, j in the left
half beside it) is anchored between the two:

    decay from j to i = [product of exp(g) after j, up to the anchor] * [product of exp(g) from the anchor up to i]

Both factors are <= 1 and both are running products, so a gate of -inf is a factor of 0 and nothing else. Each pair belongs to one level; i = j
needs no decay. Levels up to 8 steps are taken together in sub-blocks of 16, masked, since smaller products would be all overhead.

Shapes: N = B * H key/value heads, G query heads to each. q [N, G, C, K], k and a = exp(g) [N, C, K], v [N, C, V]; all float32.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SUB = 16


def _dot(subscripts: str, *operands: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, *operands, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _spread(x: jax.Array, size: int) -> jax.Array:
    """[.., C, K] -> [.., C / size, size, K]."""
    return x.reshape(*x.shape[:-2], x.shape[-2] // size, size, x.shape[-1])


def _flat(x: jax.Array) -> jax.Array:
    """The inverse of `_spread`."""
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])


def _halves(x: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """[.., C, K] -> left and right halves of `size` rows, [.., C / size / 2, size, K]. Split and not sliced: the gradient of a slice is a pad, which
    XLA:CPU computes number by number."""
    axis = x.ndim - 1
    left, right = lax.split(x.reshape(*x.shape[:-2], -1, 2, size, x.shape[-1]), (1, 1), axis)
    return left.squeeze(axis), right.squeeze(axis)


def _onward(qd: jax.Array, kd: jax.Array, total: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """From halves to the whole: qd [N, G, C, K] and kd [N, C, K] decayed within blocks, total [N, C / s, K] products over these."""
    blocks = total.shape[-2] // 2
    size = 2 * kd.shape[-2] // total.shape[-2]
    left, right = lax.split(total.reshape(total.shape[0], blocks, 2, -1), (1, 1), 2)
    one = jnp.ones_like(left)
    before = jnp.concatenate([one, left], axis=2)  # what a row of each half is multiplied by: [N, blocks, 2, K]
    after = jnp.concatenate([right, one], axis=2)

    def of_rows(factor: jax.Array) -> jax.Array:
        """[N, blocks, 2, K] -> [N, C, K]."""
        n, k = factor.shape[0], factor.shape[-1]
        rows = jnp.broadcast_to(factor.reshape(-1, 1, k), (n * 2 * blocks, size // 2, k))
        return rows.reshape(n, -1, k)

    # By rows, and not by dimensions of their own: where the gradient's sum over a product has seven, as under vmap, XLA:CPU crashes.
    return qd * of_rows(before)[:, None], kd * of_rows(after), (left * right)[:, :, 0]


def _pairs(size: int, half: int) -> np.ndarray[Any, Any]:
    """[size, size] bool: row in a right half of `half` steps, column in the left half beside it."""
    i, j = np.arange(size)[:, None], np.arange(size)[None, :]
    found: np.ndarray[Any, Any] = (i // half == j // half + 1) & (i // half % 2 == 1)
    return found


def local(q: jax.Array, k: jax.Array, v: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """What a chunk does by itself.

    Returns: o [N, G, C, V] from the chunk's own keys; q decayed from the chunk's start [N, G, C, K]; k decayed to its end [N, C, K]; the whole
    chunk's decay [N, K].
    """
    size = k.shape[-2]
    sub = min(SUB, size)
    scores = _dot("ngbik,nbjk->ngbij", _spread(q, sub), _spread(k, sub)) * jnp.eye(sub, dtype=jnp.float32)
    qd, kd, total = q * a[:, None], k, a
    half = 1
    while half < sub:
        found = _dot("ngbik,nbjk->ngbij", _spread(qd, sub), _spread(kd, sub))
        scores = jnp.where(_pairs(sub, half), found, scores)
        qd, kd, total = _onward(qd, kd, total)
        half *= 2
    o = _flat(_dot("ngbij,nbjv->ngbiv", scores, _spread(v, sub)))
    while half < size:
        (_, right), (left, _), (values, _) = (_halves(x, half) for x in (qd, kd, v))
        found = _dot("ngbij,nbjv->ngbiv", _dot("ngbik,nbjk->ngbij", right, left), values)
        o = o + _flat(_flat(jnp.stack([jnp.zeros_like(found), found], axis=3)))
        qd, kd, total = _onward(qd, kd, total)
        half *= 2
    return o, qd, kd, total[:, 0]


def ends(k: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The last two of `local` alone: what the state of the next chunk needs."""
    kd, total = k, a
    while total.shape[-2] > 1:
        _, kd, total = _onward(kd[:, None], kd, total)
    return kd, total[:, 0]


def forward(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-> o [N * G, C, V], state after the chunk [N, K, V]."""
    o, qd, kd, whole = local(q, k, v, jnp.exp(g))
    o = o + _dot("ngck,nkv->ngcv", qd, state)
    return o.reshape(-1, *v.shape[1:]), whole[..., None] * state + _dot("nck,ncv->nkv", kd, v)


def next_state(k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> jax.Array:
    """The second of `forward` alone."""
    kd, whole = ends(k, jnp.exp(g))
    return whole[..., None] * state + _dot("nck,ncv->nkv", kd, v)


def state_before(q: jax.Array, g: jax.Array, do: jax.Array, dstate: jax.Array) -> jax.Array:
    """The last of `backward` alone."""
    a = jnp.exp(g)
    qd, total = q * a[:, None], a
    while total.shape[-2] > 1:
        qd, _, total = _onward(qd, a, total)
    return total[:, 0, :, None] * dstate + _dot("ngck,ngcv->nkv", qd, do)


def over_last(x: jax.Array) -> jax.Array:
    """[N, K, V] -> sums over V [N, K], as a product: XLA:CPU adds up along the last dimension one by one (90 us for a state, against 3)."""
    return _dot("nkv,vx->nkx", x, jnp.asarray(np.ones((x.shape[-1], 8), np.float32)))[..., 0]


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    do: jax.Array,
    state: jax.Array,
    dstate: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """state: before the chunk; dstate: of the state after it -> gradients of q [N * G, C, K], k, v, g and of the state before.

    The products of `local` are differentiated as products: a gradient of a decay is a sum of other factors, so nothing cancels and nothing
    is divided. That of g is the decay's times the decay: 0 where it is.
    """
    a = jnp.exp(g)
    (_, qd, kd, whole), pull = jax.vjp(local, q, k, v, a)
    through = _dot("ngcv,nkv->ngck", do, state), _dot("ncv,nkv->nck", v, dstate), over_last(state * dstate)
    dq, dk, dv, da = pull((do, *through))
    dv = dv + _dot("nck,nkv->ncv", kd, dstate)
    return dq.reshape(-1, *k.shape[1:]), dk, dv, da * a, whole[..., None] * dstate + _dot("ngck,ngcv->nkv", qd, do)
