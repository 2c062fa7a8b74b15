"""The arithmetic of one chunk in plain JAX where its gates are weak: decays as differences of sums, two exponentials a number.

With G the running sum of g in the chunk and M its value in the middle, q exp(G - M) and k exp(M - G) are what two matrix products take. That is
exact while |G - M| is small, and overflows long before the gates of a chunk add up to 88: `is_narrow` says when it may be used.

Shapes as in `_xla_chunk`: q, do [N, G, C, K or V], k, g [N, C, K], v [N, C, V]; states [N, K, V]; all float32.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_MOST = 20.0  # e^20 twice over is far from float32's end, and 20 * 2^-24 is an error of 1e-6 at the worst


def _dot(subscripts: str, *operands: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, *operands, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def from_middle(g: jax.Array) -> jax.Array:
    """G - M [N, C, K]: sums of g after the middle row, or less g up to it. As a product, which XLA does faster than a running sum."""
    size = g.shape[-2]
    upto = np.tril(np.ones((size, size), np.float32))
    return _dot("ij,njk->nik", jnp.asarray(upto - upto[size // 2]), g)


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


def backward(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array, do: jax.Array, dstate: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """state: before the chunk; dstate: of the state after it -> gradients of q, k, v, g and of the state before.

    The pairs i = j have no decay and are kept apart: in the gradient of g they would be added and taken away again.
    """
    d = _decays(g)
    size = k.shape[1]
    below = np.tril(np.ones((size, size), bool), -1)
    qd, kd = q * d.up[:, None], k * d.down
    scores = jnp.where(below, _dot("ngik,njk->ngij", qd, kd), 0.0)
    dscores = jnp.where(below, _dot("ngiv,njv->ngij", do, v), 0.0)
    own = jnp.sum(q * k[:, None], axis=-1, keepdims=True)  # [N, G, C, 1]
    down = jnp.sum(do * v[:, None], axis=-1, keepdims=True)
    late = d.end * dstate
    dqd = _dot("ngij,njk->ngik", dscores, kd) + _dot("ngiv,nkv->ngik", do, d.start * state)
    dkd = _dot("ngij,ngik->njk", dscores, qd) + _dot("niv,nkv->nik", v, late)
    dv = _dot("ngij,ngiv->njv", scores, do) + _dot("nik,nkv->niv", kd, late) + jnp.sum(own * do, axis=1)
    dq = dqd * d.up[:, None] + down * k[:, None]
    dk = dkd * d.down + jnp.sum(down * q, axis=1)
    inner = jnp.sum(qd * dqd, axis=1) - kd * dkd
    after = d.start * state + _dot("nck,ncv->nkv", kd, v)  # the state after the chunk, less d.end
    whole = jnp.sum(after * late, axis=-1)  # [N, K]
    dg = _dot("ij,nik->njk", jnp.asarray(np.tril(np.ones((size, size), np.float32))), inner) + whole[:, None]
    return dq, dk, dv, dg, d.start * (_dot("ngik,ngiv->nkv", qd, do) + late)
