"""How a call's arrays lie, and how a step cuts out its rows and heads and puts its results back."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tops_kernels.ops.gla.visits import Visits, visits

CHUNK = 64
# Heads (times batches) of a step on a CPU. Two cores, B = 2, T = 2048, H = 8: 16 a step 84 ms forward and 524 with backward, 4 a step 113 and
# 647, though a single core is fastest with the four that stay in its L2 cache. Anywhere else a step has all heads: a GPU is filled by them,
# and a dimension that is split over devices is not cut.
HEADS_ON_CPU = 16


class Step(NamedTuple):
    chunk: jax.Array
    visit: Visits | None  # None where sequences are not packed: all rows of the chunk, of every sequence


class Layout:
    """Arrays as given, [B, T, HQ or H, W], with T padded to chunks; reversed, turned over. A step's rows of n key/value heads and their
    query heads: q, o and the like [N, G, C, W], k and the like [N, C, W], N = B * n, float32."""

    def __init__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        cu_seqlens: jax.Array | None,
        *,
        reverse: bool,
        heads: int | None,
    ) -> None:
        """`heads`: how many a step may have, times batches; None: all."""
        self.b, self.t, self.h = k.shape[:3]
        self.group = q.shape[2] // self.h
        self._like = k  # whose mesh axes, inside jax.shard_map, a loop's first values must vary over
        most = self.h if heads is None else max(1, heads // self.b)
        self.n = max(n for n in range(1, self.h + 1) if self.h % n == 0 and n <= most)
        self.size = min(CHUNK, 1 << max(self.t - 1, 0).bit_length())
        self.reverse = reverse
        self.sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
        self.key_width, self.value_width = q.shape[3], v.shape[3]
        self.heads = jnp.arange(0, self.h, self.n, dtype=jnp.int32)
        if cu_seqlens is None:
            self.steps = Step(jnp.arange(-(-self.t // self.size), dtype=jnp.int32), None)
        else:
            # Reversed, sequence n has the rows T - cu[n + 1] .. T - cu[n]: the boundaries turn over with the rows, and the sequences too.
            turned = self.t - cu_seqlens[::-1] if reverse else cu_seqlens
            found = visits(turned, self.t, self.size)
            self.steps = Step(found.chunk, found)

    def arranged(self, x: jax.Array) -> jax.Array:
        """Reversed and padded: rows after T have no key, no value, no decay."""
        x = jnp.flip(x, 1) if self.reverse else x
        short = -self.t % self.size
        return jnp.pad(x, ((0, 0), (0, short), (0, 0), (0, 0))) if short else x

    def rows(self, x: jax.Array) -> jax.Array:
        """The inverse of `arranged`."""
        x = x[:, : self.t]
        return jnp.flip(x, 1) if self.reverse else x

    def states(self, x: jax.Array | None) -> jax.Array:
        """[B or N, H, K, V] or None -> [B or N, H, K, V] float32."""
        count = self.b if self.sequences is None else self.sequences
        if x is None:
            return lax.full_like(self._like, 0, jnp.float32, (count, self.h, self.key_width, self.value_width))
        x = x.astype(jnp.float32)
        return x[::-1] if self.reverse and self.sequences is not None else x

    def of_heads(self, x: jax.Array, head: jax.Array) -> jax.Array:
        """`states` -> [N, K, V]; packed [sequences, n, K, V]."""
        x = lax.dynamic_slice_in_dim(x, head, self.n, 1)
        return x if self.sequences is not None else x.reshape(-1, *x.shape[2:])

    def start(self, states: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """The state before the first step, and where the ends of packed sequences are gathered: None where there are none."""
        return (states, None) if self.sequences is None else (jnp.zeros_like(states[0]), jnp.zeros_like(states))

    def as_given(self, x: jax.Array) -> jax.Array:
        """What `of_heads` gives, stacked [groups, ..] -> [B or N, H, K, V]."""
        count = self.b if self.sequences is None else self.sequences
        x = x.reshape(x.shape[0], count, self.n, *x.shape[-2:]).swapaxes(0, 1)
        x = x.reshape(count, self.h, *x.shape[-2:])
        return x[::-1] if self.reverse and self.sequences is not None else x

    def cut_queries(self, x: jax.Array, head: jax.Array, at: Step) -> jax.Array:
        """[B, T, HQ, W] -> [N, G, C, W], the rows of a visit."""
        x = self.cut(x, head, at)
        return x.reshape(-1, self.group, *x.shape[1:])

    def cut(self, x: jax.Array, head: jax.Array, at: Step) -> jax.Array:
        """[B, T, H, W] -> [N, C, W], the rows of a visit; zeros outside of it: no query, key or value there, and no decay. A select, so that
        a NaN there stays there."""
        each = x.shape[2] // self.h
        shape = self.b, self.size, self.n * each, x.shape[-1]
        x = lax.dynamic_slice(x, self._corner(at.chunk, head * each), shape)
        x = x.swapaxes(1, 2).reshape(-1, self.size, shape[-1]).astype(jnp.float32)
        return x if at.visit is None else jnp.where(self._inside(at.visit), x, 0.0)

    def put(self, out: jax.Array, x: jax.Array, head: jax.Array, at: Step) -> jax.Array:
        """`out` [B, T, HQ or H, W] with the rows of a visit, x [N or N * G, C, W]."""
        x = x.reshape(self.b, -1, *x.shape[-2:]).swapaxes(1, 2).astype(out.dtype)
        start = self._corner(at.chunk, head * (out.shape[2] // self.h))
        if at.visit is not None:
            x = jnp.where(self._inside(at.visit)[:, None], x, lax.dynamic_slice(out, start, x.shape))
        return lax.dynamic_update_slice(out, x, start)

    def _corner(self, chunk: jax.Array, head: jax.Array) -> tuple[jax.Array, ...]:
        zero = jnp.zeros((), jnp.int32)  # a plain 0 is an int64 under jax_enable_x64, and indices must be of one type
        return zero, chunk * self.size, head, zero

    def _inside(self, at: Visits) -> jax.Array:
        """[C, 1] bool: the rows of a visit."""
        row = jnp.arange(self.size)[:, None]
        return (row >= at.start) & (row < at.stop)


def rows_of(x: jax.Array, rows: jax.Array | None) -> jax.Array:
    """[B, T, H, W], zeros outside of rows."""
    if rows is None:
        return x
    row = jnp.arange(x.shape[1])[:, None, None]
    return jnp.where((row >= rows[0]) & (row < rows[1]), x, 0)
