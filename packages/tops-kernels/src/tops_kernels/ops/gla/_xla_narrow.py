"""The arithmetic of one chunk in plain JAX where its gates are weak: decays as differences of sums, two exponentials a number.

With G the running sum of g in the chunk and M its value in the middle, q exp(G - M) and k exp(M - G) are what two matrix products take. That is
exact while |G - M| is small, and overflows long before the gates of a chunk add up to 88: `narrow_chunks` says when it may be used.

Shapes as in `_xla_chunk`: q, do [N, G, C, K or V], k, g [N, C, K], v [N, C, V]; states [N, K, V]; all float32.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tops_kernels.ops.gla._xla_chunk import over_last

_MOST = 20.0  # e^20 twice over is far from float32's end, and 20 * 2^-24 is an error of 1e-6 at the worst


def _dot(subscripts: str, *operands: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, *operands, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _along_time(matrix: np.ndarray[Any, Any], x: jax.Array) -> jax.Array:
    """matrix [C, C] @ x [N, C, K]: a running sum as a product, which XLA:CPU does faster. One product for all heads, on [C, N * K]: the rows
    as they were cut out, where one a head would turn them over before and after."""
    by_time = x.swapaxes(0, 1)
    summed = _dot("ij,jx->ix", jnp.asarray(matrix), by_time.reshape(by_time.shape[0], -1))
    return summed.reshape(by_time.shape).swapaxes(0, 1)


def from_middle(g: jax.Array) -> jax.Array:
    """G - M [N, C, K]: sums of g over the second half's rows, or less those of the first half after a row."""
    size = g.shape[-2]
    upto = np.tril(np.ones((size, size), np.float32))
    return _along_time(upto - upto[size // 2 - 1], g)


def before_here(x: jax.Array) -> jax.Array:
    """[N, C, K] -> sums over the rows before a row."""
    return _along_time(np.tril(np.ones((x.shape[1],) * 2, np.float32), -1), x)


def narrow_chunks(g: jax.Array, size: int) -> jax.Array:
    """g [B, T, H, K], T a multiple of size -> [B, T / size, H] bool: whether this module may be used for a head's chunk; False for a -inf or a NaN
    anywhere. Of gates of both signs the sums of a half alone would not say how far they go in between: so of magnitudes.

    By halving, in elementwise passes, which XLA:CPU spreads over its threads.
    """
    b, t, h, k = g.shape
    sums = -jnp.abs(g.astype(jnp.float32)).reshape(b, t // size, 2, size // 2, h, k)
    while sums.shape[3] > 1:
        half = sums.shape[3] // 2
        sums = sums[:, :, :, :half] + sums[:, :, :, half:]
    sums = sums.reshape(b * (t // size), 2, h, k)  # few dimensions a sum: see _xla_chunk._onward
    return (jnp.min(sums, axis=(1, 3)) >= -_MOST).reshape(b, t // size, h)


@dataclasses.dataclass(frozen=True, slots=True)
class Decays:
    up: jax.Array  # exp(G - M) [N, C, K]
    down: jax.Array  # exp(M - G)
    start: jax.Array  # exp(M) [N, K]: from the chunk's start to the middle
    end: jax.Array  # exp(G_last - M) [N, K]

    # Over rows and over a state. A state is the largest array here: what can be multiplied into rows is not multiplied into it.
    @property
    def start_of_rows(self) -> jax.Array:
        return self.start[:, None]

    @property
    def end_of_rows(self) -> jax.Array:
        return self.end[:, None]

    @property
    def whole(self) -> jax.Array:
        return (self.start * self.end)[..., None]


def decays(g: jax.Array) -> Decays:
    # Clipped, so that under vmap, which computes both branches, nothing here is an infinity.
    exponent = jnp.clip(from_middle(g), -_MOST, _MOST)
    up = jnp.exp(exponent)
    start = jnp.exp(jnp.maximum(g[:, 0] - exponent[:, 0], -_MOST))
    return Decays(up, jnp.exp(-exponent), start, up[:, -1])


def _rows(x: jax.Array) -> jax.Array:
    """[N, G, C, W] -> [N, G * C, W]: a group's queries are more rows of one product. With an axis of their own, XLA:CPU turns the
    result over."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _lower(q: jax.Array) -> np.ndarray[Any, Any]:
    """[G * C, C] bool: the keys that a query sees."""
    return np.tile(np.tril(np.ones((q.shape[2],) * 2, bool)), (q.shape[1], 1))


def forward(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-> o [N * G, C, V], state after the chunk."""
    d = decays(g)
    queries = q * d.up[:, None]
    qd, kd = _rows(queries), k * d.down
    scores = jnp.where(_lower(q), _dot("nik,njk->nij", qd, kd), 0.0)
    o = _dot("nij,njv->niv", scores, v) + _dot("nik,nkv->niv", _rows(queries * d.start[:, None, None]), state)
    return o.reshape(-1, *v.shape[1:]), _after(d, kd, v, state)


def next_state(k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> jax.Array:
    """The second of `forward` alone."""
    d = decays(g)
    return _after(d, k * d.down, v, state)


def _after(d: Decays, kd: jax.Array, v: jax.Array, state: jax.Array) -> jax.Array:
    return d.whole * state + _dot("nck,ncv->nkv", kd * d.end_of_rows, v)


def state_before(q: jax.Array, g: jax.Array, do: jax.Array, dstate: jax.Array) -> jax.Array:
    """The last of `backward` alone."""
    d = decays(g)
    return _before(d, q * d.up[:, None], _rows(do), dstate)


def _before(d: Decays, queries: jax.Array, do: jax.Array, dstate: jax.Array) -> jax.Array:
    return d.whole * dstate + _dot("nik,niv->nkv", _rows(queries * d.start[:, None, None]), do)


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    do: jax.Array,
    state: jax.Array,
    dstate: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """state: before the chunk; dstate: of the state after it -> gradients of q [N * G, C, K], k, v, g and of the state before."""
    d = decays(g)
    queries = q * d.up[:, None]
    qd, kd, do = _rows(queries), k * d.down, _rows(do)
    lower = _lower(q)
    scores = jnp.where(lower, _dot("nik,njk->nij", qd, kd), 0.0)
    dscores = jnp.where(lower, _dot("niv,njv->nij", do, v), 0.0)
    dqd = _dot("nij,njk->nik", dscores, kd) + _dot("niv,nkv->nik", do, state) * d.start_of_rows
    dkd = _dot("nij,nik->njk", dscores, qd) + _dot("njv,nkv->njk", v, dstate) * d.end_of_rows
    dv = _dot("nij,niv->njv", scores, do) + _dot("njk,nkv->njv", kd * d.end_of_rows, dstate)
    dbefore = _before(d, queries, do, dstate)
    # What flows through the decay of step t is what came in from before the chunk, and what keys before t put in less what queries before t took
    # out. So where nothing came before a step, as in a packed sequence of one, its gradient is 0 and not what rounding leaves.
    # The pairs i = j have no decay: here they are added and taken away again, which is harmless where no gate is strong.
    dg = over_last(state * dbefore)[:, None] + before_here(kd * dkd - of_group((qd * dqd).reshape(q.shape)))
    dq, dk = (dqd.reshape(q.shape) * d.up[:, None]).reshape(-1, *k.shape[1:]), dkd * d.down
    return dq, dk, dv, dg, dbefore


def each(q: jax.Array, o: jax.Array, factor: jax.Array) -> jax.Array:
    """o [N * G, C, V] times factor [N, C, V]; q [N, G, C, K]."""
    return (o.reshape(*q.shape[:2], *factor.shape[1:]) * factor[:, None]).reshape(o.shape)


def of_group(x: jax.Array) -> jax.Array:
    """[N, G, C, K] -> the sum over G. XLA:CPU makes a slow call of the sum of one."""
    return x[:, 0] if x.shape[1] == 1 else jnp.sum(x, axis=1)
