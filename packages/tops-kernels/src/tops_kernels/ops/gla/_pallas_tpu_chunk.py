"""The arithmetic of one chunk of one head, forward: functions of arrays, without Refs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tops_kernels.ops.gla._pallas_tpu_decay import (
    HIGH_LEVELS,
    LOW_LEVELS,
    ROWS,
    SUBLANES,
    Decays,
    Masks,
    Rows,
    times,
)

NN = (((1,), (0,)), ((), ()))  # [M, C] x [C, N]
NT = (((1,), (1,)), ((), ()))  # [M, C] x [N, C]
TN = (((0,), (0,)), ((), ()))  # [C, M] x [C, N]


def dot(a: jax.Array, b: jax.Array, dims: Any) -> jax.Array:
    """Product accumulated in float32; float32 operands are multiplied as float32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class Queries:
    """What the matrix units take of q, in the operands' dtype."""

    low: tuple[jax.Array, ...]  # by low level, [64, K]: rows of right halves
    high: tuple[jax.Array, ...]  # by high level, [128, K]
    start: jax.Array  # [128, K]: decayed from the chunk's start


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """What the matrix units take of k, in the operands' dtype."""

    low: tuple[jax.Array, ...]  # by low level, [128, K]
    high: tuple[jax.Array, ...]  # by high level, [128, K]
    end: jax.Array  # [128, K]: decayed to the chunk's end


def queries(q: Rows, d: Decays, dtype: Any) -> Queries:
    """q: 15 rows [8, K] float32."""
    rows = [row * decay for row, decay in zip(q, d.totals[0], strict=True)]
    low = []
    for level in LOW_LEVELS:
        low.append(stack([row for r, row in enumerate(rows) if is_right(r, level)], dtype))
        rows = [row * d.totals[level][(r >> level) - 1] if is_right(r, level) else row for r, row in enumerate(rows)]
    high = tuple(stack([times(row, d.right[level]) for row in rows], dtype) for level in HIGH_LEVELS)
    return Queries(tuple(low), high, stack([row * d.start for row in rows], dtype))


def keys(k: Rows, d: Decays, dtype: Any) -> Keys:
    """k: 15 rows [8, K] float32."""
    rows = list(k)
    low = []
    for level in LOW_LEVELS:
        low.append(stack(rows, dtype))  # columns of right halves are masked: any finite key will do there
        rows = [times(row, right_of(d.totals[level], r, level)) for r, row in enumerate(rows)]
    high = tuple(stack([times(row, d.left[level]) for row in rows], dtype) for level in HIGH_LEVELS)
    return Keys(tuple(low), high, stack([row * d.end for row in rows], dtype))


def is_right(r: int, level: int) -> bool:
    """Whether row r lies in a right half at a low level."""
    return bool(r & (1 << level))


def right_of(totals: Rows, r: int, level: int) -> jax.Array | None:
    """The product over the right half next to row r; None where r lies in a right half itself, or there is none."""
    half = (r >> level) + 1
    return None if is_right(r, level) or half == len(totals) else totals[half]


def right_index(r: int, level: int) -> int:
    """Where row r stands among the rows of right halves."""
    return (r >> (level + 1)) * (1 << level) + (r & ((1 << level) - 1))


def own_scores(q: Rows, k: Rows) -> Rows:
    """q_i . k_i, which needs no decay: by row, [8, 1] float32."""
    return [jnp.sum(a * b, axis=-1, keepdims=True) for a, b in zip(q, k, strict=True)]


def scores(q: Queries, k: Keys, own: Rows, masks: Masks) -> jax.Array:
    """[128, 128] in the operands' dtype: q_i . k_j decayed, zero where j is after i."""
    low = [dot(a, b, NT) for a, b in zip(q.low, k.low, strict=True)]
    high = [dot(a, b, NT) for a, b in zip(q.high, k.high, strict=True)]
    rows = []
    for r in range(ROWS):
        row = jnp.broadcast_to(own[r], masks.lane.shape)
        # A level's columns are all left of those of the levels below it.
        for level in LOW_LEVELS:
            if is_right(r, level):
                left = masks.up_to((r & -(2 << level)) + (1 << level))
                row = jnp.where(left, pick(low[level], right_index(r, level)), row)
        row = jnp.where(masks.same & masks.up_to(r + 1), row, 0.0)
        for level in HIGH_LEVELS:
            row = jnp.where(masks.high[level], pick(high[level], r), row)
        rows.append(row)
    return stack(rows, q.start.dtype)


def output(q: Queries, a: jax.Array, v: jax.Array, state: jax.Array) -> jax.Array:
    """a: scores. v [128, V] and state [V, K] in the operands' dtype -> o [128, V] float32."""
    return dot(a, v, NN) + dot(q.start, state, NT)


def next_state(k: Keys, v: jax.Array, state: jax.Array, d: Decays) -> jax.Array:
    """state [V, K] float32 before the chunk -> after it."""
    decay = jnp.concatenate([d.whole] * (state.shape[0] // SUBLANES), axis=0)
    return decay * state + dot(v, k.end, TN)


def pick(stacked: jax.Array, r: int) -> jax.Array:
    """Row r of a stack, [8, N]."""
    return stacked[SUBLANES * r : SUBLANES * (r + 1)]


def stack(rows: Rows, dtype: Any) -> jax.Array:
    """Rows [8, K] -> [8 n, K], n even: 16 rows are a tile of bfloat16. Zeros where there is no row."""
    odd = [jnp.zeros_like(rows[0])] * (len(rows) % 2)
    return jnp.concatenate([*rows, *odd], axis=0).astype(dtype)
