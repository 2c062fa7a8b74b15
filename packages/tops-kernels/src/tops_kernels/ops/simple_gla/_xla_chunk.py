"""The arithmetic of one chunk in plain JAX, with the functions of `gla._xla_chunk`.

Shapes: N key/value heads, G query heads to each. q, do [N, G, C, K or V], k [N, C, K], v [N, C, V], log decays g [N, C, 1], states [N, K, V]; all
float32. A group's queries are more rows of one product, [N, G * C, ..]: with an axis of their own, XLA:CPU turns the result over.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tops_kernels.ops.gla._xla_chunk import over_last
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
    """-> o [N * G, C, V], state after the chunk."""
    d, rows = _decays(g), _rows(q)
    scores = _dot("nik,njk->nij", rows, k) * _each(d.pairs(), q)
    o = _dot("nij,njv->niv", scores, v) + _each(d.start, q) * _dot("nik,nkv->niv", rows, state)
    return o.reshape(-1, *v.shape[1:]), _after(d, k, v, state)


def next_state(k: jax.Array, v: jax.Array, g: jax.Array, state: jax.Array) -> jax.Array:
    """The second of `forward` alone."""
    return _after(_decays(g), k, v, state)


def _after(d: _Decays, k: jax.Array, v: jax.Array, state: jax.Array) -> jax.Array:
    return d.whole * state + _dot("nck,ncv->nkv", k * d.end, v)


def backward(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, do: jax.Array, state: jax.Array, dstate: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """state: before the chunk; dstate: of the state after it -> gradients of q [N * G, C, K], k, v, g and of the state before."""
    d, rows, do = _decays(g), _rows(q), _rows(do)
    pairs, start = _each(d.pairs(), q), _each(d.start, q)
    scores = _dot("nik,njk->nij", rows, k)
    dscores = _dot("niv,njv->nij", do, v) * pairs
    dq_start = start * _dot("niv,nkv->nik", do, state)
    dk_end = d.end * _dot("njv,nkv->njk", v, dstate)
    dq = _dot("nij,njk->nik", dscores, k) + dq_start
    dk = _dot("nij,nik->njk", dscores, rows) + dk_end
    dv = _dot("nij,niv->njv", scores * pairs, do) + d.end * _dot("njk,nkv->njv", k, dstate)
    dbefore = d.whole * dstate + _dot("nik,niv->nkv", rows * start, do)
    dpairs, dstart = _of_group(scores * dscores, q), _of_group(over_last(rows * dq_start), q)
    dwhole = d.whole[:, 0] * jnp.sum(over_last(state * dstate), axis=1, keepdims=True)
    dg = _of_gates(dpairs, dstart, over_last(k * dk_end)) + dwhole
    return dq.reshape(-1, *k.shape[1:]), dk, dv, dg[..., None], dbefore


def _rows(x: jax.Array) -> jax.Array:
    """[N, G, C, W] -> [N, G * C, W]."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _each(x: jax.Array, q: jax.Array) -> jax.Array:
    """[N, C, W] -> [N, G * C, W], for each query head of q [N, G, C, K]."""
    return jnp.tile(x, (1, q.shape[1], 1))


def _of_group(x: jax.Array, q: jax.Array) -> jax.Array:
    """[N, G * C, ..] -> [N, C, ..], the sum over the query heads of q [N, G, C, K]. XLA:CPU makes a slow call of the sum of one."""
    x = x.reshape(*q.shape[:3], *x.shape[2:])
    return x[:, 0] if q.shape[1] == 1 else jnp.sum(x, axis=1)


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
