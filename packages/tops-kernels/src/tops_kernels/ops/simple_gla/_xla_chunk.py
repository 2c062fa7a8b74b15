"""The arithmetic of one chunk in plain JAX.

Shapes: N = B * H key/value heads, G query heads to each. q, do [N, G, C, K or V], k [N, C, K], v [N, C, V], log decays g [N, C, 1], states
[N, K, V]; all float32.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tops_kernels.ops.simple_gla.decays import split

_NEVER = -1e4  # its exponential is 0


def _dot(subscripts: str, *operands: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, *operands, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class _Decays:
    """Products of decays, every one of them at most 1."""

    start: jax.Array  # [N, C, 1]: from the chunk's start through step i
    end: jax.Array  # [N, C, 1]: after step j to the chunk's end
    whole: jax.Array  # [N, 1, 1]: the chunk
    coarse: jax.Array  # [N, C]: running sums, see `split`
    fine: jax.Array

    def pairs(self) -> jax.Array:
        """[N, C, C]: after step j through step i; 0 where j is after i."""
        size = self.coarse.shape[-1]
        exponent = (self.coarse[:, :, None] - self.coarse[:, None, :]) + (self.fine[:, :, None] - self.fine[:, None, :])
        return jnp.exp(jnp.where(np.tril(np.ones((size, size), bool)), exponent, _NEVER))


def _decays(g: jax.Array) -> _Decays:
    size = g.shape[-2]
    upto = jnp.asarray(np.tril(np.ones((size, size), np.float32)))
    # As products, which XLA does faster than running sums; those of `coarse` are exact in any order.
    coarse, fine = (_dot("ij,nj->ni", upto, part) for part in split(g[..., 0]))
    left = (coarse[:, -1:] - coarse) + (fine[:, -1:] - fine)
    whole = jnp.exp(coarse[:, -1:] + fine[:, -1:])
    return _Decays(jnp.exp(coarse + fine)[..., None], jnp.exp(left)[..., None], whole[..., None], coarse, fine)


def forward(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-> o [N, G, C, V], state after the chunk."""
    d = _decays(g)
    scores = _dot("ngik,njk->ngij", q, k) * d.pairs()[:, None]
    o = _dot("ngij,njv->ngiv", scores, v) + d.start[:, None] * _dot("ngik,nkv->ngiv", q, state)
    return o, d.whole * state + _dot("nck,ncv->nkv", k * d.end, v)


def next_state(k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> jax.Array:
    """The second of `forward` alone."""
    d = _decays(g)
    return d.whole * state + _dot("nck,ncv->nkv", k * d.end, v)


def backward(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array, do: jax.Array, dstate: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """state: before the chunk; dstate: of the state after it -> gradients of q, k, v, g and of the state before."""
    d = _decays(g)
    pairs = d.pairs()[:, None]
    scores = _dot("ngik,njk->ngij", q, k)
    dscores = _dot("ngiv,njv->ngij", do, v) * pairs
    dq_start = d.start[:, None] * _dot("ngiv,nkv->ngik", do, state)
    dk_end = d.end * _dot("njv,nkv->njk", v, dstate)
    dq = _dot("ngij,njk->ngik", dscores, k) + dq_start
    dk = _dot("ngij,ngik->njk", dscores, q) + dk_end
    dv = _dot("ngij,ngiv->njv", scores * pairs, do) + d.end * _dot("njk,nkv->njv", k, dstate)
    dbefore = d.whole * dstate + _dot("ngik,ngiv->nkv", q * d.start[:, None], do)
    dstart, dend = jnp.sum(q * dq_start, axis=(1, 3)), jnp.sum(k * dk_end, axis=2)
    dwhole = jnp.sum(d.whole * state * dstate, axis=(1, 2))
    dg = _of_gates(jnp.sum(scores * dscores, axis=1), dstart, dend) + dwhole[:, None]
    return dq, dk, dv, dg[..., None], dbefore


def _of_gates(dpairs: jax.Array, dstart: jax.Array, dend: jax.Array) -> jax.Array:
    """Gradients of the exponents of pairs [N, C, C], of `start` and of `end` [N, C] -> of the log decays that they sum up, [N, C].

    That of step t is the sum over the pairs it lies between, j < t <= i: terms are added and never taken away again, so nothing cancels. One
    product gives the sums over j < t for every i and t; what is left is a sum down the rows i >= t.
    """
    size = dend.shape[-1]
    at_or_after = np.tril(np.ones((size, size), bool))  # row i, column t
    before = jnp.asarray(np.triu(np.ones((size, size), np.float32), 1))  # row j, column t
    down = _dot("nij,jt->nit", dpairs, before) + dstart[..., None]
    return jnp.sum(jnp.where(at_or_after, down, dend[..., None]), axis=1)
