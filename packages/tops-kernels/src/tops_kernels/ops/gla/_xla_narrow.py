"""The arithmetic of one chunk in plain JAX where its gates are weak: decays as differences of sums, two exponentials a number.

With G the running sum of g in the chunk and M its value in the middle, q exp(G - M) and k exp(M - G) are what two matrix products take. That is
exact while |G - M| is small, and overflows long before the gates of a chunk add up to 88: `is_narrow` says when it may be used.

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
    """G - M [N, C, K]: sums of g after the middle row, or less g up to it."""
    size = g.shape[-2]
    upto = np.tril(np.ones((size, size), np.float32))
    return _along_time(upto - upto[size // 2], g)


def is_narrow(g: jax.Array) -> jax.Array:
    """Whether this module may be used for the chunk; False for a -inf or a NaN anywhere."""
    half = g.shape[-2] // 2
    before = jnp.sum(g[..., : half + 1, :], axis=-2)
    after = jnp.sum(g[..., half + 1 :, :], axis=-2)
    return (jnp.min(before) >= -_MOST) & (jnp.min(after) >= -_MOST)


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


def _of_group(x: jax.Array) -> jax.Array:
    """[N, G, C, K] -> the sum over G. XLA:CPU makes a slow call of the sum of one."""
    return x[:, 0] if x.shape[1] == 1 else jnp.sum(x, axis=1)


def forward(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-> o [N, G, C, V], state after the chunk."""
    d = _decays(g)
    qd, kd = q * d.up[:, None], k * d.down
    lower = np.tril(np.ones((k.shape[1],) * 2, bool))
    scores = jnp.where(lower, _dot("ngik,njk->ngij", qd, kd), 0.0)
    o = _dot("ngij,njv->ngiv", scores, v) + _dot("ngik,nkv->ngiv", qd, d.start * state)
    return o, d.end * (d.start * state + _dot("nck,ncv->nkv", kd, v))


def next_state(k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> jax.Array:
    """The second of `forward` alone."""
    d = _decays(g)
    return d.end * (d.start * state + _dot("nck,ncv->nkv", k * d.down, v))


def state_before(q: jax.Array, g: jax.Array, do: jax.Array, dstate: jax.Array) -> jax.Array:
    """The last of `backward` alone."""
    d = _decays(g)
    return d.start * (_dot("ngik,ngiv->nkv", q * d.up[:, None], do) + d.end * dstate)


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
    """state: before the chunk; after: after it; dstate: of the latter -> gradients of q, k, v, g and of the state before."""
    d = _decays(g)
    lower = np.tril(np.ones((k.shape[1],) * 2, bool))
    qd, kd = q * d.up[:, None], k * d.down
    scores = jnp.where(lower, _dot("ngik,njk->ngij", qd, kd), 0.0)
    dscores = jnp.where(lower, _dot("ngiv,njv->ngij", do, v), 0.0)
    late = d.end * dstate
    dqd = _dot("ngij,njk->ngik", dscores, kd) + _dot("ngiv,nkv->ngik", do, d.start * state)
    dkd = _dot("ngij,ngik->njk", dscores, qd) + _dot("niv,nkv->nik", v, late)
    dv = _dot("ngij,ngiv->njv", scores, do) + _dot("nik,nkv->niv", kd, late)
    # The pairs i = j have no decay: here they are added and taken away again, which is harmless where no gate is strong.
    inner = _of_group(qd * dqd) - kd * dkd
    whole = jnp.sum(after * dstate, axis=-1)  # [N, K]
    dg = _along_time(np.triu(np.ones(lower.shape, np.float32)), inner) + whole[:, None]
    dq, dk = dqd * d.up[:, None], dkd * d.down
    return dq, dk, dv, dg, d.start * (_dot("ngik,ngiv->nkv", qd, do) + late)
