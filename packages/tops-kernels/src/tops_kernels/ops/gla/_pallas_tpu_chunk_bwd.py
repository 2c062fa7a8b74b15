"""The arithmetic of one chunk of one head, backward: functions of arrays, without Refs.

Products of the chunk are walked through in reverse, level by level. The gradient of a log decay is a sum over the pairs that it lies between;
it is gathered at the product that a level multiplied by, so that sums of terms are added and never taken away again: nothing cancels, at any gate.
"""

import dataclasses

import jax
import jax.numpy as jnp

from tops_kernels.ops.gla._pallas_tpu_chunk import NN, NT, TN, Keys, Queries, dot, is_right, pick, right_index, stack
from tops_kernels.ops.gla._pallas_tpu_decay import (
    HIGH_LEVELS,
    LOW_LEVELS,
    ROWS,
    SUBLANES,
    Decays,
    Masks,
    Rows,
    between_bwd,
    times,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Walk:
    """Rows [8, K] float32 of q or k, decayed: before each low level, and after the last."""

    before: tuple[Rows, ...]
    after: Rows


def walk_queries(q: Rows, d: Decays) -> Walk:
    """q: 15 rows [8, K] float32."""
    rows = [row * decay for row, decay in zip(q, d.totals[0], strict=True)]
    before = []
    for level in LOW_LEVELS:
        before.append(rows)
        rows = [row * d.totals[level][(r >> level) - 1] if is_right(r, level) else row for r, row in enumerate(rows)]
    return Walk(tuple(before), rows)


def walk_keys(k: Rows, d: Decays) -> Walk:
    """k: 15 rows [8, K] float32."""
    rows = list(k)
    before = []
    for level in LOW_LEVELS:
        before.append(rows)
        rows = [times(row, _half_after(d, r, level)) for r, row in enumerate(rows)]
    return Walk(tuple(before), rows)


def _half_after(d: Decays, r: int, level: int) -> jax.Array | None:
    half = (r >> level) + 1
    return None if is_right(r, level) or half == len(d.totals[level]) else d.totals[level][half]


@dataclasses.dataclass(frozen=True, slots=True)
class Products:
    """What the matrix units give for one query head: gradients of their operands, float32."""

    low_q: tuple[jax.Array, ...]  # by low level, [64, K]: rows of right halves
    low_k: tuple[jax.Array, ...]  # by low level, [64, K]: rows of left halves
    high_q: tuple[jax.Array, ...]  # by high level, [128, K]
    high_k: tuple[jax.Array, ...]
    start: jax.Array  # [128, K]
    dv: jax.Array  # [128, V], without the state's share
    dstate: jax.Array  # [V, K], what goes to the state before the chunk, without the share of the state after it

    def plus(self, other: "Products") -> "Products":
        """What keys, values and states get of two query heads; what queries get is the other's."""
        return dataclasses.replace(
            other,
            low_k=tuple(a + b for a, b in zip(self.low_k, other.low_k, strict=True)),
            high_k=tuple(a + b for a, b in zip(self.high_k, other.high_k, strict=True)),
            dv=self.dv + other.dv,
            dstate=self.dstate + other.dstate,
        )


def products(
    q: Walk, queries: Queries, keys: Keys, a: jax.Array, v: jax.Array, do: jax.Array, state: jax.Array, masks: Masks
) -> Products:
    """a: scores; v, do [128, V], state [V, K]: all in the operands' dtype."""
    dtype = v.dtype
    by_query, by_key = dot(do, v, NT), dot(v, do, NT)  # gradients of scores: rows i, columns j; rows j, columns i
    low_q, low_k = [], []
    for level in LOW_LEVELS:
        right, left = [r for r in range(ROWS) if is_right(r, level)], [r for r in range(ROWS) if not is_right(r, level)]
        da = stack([jnp.where(masks.left_of(r, level), pick(by_query, r), 0.0) for r in right], dtype)
        da_t = stack([jnp.where(masks.right_of(r, level), pick(by_key, r), 0.0) for r in left], dtype)
        low_q.append(dot(da, keys.low[level], NN))
        # Columns are all rows of the chunk; those of left halves are masked.
        low_k.append(dot(da_t, stack(q.before[level], dtype), NN))
    high_q, high_k = [], []
    for level in HIGH_LEVELS:
        da = stack([jnp.where(masks.high[level], pick(by_query, r), 0.0) for r in range(ROWS)], dtype)
        da_t = stack([jnp.where(masks.high_after[level], pick(by_key, r), 0.0) for r in range(ROWS)], dtype)
        high_q.append(dot(da, keys.high[level], NN))
        high_k.append(dot(da_t, queries.high[level], NN))
    start = dot(do, state, NN)
    return Products(
        tuple(low_q),
        tuple(low_k),
        tuple(high_q),
        tuple(high_k),
        start,
        dot(a, do, TN),
        dot(do, queries.start, TN),
    )


@dataclasses.dataclass(slots=True)
class DecayGradients:
    """Gradients of logs, added up as they come. Lists by level as in `Decays`."""

    totals: list[list[jax.Array | None]]
    right: list[jax.Array]
    left: list[jax.Array]
    start: jax.Array
    end: jax.Array
    whole: jax.Array

    @classmethod
    def zeros(cls, d: Decays) -> "DecayGradients":
        zero = jnp.zeros_like(d.whole)
        levels = len(HIGH_LEVELS)
        return cls([[None] * len(level) for level in d.totals], [zero] * levels, [zero] * levels, zero, zero, zero)

    def add(self, level: int, block: int, value: jax.Array) -> None:
        """To the log of a product of a low level."""
        old = self.totals[level][block]
        self.totals[level][block] = value if old is None else old + value

    def of_gates(self, *, reverse: bool) -> Rows:
        """-> gradients of g, 15 rows [8, K]. A product's log is the sum of its two halves' logs."""
        shared = between_bwd(self.right, self.left, self.start, self.end, self.whole, reverse=reverse)
        for level in reversed(LOW_LEVELS[1:]):
            for block, value in enumerate(self.totals[level]):
                for half in (2 * block, 2 * block + 1):
                    if value is not None and half < len(self.totals[level - 1]):
                        self.add(level - 1, half, value)
        return [shared if row is None else row + shared for row in self.totals[0]]


def query_gradients(x: Products, q: Walk, k: Rows, down: Rows, d: Decays, grads: DecayGradients) -> Rows:
    """-> gradient of q, 15 rows [8, K]. down: gradients of q_i . k_i, [8, 1]. Adds to `grads`."""
    rows = []
    for r, row in enumerate(q.after):
        gradient = pick(x.start, r) * d.start
        grads.start = grads.start + row * gradient
        for level in HIGH_LEVELS:
            part = times(pick(x.high_q[level], r), d.right[level])
            if level:
                grads.right[level] = grads.right[level] + row * part
            gradient = gradient + part
        rows.append(gradient)
    logs = [row * gradient for row, gradient in zip(q.after, rows, strict=True)]
    for level in reversed(LOW_LEVELS):
        for r in range(ROWS):
            if is_right(r, level):
                half = (r >> level) - 1
                grads.add(level, half, logs[r])
                part = pick(x.low_q[level], right_index(r, level))
                rows[r] = rows[r] * d.totals[level][half] + part
                logs[r] = logs[r] + q.before[level][r] * part
    for r, log in enumerate(logs):
        grads.add(0, r, log)
    return [a * row + b * key for a, row, b, key in zip(d.totals[0], rows, down, k, strict=True)]


def key_gradients(x: Products, k: Walk, dend: jax.Array, d: Decays, grads: DecayGradients) -> Rows:
    """-> gradient of k without that of q_i . k_i, 15 rows [8, K]. x: summed over the query heads that share k. dend [128, K]. Adds to `grads`."""
    rows = []
    for r, row in enumerate(k.after):
        gradient = pick(dend, r) * d.end
        grads.end = grads.end + row * gradient
        for level in HIGH_LEVELS:
            part = times(pick(x.high_k[level], r), d.left[level])
            if level:
                grads.left[level] = grads.left[level] + row * part
            gradient = gradient + part
        rows.append(gradient)
    logs = [row * gradient for row, gradient in zip(k.after, rows, strict=True)]
    for level in reversed(LOW_LEVELS):
        for r in range(ROWS):
            if not is_right(r, level):
                part = pick(x.low_k[level], r - ((r >> (level + 1)) << level))
                half = _half_after(d, r, level)
                if half is not None:
                    grads.add(level, (r >> level) + 1, logs[r])
                rows[r] = times(rows[r], half) + part
                logs[r] = logs[r] + k.before[level][r] * part
    return rows


def state_gradient(x: Products, dstate: jax.Array, d: Decays) -> jax.Array:
    """dstate [V, K] float32, of the state after the chunk -> of the state before it."""
    decay = jnp.concatenate([d.whole] * (dstate.shape[0] // SUBLANES), axis=0)
    return decay * dstate + x.dstate


def whole_gradient(state: jax.Array, dstate: jax.Array, d: Decays) -> jax.Array:
    """States [V, K] before and gradients after the chunk -> of the log of its decay, [8, K], a share in every sublane."""
    both = state.astype(jnp.float32) * dstate
    return d.whole * _sum([pick(both, i) for i in range(both.shape[0] // SUBLANES)])


def _sum(arrays: list[jax.Array]) -> jax.Array:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total
