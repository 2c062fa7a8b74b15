"""How blocks of heads lie in memory, and rows of a chunk in them.

in place: an array [B, T, H, 128] as the caller has it. A block [1, 120, heads, 128] is read with a stride: the 8 sublanes of a row are 15
    steps apart. bfloat16 is read as 32-bit words, which hold two neighbouring heads. Nothing is copied.
arranged: any H and any width. XLA brings the array into [B, H, chunks, 120, K], padded with zeros (to whole chunks and to 128 lanes), the steps
    of a chunk in the order of its rows. A copy of every input and output, so in place is taken where it can be.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.gla._pallas_tpu_decay import CHUNK, LANES, ROWS, SUBLANES, Rows

HEADS_IN_PLACE = 8  # heads a block holds: the sublane tile of an array [.., H, 128]
_HIGH_HALF = -65536  # 0xffff0000: bfloat16 is the high half of a float32


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Static facts about how one call's arrays lie."""

    in_place: bool
    interpreted: (
        bool  # the interpreters write through neither bitcast nor reshaped Refs: elements are indexed one by one
    )
    reverse: bool  # rows come in the order of processing: the last step's row first

    def for_heads(self, heads: int, body: Callable[[list[Any]], None], *, one_by_one: bool = False) -> None:
        """body([0, 1]), body([2, 3]), ..: heads two at a time.

        Two share a 32-bit word of bfloat16 in place, and while one waits for the matrix units the other has work. A chip's loads of halves
        of words want static numbers; an interpreter wants a loop. one_by_one: a loop over single heads, for float32 that needs the room.
        """
        at_once = 2 if heads % 2 == 0 and not one_by_one else 1
        if self.interpreted or one_by_one:
            lax.fori_loop(0, heads // at_once, lambda i, _: body([i * at_once + j for j in range(at_once)]), None)
        else:
            for head in range(0, heads, at_once):
                body([head + j for j in range(at_once)])

    def load(self, ref: Any, head: Any) -> Rows:
        """15 rows [8, lanes] float32 of one head of a block."""
        if not self.in_place:
            rows = ref[0, head, 0].astype(jnp.float32)
            return self.order([rows[SUBLANES * r : SUBLANES * (r + 1)] for r in range(ROWS)])
        if self.interpreted:
            return self.order([ref[_plain(r, head)].reshape(SUBLANES, LANES).astype(jnp.float32) for r in range(ROWS)])
        heads = ref.shape[2]
        if ref.dtype == jnp.float32:
            lines = ref.reshape(CHUNK * heads, LANES)
            return self.order([lines[_strided(r, head, heads), :] for r in range(ROWS)])
        words = ref.reshape(CHUNK * heads, LANES).bitcast(jnp.int32)
        pairs = [words[_strided(r, head // 2, heads // 2), :] for r in range(ROWS)]
        halves = [pair & jnp.int32(_HIGH_HALF) if head % 2 else pair << 16 for pair in pairs]
        return self.order([lax.bitcast_convert_type(half, jnp.float32) for half in halves])

    def store(self, ref: Any, head: Any, values: list[Rows], keep: list[jax.Array] | None) -> None:
        """Rows of heads `head`, `head` + 1, .. into a block. In place an even number, from an even one.

        keep: by row, [8, lanes] bool: where the block stays as it is. None writes everything.
        """
        if keep is not None:
            old = [self.load(ref, head + i) for i in range(len(values))]
            values = [
                [jnp.where(mask, before, row) for mask, before, row in zip(keep, *rows, strict=True)]
                for rows in zip(old, values, strict=True)
            ]
        values = [self.order(rows) for rows in values]
        if not self.in_place:
            for i, rows in enumerate(values):
                ref[0, head + i, 0] = jnp.concatenate(rows).astype(ref.dtype)
        elif self.interpreted:
            for i, rows in enumerate(values):
                for r, row in enumerate(rows):
                    ref[_plain(r, head + i)] = row.reshape(1, SUBLANES, 1, LANES).astype(ref.dtype)
        elif ref.dtype == jnp.float32:
            heads = ref.shape[2]
            lines = ref.reshape(CHUNK * heads, LANES)
            for i, rows in enumerate(values):
                for r, row in enumerate(rows):
                    lines[_strided(r, head + i, heads), :] = row
        else:
            heads = ref.shape[2] // 2
            words = ref.reshape(2 * CHUNK * heads, LANES).bitcast(jnp.int32)
            for i in range(0, len(values), 2):
                for r, pair in enumerate(zip(values[i], values[i + 1], strict=True)):
                    word = pltpu.pack_elementwise(list(pair), packed_dtype=jnp.bfloat16)  # type: ignore[no-untyped-call]  # jax has no types for it
                    words[_strided(r, (head + i) // 2, heads), :] = lax.bitcast_convert_type(word, jnp.int32)

    def order(self, rows: list[Any]) -> list[Any]:
        """Between the order of memory and that of processing."""
        return rows[::-1] if self.reverse else rows

    def inside(self, start: Any, stop: Any, lanes: int) -> list[jax.Array]:
        """By row, [8, lanes] bool: steps of the chunk from `start` up to `stop`, counted in the order of memory."""
        step = ROWS * lax.broadcasted_iota(jnp.int32, (SUBLANES, lanes), 0)
        return self.order([(step + r >= start) & (step + r < stop) for r in range(ROWS)])

    def block(self, heads: int, width: int) -> tuple[int, ...]:
        """The shape of a block of heads."""
        return (1, CHUNK, heads, width) if self.in_place else (1, heads, 1, CHUNK, width)

    def index(self, batch: Any, heads: Any, chunk: Any) -> tuple[Any, ...]:
        """A block's index, from block numbers."""
        return (batch, chunk, heads, 0) if self.in_place else (batch, heads, chunk, 0, 0)

    def arrange(self, x: jax.Array) -> jax.Array:
        """[B, T, H, K] -> as the kernel reads it."""
        if self.in_place:
            return x
        b, t, h, width = x.shape
        chunks = pl.cdiv(t, CHUNK)
        x = jnp.pad(x, ((0, 0), (0, chunks * CHUNK - t), (0, 0), (0, -width % LANES)))
        x = x.reshape(b, chunks, SUBLANES, ROWS, h, x.shape[-1])
        return x.transpose(0, 4, 1, 3, 2, 5).reshape(b, h, chunks, CHUNK, x.shape[-1])

    def shape(self, b: int, t: int, h: int, width: int) -> tuple[int, ...]:
        """The shape of an output as the kernel writes it."""
        return (b, t, h, width) if self.in_place else (b, h, pl.cdiv(t, CHUNK), CHUNK, width)

    def restore(self, x: jax.Array, t: int, width: int) -> jax.Array:
        """An output as the kernel wrote it -> [B, T, H, K]."""
        if self.in_place:
            return x
        b, h, chunks, _, lanes = x.shape
        x = x.reshape(b, h, chunks, ROWS, SUBLANES, lanes).transpose(0, 2, 4, 3, 1, 5)
        return x.reshape(b, chunks * CHUNK, h, lanes)[:, :t, :, :width]


def _strided(r: int, head: Any, heads: int) -> Any:
    """Row r of a head among the lines [120 * heads, 128] of a block: one load, the stride being odd times a power of two up to 4."""
    return pl.ds(r * heads + head, SUBLANES, stride=ROWS * heads)


def _plain(r: int, head: Any) -> Any:
    """The same elements in a block [1, 120, heads, 128]; on a chip it would be a load for every sublane."""
    return pl.ds(0, 1), pl.ds(r, SUBLANES, stride=ROWS), pl.ds(head, 1), slice(None)


def pad_lanes(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Zeros up to whole multiples of 128 along axes."""
    return jnp.pad(x, [(0, -n % LANES if i in axes else 0) for i, n in enumerate(x.shape)])
