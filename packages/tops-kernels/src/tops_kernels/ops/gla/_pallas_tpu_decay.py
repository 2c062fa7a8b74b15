"""Decay inside a chunk of 128 steps, exact at any gate: no exponent above 0, no difference of sums, so -inf is just a factor of 0.

How a chunk lies in registers. An array [120, K] is a list of 15 rows, each [8, K] (a register for K = 128). Row r, sublane s is step
15 s + r of the chunk: a sub-block of 15 steps lies across the list, and the 8 sub-blocks lie in the sublanes. Products along a
sub-block are then products of whole registers, and what happens between sub-blocks happens in one register. 15 and not 16, because rows come from memory with that stride:
32 banks deliver 8 rows at an odd stride at once, at a stride of 16 one at a time.
With `reverse` time runs backwards: the list comes reversed, and sublane s is sub-block 7 - s. Everything here is in the order of processing.

A hierarchy of anchors. The pairs i > j of a chunk fall into 7 levels: at level l they lie in the right and in the left half of one
block of 2^(l+1) steps. Anchored between the halves,

    exp(G_i - G_j) = [product of a_t from the anchor up to i] * [product of a_t after j up to the anchor] = P_l[i] * F_l[j],   a = exp(g)

both factors are <= 1. Levels 0 to 3 lie within sub-blocks, 4 to 6 between them. i = j needs no decay.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

CHUNK = 120  # steps
ROWS = 15  # steps of a sub-block, a register each
LANES = 128  # columns of a chunk's scores: a register's width, so that a chunk's columns stand at r * 8 + s
SUBLANES = 8  # sub-blocks of a chunk
LOW_LEVELS = (0, 1, 2, 3)  # within a sub-block: bits of the row number
HIGH_LEVELS = (0, 1, 2)  # between sub-blocks: bits of the sublane number

Rows = list[jax.Array]  # 15 arrays [8, K]


@dataclasses.dataclass(frozen=True, slots=True)
class Decays:
    """All factors of one chunk of one head."""

    # By low level: products over the blocks of 2^level rows of a sub-block, [8, K] each; at level 0 the decays of single steps.
    totals: tuple[Rows, ...]
    # From the gates of whole sub-blocks, [8, K] each: what all steps of a sub-block share. By high level; None is 1.
    right: tuple[jax.Array | None, ...]  # from the anchor to the start of sub-block s, where s is in a right half
    left: tuple[jax.Array | None, ...]  # from the end of sub-block s to the anchor, where s is in a left half
    start: jax.Array  # from the chunk's start to the start of sub-block s
    end: jax.Array  # from the end of sub-block s to the chunk's end
    whole: jax.Array  # the chunk, the same in every sublane


def decays(g: Rows, *, reverse: bool) -> Decays:
    """g: log decays, 15 rows [8, K] float32."""
    totals = [[jnp.exp(row) for row in g]]
    for _ in LOW_LEVELS[1:]:
        last = totals[-1]
        totals.append([times(last[i], last[i + 1] if i + 1 < len(last) else None) for i in range(0, len(last), 2)])
    # Between sub-blocks: sums of logs, so that rounding does not grow with the number of steps.
    total = functools.reduce(jnp.add, g)
    to_start = to_end = zero = jnp.zeros_like(total)
    right: list[jax.Array | None] = []
    left: list[jax.Array | None] = []
    for level in HIGH_LEVELS:
        right.append(jnp.exp(to_start) if level else None)
        left.append(jnp.exp(to_end) if level else None)
        neighbour = exchange(total, level)
        is_right = in_right_half(total, level, reverse=reverse)
        to_start = to_start + jnp.where(is_right, neighbour, zero)
        to_end = to_end + jnp.where(is_right, zero, neighbour)
        total = total + neighbour
    return Decays(tuple(totals), tuple(right), tuple(left), jnp.exp(to_start), jnp.exp(to_end), jnp.exp(total))


def between_bwd(
    right: list[jax.Array], left: list[jax.Array], start: jax.Array, end: jax.Array, whole: jax.Array, *, reverse: bool
) -> jax.Array:
    """Gradients of the logs of `Decays.right`, `.left`, `.start`, `.end`, `.whole` -> of the log totals of sub-blocks, [8, K].

    `decays` backwards, line by line: only sums, nothing cancels. `whole` may hold a different share in every sublane.
    """
    to_start, to_end, total, zero = start, end, whole, jnp.zeros_like(whole)
    for level in reversed(HIGH_LEVELS):
        is_right = in_right_half(total, level, reverse=reverse)
        neighbour = total + jnp.where(is_right, to_start, zero) + jnp.where(is_right, zero, to_end)
        total = total + exchange(neighbour, level)
        to_start, to_end = to_start + right[level], to_end + left[level]
    return total


def times(x: jax.Array, factor: jax.Array | None) -> jax.Array:
    """x * factor, where None is 1."""
    return x if factor is None else x * factor


def in_right_half(x: jax.Array, level: int, *, reverse: bool) -> jax.Array:
    """[8, K] bool: whether a sublane's sub-block, in the order of processing, lies in the right half of its block at a high level."""
    sublane = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    bit = (sublane & (1 << level)) != 0
    return ~bit if reverse else bit  # 7 - s has the bits of s, turned over


def exchange(x: jax.Array, level: int) -> jax.Array:
    """x [8, K] -> x at sublane s ^ 2^level."""
    step = 1 << level
    down = pltpu.roll(x, step, 0)  # x[s - step]
    if 2 * step == SUBLANES:
        return down
    up = pltpu.roll(x, SUBLANES - step, 0)
    sublane = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    return jnp.where((sublane & step) != 0, down, up)


@dataclasses.dataclass(frozen=True, slots=True)
class Masks:
    """Which columns of a row of scores belong to which level. Column r * 8 + s is row r, sublane s."""

    lane: jax.Array  # [8, 128] column numbers
    same: jax.Array  # [8, 128] the column's sub-block is the row's
    high: tuple[
        jax.Array, ...
    ]  # by high level, [8, 128]: the column is in the left half of the block whose right half has the row
    high_after: tuple[jax.Array, ...]  # the other way round: the row is left, the column right

    def up_to(self, rows: int) -> jax.Array:
        """Columns of the first rows."""
        return self.lane < SUBLANES * rows

    def left_of(self, r: int, level: int) -> jax.Array:
        """Row r in a right half at a low level: the columns of its left half."""
        base = r & -(2 << level)
        return self.same & self.up_to(base + (1 << level)) & ~self.up_to(base)

    def right_of(self, r: int, level: int) -> jax.Array:
        """Row r in a left half at a low level: the columns of its right half."""
        base = r & -(2 << level)
        return self.same & self.up_to(base + (2 << level)) & ~self.up_to(base + (1 << level))

    def own(self, r: int) -> jax.Array:
        """Row r: its own column."""
        return self.same & self.up_to(r + 1) & ~self.up_to(r)


def masks(*, reverse: bool) -> Masks:
    """The masks of a chunk, from iotas."""
    shape = (SUBLANES, LANES)
    lane = lax.broadcasted_iota(jnp.int32, shape, 1)
    row_block = lax.broadcasted_iota(jnp.int32, shape, 0)
    column_block = lane & (SUBLANES - 1)
    apart = row_block ^ column_block
    after = row_block < column_block if reverse else row_block > column_block
    # The highest bit in which the two sub-blocks differ is the level.
    high = tuple(((apart >> level) == 1) & after for level in HIGH_LEVELS)
    high_after = tuple(((apart >> level) == 1) & ~after for level in HIGH_LEVELS)
    return Masks(lane, apart == 0, high, high_after)
