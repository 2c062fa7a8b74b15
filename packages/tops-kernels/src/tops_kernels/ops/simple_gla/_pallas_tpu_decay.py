"""Decays of the chunks of a block of heads: gates lie along lanes, a head a sublane, and everything is made from their running sums.

A chunk of 120 steps lies in registers as gla has it (`gla/_pallas_tpu_decay.py`): row 8 r + s of an array [128, K] is step 15 s + r, with
`reverse` the list of rows turned over. The eight rows of r = 15 hold nothing: no query, no key. Gates come in the order of memory, and 0 where
there are none: the product that sums them up brings them into that of the rows.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.gla._pallas_tpu_blocks import Call
from tops_kernels.ops.gla._pallas_tpu_decay import CHUNK, LANES, ROWS, SUBLANES
from tops_kernels.ops.simple_gla.decays import split

_NEVER = -4e4  # its exponential is 0, even with the sums of a chunk taken from it


class Tables:
    """What is the same for every chunk of a call, in VMEM: written at a launch's first step, since registers are too few to keep it in."""

    @staticmethod
    def scratch() -> dict[str, Any]:
        """By name; `lines` and `columns` hold the sums of one step, see `Decays`."""
        square = (LANES, LANES)
        return {
            "never": pltpu.VMEM(square, jnp.float32),
            "upto": pltpu.VMEM(square, jnp.bfloat16),
            "after": pltpu.VMEM(square, jnp.float32),
            "lines": pltpu.VMEM((5, SUBLANES, LANES), jnp.float32),
            "columns": pltpu.VMEM((LANES, 4 * SUBLANES), jnp.float32),
        }

    @staticmethod
    def write(ref: dict[str, Any], scale: float, *, reverse: bool, upright: bool) -> None:
        """never: row i, lane j, or row j, lane i where `upright`: the log of scale where i is not before j, else what makes an exponential
        0. upto: row, a
        gate's step t, lane i: 1 where i is not before t. after: the same, transposed."""
        row, lane = (lax.broadcasted_iota(jnp.int32, (LANES, LANES), axis) for axis in (0, 1))
        row_step, lane_step = _step(row, reverse=reverse), _step(lane, reverse=reverse)
        sign = -1 if reverse else 1  # of time, in the order of memory
        pair = sign * (lane_step - row_step if upright else row_step - lane_step)
        ref["never"][...] = jnp.where(pair >= 0, max(math.log(abs(scale)), _NEVER) if scale else _NEVER, _NEVER)
        ref["upto"][...] = jnp.where(sign * (lane_step - row) >= 0, 1.0, 0.0).astype(jnp.bfloat16)
        ref["after"][...] = jnp.where(sign * (row_step - lane) >= 0, 1.0, 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Decays:
    """Running sums of a block of heads, in two parts (`decays.split`), and what follows from them. Heads are padded to 8."""

    coarse: jax.Array  # [8, 128]: through step i
    fine: jax.Array
    start: jax.Array  # [8, 128]: decay from the chunk's start through step i, times scale
    end: jax.Array  # [8, 128]: decay after step j to the chunk's end
    whole: jax.Array  # [8, 128]: the chunk, the same in every lane
    columns: Any  # Ref [128, 32]: the first four once more, steps along sublanes
    never: Any  # Ref, see `Tables`
    sign: float  # of scale

    def from_row_to_lane(self, h: Any) -> jax.Array:
        """[128, 128]: decay after step j, of the row, through step i, of the lane, times scale; 0 where i is before j."""
        return self._signed(jnp.exp(self.never[...] - self._row_less_lane(h)))

    def from_lane_to_row(self, h: Any) -> jax.Array:
        """[128, 128]: decay after step j, of the lane, through step i, of the row, times scale; 0 where i is before j."""
        return self._signed(jnp.exp(self.never[...] + self._row_less_lane(h)))

    def start_column(self, h: Any) -> jax.Array:
        """[128, 1]."""
        return _column(self.columns[...], 2 * SUBLANES + h)

    def end_column(self, h: Any) -> jax.Array:
        """[128, 1]."""
        return _column(self.columns[...], 3 * SUBLANES + h)

    def _signed(self, x: jax.Array) -> jax.Array:
        return -x if self.sign < 0 else x

    def _row_less_lane(self, h: Any) -> jax.Array:
        columns = self.columns[...]
        coarse = _column(columns, h) - line(self.coarse, h)
        return coarse + (_column(columns, SUBLANES + h) - line(self.fine, h))


def _step(index: jax.Array, *, reverse: bool) -> jax.Array:
    """The step, in the order of memory, that lies at an index; what holds nothing comes right after its sub-block."""
    row = index >> 3
    return ROWS * (index & (SUBLANES - 1)) + (ROWS - 1 - row if reverse else row)


def write_decays(log: jax.Array, ref: dict[str, Any], scale: float, *, reverse: bool) -> None:
    """log: log decays [heads, 128] float32, heads up to 8, steps in the order of memory -> `lines` and `columns` of ref, see `Tables`."""
    if log.shape[0] < SUBLANES:
        log = jnp.concatenate([log, jnp.zeros((SUBLANES - log.shape[0], LANES), jnp.float32)], axis=0)
    # In bfloat16 pieces, so that the sums of all are one pass of the matrix units: 2 of 8 bits hold a coarse part, 3 a fine one.
    parts, zeros = split(log), jnp.zeros_like(log)
    pieces = [*_pieces(parts[0], 2), *_pieces(parts[1], 3), zeros]
    stacked = jnp.concatenate(pieces, axis=0).astype(jnp.bfloat16)
    sums = lax.dot_general(stacked, ref["upto"][...], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    c0, c1, f0, f1, f2 = (sums[SUBLANES * i : SUBLANES * (i + 1)] for i in range(5))
    coarse, fine = c0 + c1, f0 + (f1 + f2)
    last = LANES - (SUBLANES if reverse else 1)  # it holds nothing and comes last, so its sum is that of all
    since = jnp.exp(coarse + fine)
    end = jnp.exp((coarse[:, last : last + 1] - coarse) + (fine[:, last : last + 1] - fine))
    whole = jnp.broadcast_to(since[:, last : last + 1], since.shape)
    start = since * scale
    for i, line_ in enumerate((coarse, fine, start, end, whole)):
        ref["lines"][i] = line_
    ref["columns"][...] = jnp.concatenate([coarse, fine, start, end], axis=0).T


def read_decays(ref: dict[str, Any], scale: float) -> Decays:
    """What `write_decays` wrote."""
    coarse, fine, start, end, whole = (ref["lines"][i] for i in range(5))
    return Decays(coarse, fine, start, end, whole, ref["columns"], ref["never"], math.copysign(1.0, scale))


def _pieces(x: jax.Array, count: int) -> list[jax.Array]:
    """x float32 -> `count` arrays of numbers that bfloat16 holds, whose sum it is, up to 8 bits each."""
    pieces = []
    for _ in range(count):
        pieces.append(x.astype(jnp.bfloat16).astype(jnp.float32))
        x = x - pieces[-1]
    return pieces


def line(x: jax.Array, h: Any) -> jax.Array:
    """x [heads, 128] -> [1, 128] of one head, its number static or not."""
    if isinstance(h, int):
        return x[h : h + 1]
    sublane = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    return jnp.sum(jnp.where(sublane == h, x, 0.0), axis=0, keepdims=True)


def _column(x: jax.Array, h: Any) -> jax.Array:
    """x [128, heads or more] -> [128, 1] of one head, its number static or not."""
    if isinstance(h, int):
        return x[:, h : h + 1]
    lane = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return jnp.sum(jnp.where(lane == h, x, 0.0), axis=1, keepdims=True)


def spread(row: jax.Array, width: int) -> jax.Array:
    """Rows [n, 128] of one number each -> [n, width], width in whole lanes."""
    return jnp.concatenate([row] * (width // LANES), axis=1)


def inside_lanes(start: Any, stop: Any, heads: int) -> jax.Array:
    """[heads, 128] bool: steps of the chunk from `start` up to `stop`."""
    lane = lax.broadcasted_iota(jnp.int32, (heads, LANES), 1)
    found: jax.Array = (lane >= start) & (lane < stop)
    return found


def arrange(log: jax.Array, call: Call) -> jax.Array:
    """Log decays [B, T, H] -> [B, blocks, chunks, heads, 128], in the order of memory; none past T."""
    b, t, h = log.shape
    chunks = call.plan.chunks
    x = jnp.pad(log, ((0, 0), (0, chunks * CHUNK - t), (0, 0))).transpose(0, 2, 1)
    x = x.reshape(b, h // call.block_h, call.block_h, chunks, CHUNK).transpose(0, 1, 3, 2, 4)
    return jnp.pad(x, ((0, 0),) * 4 + ((0, LANES - CHUNK),))


def restore(x: jax.Array, call: Call) -> jax.Array:
    """The inverse of `arrange`."""
    b, blocks, chunks, heads, _ = x.shape
    x = x[..., :CHUNK].transpose(0, 1, 3, 2, 4).reshape(b, blocks * heads, chunks * CHUNK)
    return x[..., : call.t].transpose(0, 2, 1)
