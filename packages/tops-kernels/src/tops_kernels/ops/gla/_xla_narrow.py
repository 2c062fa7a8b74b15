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


def narrow_chunks(g: jax.Array, size: int) -> jax.Array:
    """g [B, T, H, K], T a multiple of size -> [T / size, H] bool: whether this module may be used for a head's chunk, in every sequence; False
    for a -inf or a NaN anywhere. Of gates of both signs the sums of a half alone would not say how far they go in between: so of magnitudes.

    By halving, in elementwise passes, which XLA:CPU spreads over its threads.
    """
    b, t, h, k = g.shape
    sums = -jnp.abs(g.astype(jnp.float32)).reshape(b, t // size, 2, size // 2, h, k)
    while sums.shape[3] > 1:
        half = sums.shape[3] // 2
        sums = sums[:, :, :, :half] + sums[:, :, :, half:]
    least = jnp.min(sums.reshape(b, -1, h, k), axis=0).reshape(
        t // size, 2, h, k
    )  # few dimensions a sum: see _xla_chunk._onward
    return jnp.min(least, axis=(1, 3)) >= -_MOST


@dataclasses.dataclass(frozen=True, slots=True)
class _Decays:
    up: jax.Array  # exp(G - M) [N, C, K]
    down: jax.Array  # exp(M - G)
    start: jax.Array  # exp(M) [N, K, 1]: from the chunk's start to the middle
    end: jax.Array  # exp(G_last - M) [N, K, 1]


def _decays(g: jax.Array) -> _Decays:
    # Clipped, so that under vmap, which computes both branches, nothing here is an infinity.
    exponent = jnp.clip(from_middle(g), -_MOST, _MOST)
    up = jnp.exp(exponent)
    start = jnp.exp(jnp.maximum(g[:, 0] - exponent[:, 0], -_MOST))
    return _Decays(up, jnp.exp(-exponent), start[..., None], up[:, -1][..., None])


def _rows(x: jax.Array) -> jax.Array:
    """[N, G, C, W] -> [N, G * C, W]: a group's queries are more rows of one product. With an axis of their own, XLA:CPU turns the
    result over."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _lower(q: jax.Array) -> np.ndarray[Any, Any]:
    """[G * C, C] bool: the keys that a query sees."""
    return np.tile(np.tril(np.ones((q.shape[2],) * 2, bool)), (q.shape[1], 1))


def forward(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-> o [N * G, C, V], state after the chunk."""
    d = _decays(g)
    qd, kd = _rows(q * d.up[:, None]), k * d.down
    scores = jnp.where(_lower(q), _dot("nik,njk->nij", qd, kd), 0.0)
    o = _dot("nij,njv->niv", scores, v) + _dot("nik,nkv->niv", qd, d.start * state)
    return o.reshape(-1, *v.shape[1:]), d.end * (d.start * state + _dot("nck,ncv->nkv", kd, v))


def next_state(k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> jax.Array:
    """The second of `forward` alone."""
    d = _decays(g)
    return d.end * (d.start * state + _dot("nck,ncv->nkv", k * d.down, v))


def state_before(q: jax.Array, g: jax.Array, do: jax.Array, dstate: jax.Array) -> jax.Array:
    """The last of `backward` alone."""
    d = _decays(g)
    return d.start * (_dot("nik,niv->nkv", _rows(q * d.up[:, None]), _rows(do)) + d.end * dstate)


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    do: jax.Array,
    state: jax.Array,
    after: jax.Array,
    dstate: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """state: before the chunk; after: after it; dstate: of the latter -> gradients of q [N * G, C, K], k, v, g and of the state
    before."""
    d = _decays(g)
    qd, kd, do = _rows(q * d.up[:, None]), k * d.down, _rows(do)
    lower = _lower(q)
    scores = jnp.where(lower, _dot("nik,njk->nij", qd, kd), 0.0)
    dscores = jnp.where(lower, _dot("niv,njv->nij", do, v), 0.0)
    late = d.end * dstate
    dqd = _dot("nij,njk->nik", dscores, kd) + _dot("niv,nkv->nik", do, d.start * state)
    dkd = _dot("nij,nik->njk", dscores, qd) + _dot("niv,nkv->nik", v, late)
    dv = _dot("nij,niv->njv", scores, do) + _dot("nik,nkv->niv", kd, late)
    # The pairs i = j have no decay: here they are added and taken away again, which is harmless where no gate is strong.
    inner = _of_group((qd * dqd).reshape(q.shape)) - kd * dkd
    whole = jnp.sum(after * dstate, axis=-1)  # [N, K]
    dg = _along_time(np.triu(np.ones((k.shape[1],) * 2, np.float32)), inner) + whole[:, None]
    dq, dk = (dqd.reshape(q.shape) * d.up[:, None]).reshape(-1, *k.shape[1:]), dkd * d.down
    return dq, dk, dv, dg, d.start * (_dot("nik,niv->nkv", qd, do) + late)


def _of_group(x: jax.Array) -> jax.Array:
    """[N, G, C, K] -> the sum over G. XLA:CPU makes a slow call of the sum of one."""
    return x[:, 0] if x.shape[1] == 1 else jnp.sum(x, axis=1)
