"""Decay inside a chunk of 128 steps, exact at any gate: no exponent above 0, no difference of sums, so -inf is just a factor of 0.

How a chunk lies in registers. An array [128, K] is a list of 16 rows, each [8, K] (a register for K = 128). Row r, sublane s is step
16 s + r of the chunk: a sub-block of 16 steps lies across the list, and the 8 sub-blocks lie in the sublanes. Products along a
sub-block are then products of whole registers, and what happens between sub-blocks happens in one register.
With `reverse` time runs backwards: the list comes reversed, and sublane s is sub-block 7 - s. Everything here is in the order of processing.

A hierarchy of anchors. The pairs i > j of a chunk fall into 7 levels: at level l they lie in the right and in the left half of one
block of 2^(l+1) steps. Anchored between the halves,

    exp(G_i - G_j) = [product of a_t from the anchor up to i] * [product of a_t after j up to the anchor] = P_l[i] * F_l[j],   a = exp(g)

both factors are <= 1. Levels 0 to 3 lie within sub-blocks, 4 to 6 between them. i = j needs no decay.
"""

import dataclasses

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

Rows = list[jax.Array]  # 16 arrays [8, K]


@dataclasses.dataclass(frozen=True, slots=True)
class Between:
    """Factors from the gates of whole sub-blocks, each [8, K]: what a sub-block's steps share."""

    right: tuple[jax.Array | None, ...]  # by high level: anchor to the start of sub-block s, in right halves; None is 1
    left: tuple[jax.Array | None, ...]  # by high level: end of sub-block s to the anchor, in left halves; None is 1
    start: jax.Array  # start of the chunk to the start of sub-block s
    end: jax.Array  # end of sub-block s to the end of the chunk
    whole: jax.Array  # the chunk, the same in every sublane


def sub_block(rows_like: jax.Array, *, reverse: bool) -> jax.Array:
    """[8, K] int32: the number of the sub-block in each sublane, in the order of processing."""
    sublane = lax.broadcasted_iota(jnp.int32, rows_like.shape, 0)
    return SUBLANES - 1 - sublane if reverse else sublane


def between(g: Rows, *, reverse: bool) -> Between:
    """g: log decays. Sums of logs, so that an error does not grow with the number of steps."""
    total = g[0]
    for row in g[1:]:
        total = total + row  # [8, K]: of each sub-block
    block = sub_block(total, reverse=reverse)
    zero = jnp.zeros_like(total)
    to_start, to_end = zero, zero  # from the group's start to the sub-block's, from the sub-block's end to the group's
    right: list[jax.Array | None] = []
    left: list[jax.Array | None] = []
    for level in HIGH_LEVELS:
        right.append(jnp.exp(to_start) if level else None)
        left.append(jnp.exp(to_end) if level else None)
        neighbour = exchange(total, level)
        is_right = (block & (1 << level)) != 0
        to_start = to_start + jnp.where(is_right, neighbour, zero)
        to_end = to_end + jnp.where(is_right, zero, neighbour)
        total = total + neighbour
    return Between(tuple(right), tuple(left), jnp.exp(to_start), jnp.exp(to_end), jnp.exp(total))


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
    """Which columns of a row of scores belong to which level. A column r * 8 + s is row r, sublane s."""

    lane: jax.Array  # [8, 128] column numbers
    same: jax.Array  # [8, 128] the column's sub-block is the row's
    high: tuple[jax.Array, ...]  # by high level, [8, 128]

    def low(self, r: int, level: int) -> jax.Array:
        """Row r, a right half at `level`: the columns left of that half's end. Lower levels hold what is right of their own."""
        half = 1 << level
        return self.lane < SUBLANES * ((r & -(2 * half)) + half)

    def own(self, r: int) -> jax.Array:
        """Row r: same sub-block, and not after r."""
        return self.same & (self.lane < SUBLANES * (r + 1))


def masks(*, reverse: bool) -> Masks:
    """The masks of a chunk, from iotas."""
    shape = (SUBLANES, LANES)
    lane = lax.broadcasted_iota(jnp.int32, shape, 1)
    row_block = lax.broadcasted_iota(jnp.int32, shape, 0)
    column_block = lane & (SUBLANES - 1)
    same = row_block == column_block
    if reverse:
        row_block, column_block = SUBLANES - 1 - row_block, SUBLANES - 1 - column_block
    apart = row_block ^ column_block
    # The highest bit in which the two differ is the level; the row must be on the right.
    high = tuple(((apart >> level) == 1) & (row_block > column_block) for level in HIGH_LEVELS)
    return Masks(lane, same, high)
