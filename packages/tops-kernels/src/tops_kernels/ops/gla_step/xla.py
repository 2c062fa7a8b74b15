"""One step of gated linear attention in plain JAX.

Without a pool XLA makes of it one walk over the states, in place where they are donated. With a pool a CPU takes row after row, each in place
while it is in the cache; a GPU, which wants all rows at once, takes them out, steps them and puts them back. The gradient is written for
all, and can itself be differentiated.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_EXACT = lax.Precision.HIGHEST


def gla_step_fwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    state: jax.Array,
    index: jax.Array | None,
    gv: jax.Array | None,
    *,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    """q [B, HQ, K], k [B, H, K], v [B, H, V] in one dtype; g [B, H, K], gv [B, H, V] or None and state [B, H, K, V] in float32, or a pool
    [P, H, K, V] of which row b has state[index[b]] -> o [B, HQ, V] in v's dtype and the states, or the whole pool, after the step.
    """
    if index is None:
        return _step(q, k, v, g, state, gv, scale=scale)
    arrays = (q, k, v, g, state, index) if gv is None else (q, k, v, g, state, index, gv)
    one_by_one, at_once = (functools.partial(form, scale=scale) for form in (_one_by_one, _at_once))
    o, new_state = lax.platform_dependent(*arrays, cpu=one_by_one, default=at_once)
    return o, new_state


def _step(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, rows: jax.Array, gv: jax.Array | None, *, scale: float
) -> tuple[jax.Array, jax.Array]:
    key, value = k.astype(jnp.float32), v.astype(jnp.float32)
    new = rows * _decay(g, gv) + key[..., None] * value[..., None, :]
    o = jnp.einsum("bhgk,bhkv->bhgv", _grouped(q, k) * scale, new, precision=_EXACT)
    return o.reshape(*q.shape[:2], v.shape[2]).astype(v.dtype), new


def _at_once(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    pool: jax.Array,
    index: jax.Array,
    gv: jax.Array | None = None,
    *,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    o, new = _step(q, k, v, g, _rows(pool, index), gv, scale=scale)
    return jnp.where(_is_row(pool, index)[:, None, None], o, 0), _put(pool, index, new)


def _one_by_one(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    pool: jax.Array,
    index: jax.Array,
    gv: jax.Array | None = None,
    *,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    def step(pool: jax.Array, row: Any) -> tuple[jax.Array, jax.Array]:
        query, key, value, decay, place, is_row = row
        old = lax.dynamic_index_in_dim(
            pool, place, keepdims=False
        )  # [H, K, V]: an axis of 1 more makes XLA ten times slower
        # A select and no branch, or the pool would be copied. Of all of it: what padding holds, a NaN too, is no state's business.
        new = jnp.where(is_row, old * decay + key[..., None] * value[:, None, :], old)
        o = jnp.stack([jnp.sum(query[:, i, :, None] * new, axis=1) for i in range(query.shape[1])], axis=1)
        return lax.dynamic_update_index_in_dim(pool, new, place, 0), jnp.where(is_row, o, 0.0)

    place = jnp.clip(index, 0, pool.shape[0] - 1)
    rows = (_grouped(q, k) * scale, k.astype(jnp.float32), v.astype(jnp.float32), _decay(g, gv), place)
    new_pool, o = lax.scan(step, pool, (*rows, _is_row(pool, index)))
    return o.reshape(*q.shape[:2], v.shape[2]).astype(v.dtype), new_pool


def gla_step_bwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    state: jax.Array,
    index: jax.Array | None,
    gv: jax.Array | None,
    new_state: jax.Array,
    do: jax.Array,
    dnew_state: jax.Array,
    *,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """The arguments and the second result of `gla_step_fwd`, and the cotangents of both -> gradients of q, k, v, g, state and gv (None where
    that is None), in their dtypes. A row of padding has none; a state of no row gets its cotangent as it is.
    """
    if index is not None:  # what padding holds, a NaN too, is no gradient's business
        is_row = _is_row(state, index)[:, None, None]
        q, k, v, g, do = (jnp.where(is_row, x, 0) for x in (q, k, v, g, do))
        gv = None if gv is None else jnp.where(is_row, gv, 0)
    do_rows = do.astype(jnp.float32).reshape(*k.shape[:2], -1, v.shape[2])
    query, key, value = _grouped(q, k), k.astype(jnp.float32), v.astype(jnp.float32)
    dq = scale * jnp.einsum("bhkv,bhgv->bhgk", _rows(new_state, index), do_rows, precision=_EXACT)
    dnew = _rows(dnew_state, index) + jnp.einsum("bhgk,bhgv->bhkv", query * scale, do_rows, precision=_EXACT)
    dk = jnp.einsum("bhkv,bhv->bhk", dnew, value, precision=_EXACT)
    dv = jnp.einsum("bhkv,bhk->bhv", dnew, key, precision=_EXACT)
    dold = dnew * _decay(g, gv)
    through = dold * _rows(state, index)  # of both gates: d exp(x) is exp(x)
    dstate = dold if index is None else _put(dnew_state, index, dold)
    dgv = None if gv is None else through.sum(2).astype(gv.dtype)
    return (
        dq.reshape(q.shape).astype(q.dtype),
        dk.astype(k.dtype),
        dv.astype(v.dtype),
        through.sum(3).astype(g.dtype),
        dstate.astype(state.dtype),
        dgv,
    )


def _grouped(q: jax.Array, k: jax.Array) -> jax.Array:
    """[B, HQ, K] -> float32 [B, H, HQ // H, K]: the queries of each state."""
    return q.astype(jnp.float32).reshape(*k.shape[:2], -1, k.shape[2])


def _decay(g: jax.Array, gv: jax.Array | None) -> jax.Array:
    """What a state is multiplied by: [B, H, K, 1], or [B, H, K, V] with gates of values."""
    keys = jnp.exp(g)[..., None]
    return keys if gv is None else keys * jnp.exp(gv)[..., None, :]


def _is_row(pool: jax.Array, index: jax.Array) -> jax.Array:
    """[B] bool: no padding."""
    return (index >= 0) & (index < pool.shape[0])


def _place(pool: jax.Array, index: jax.Array) -> jax.Array:
    """[B]: where each row's state lies; behind the pool for padding. A negative index would count from the end."""
    return jnp.where(_is_row(pool, index), index, pool.shape[0])


def _rows(states: jax.Array, index: jax.Array | None) -> jax.Array:
    """[B, H, K, V]: each row's state; zeros for padding."""
    return states if index is None else states.at[_place(states, index)].get(mode="fill", fill_value=0)


def _put(pool: jax.Array, index: jax.Array, rows: jax.Array) -> jax.Array:
    """The pool with the rows in their places; padding is dropped."""
    return pool.at[_place(pool, index)].set(rows, mode="drop")
