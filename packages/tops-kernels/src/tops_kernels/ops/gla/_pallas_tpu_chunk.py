"""The arithmetic of one chunk of one head, forward: functions of arrays, without Refs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tops_kernels.ops.gla._pallas_tpu_decay import HIGH_LEVELS, LOW_LEVELS, ROWS, SUBLANES, Masks, Rows, between

_NN = (((1,), (0,)), ((), ()))  # [M, C] x [C, N]
_NT = (((1,), (1,)), ((), ()))  # [M, C] x [N, C]
_TN = (((0,), (0,)), ((), ()))  # [C, M] x [C, N]


def dot(a: jax.Array, b: jax.Array, dims: Any) -> jax.Array:
    """Product accumulated in float32; float32 operands are multiplied as float32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class Operands:
    """What the matrix units take, for one chunk of one head, in the operands' dtype."""

    own: tuple[jax.Array, ...]  # q . k of each row, [8, 1] float32
    low_q: tuple[jax.Array, ...]  # by low level, [64, K]: rows of right halves
    low_k: tuple[jax.Array, ...]  # by low level, [128, K]
    high_q: tuple[jax.Array, ...]  # by high level, [128, K]
    high_k: tuple[jax.Array, ...]
    q_start: jax.Array  # [128, K]: decayed from the chunk's start
    k_end: jax.Array  # [128, K]: decayed to the chunk's end
    whole: jax.Array  # [8, K] float32: the chunk's decay


def operands(q: Rows, k: Rows, g: Rows, *, dtype: Any, reverse: bool) -> Operands:
    """q (scaled), k, g: 15 rows [8, K] float32."""
    factors = between(g, reverse=reverse)
    a = [jnp.exp(row) for row in g]
    own = tuple(jnp.sum(q[r] * k[r], axis=-1, keepdims=True) for r in range(ROWS))
    queries, keys, totals = [q[r] * a[r] for r in range(ROWS)], list(k), a
    low_q, low_k = [], []
    for level in LOW_LEVELS:
        half = 1 << level
        low_q.append(stack([row for r, row in enumerate(queries) if r & half], dtype))
        low_k.append(stack(keys, dtype))  # columns of right halves are masked: any finite key will do there
        for r in range(ROWS):
            block = r >> level
            if r & half:
                queries[r] = queries[r] * totals[block - 1]
            elif block + 1 < len(totals):
                keys[r] = keys[r] * totals[block + 1]
        totals = [times(totals[i], totals[i + 1] if i + 1 < len(totals) else None) for i in range(0, len(totals), 2)]
    return Operands(
        own,
        tuple(low_q),
        tuple(low_k),
        tuple(stack([times(row, factors.right[level]) for row in queries], dtype) for level in HIGH_LEVELS),
        tuple(stack([times(row, factors.left[level]) for row in keys], dtype) for level in HIGH_LEVELS),
        stack([row * factors.start for row in queries], dtype),
        stack([row * factors.end for row in keys], dtype),
        factors.whole,
    )


def scores(x: Operands, masks: Masks) -> jax.Array:
    """[128, 128] in the operands' dtype: q_i . k_j decayed, zero where j is after i."""
    low = [dot(q, k, _NT) for q, k in zip(x.low_q, x.low_k, strict=True)]
    high = [dot(q, k, _NT) for q, k in zip(x.high_q, x.high_k, strict=True)]
    rows = []
    for r in range(ROWS):
        row = jnp.broadcast_to(x.own[r], masks.lane.shape)
        for level in LOW_LEVELS:
            if r & (1 << level):
                index = (r >> (level + 1)) * (1 << level) + (r & ((1 << level) - 1))  # among the right halves' rows
                row = jnp.where(masks.low(r, level), _row(low[level], index), row)
        row = jnp.where(masks.own(r), row, 0.0)
        for level in HIGH_LEVELS:
            row = jnp.where(masks.high[level], _row(high[level], r), row)
        rows.append(row)
    return stack(rows, x.q_start.dtype)


def outputs(x: Operands, a: jax.Array, v: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """a: scores. v [128, V] in the operands' dtype, state [V, K] float32 -> o [128, V] float32, the state after the chunk."""
    o = dot(a, v, _NN) + dot(x.q_start, state.astype(v.dtype), _NT)
    decayed = jnp.concatenate([x.whole] * (state.shape[0] // SUBLANES), axis=0) * state
    return o, decayed + dot(v, x.k_end, _TN)


def one_chunk(
    q: Rows, k: Rows, v: jax.Array, g: Rows, state: jax.Array, *, masks: Masks, reverse: bool
) -> tuple[jax.Array, jax.Array]:
    """q (scaled), k, g: 15 rows [8, K] float32. v [128, V] in the operands' dtype. state [V, K] float32 -> o [128, V], state after."""
    x = operands(q, k, g, dtype=v.dtype, reverse=reverse)
    return outputs(x, scores(x, masks), v, state)


def times(x: jax.Array, factor: jax.Array | None) -> jax.Array:
    return x if factor is None else x * factor


def _row(stacked: jax.Array, r: int) -> jax.Array:
    return stacked[SUBLANES * r : SUBLANES * (r + 1)]


def stack(rows: Rows, dtype: Any) -> jax.Array:
    """Rows [8, K] -> [8 n, K], n even: 16 rows are a tile of bfloat16. Zeros where there is no row."""
    odd = [jnp.zeros_like(rows[0])] * (len(rows) % 2)
    return jnp.concatenate([*rows, *odd], axis=0).astype(dtype)
