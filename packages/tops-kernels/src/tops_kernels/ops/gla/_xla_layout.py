"""How a call's arrays lie, and how a step cuts out its rows and heads and puts its results back."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tops_kernels.ops.gla.visits import Visits, visits

CHUNK = 64
# Key or value channels of all heads of a step on a CPU: what a chunk of them needs, some 600 KB, stays in a core's own cache. Larger arrays are
# also split over threads by XLA:CPU, which leaves half of each in the other core's cache, while the products run on one thread all the same. With
# 2048, two cores take 5 to 45% longer (docs/kernels/gla.md).
WIDTH = 128


class Step(NamedTuple):
    chunk: jax.Array
    visit: Visits | None  # None where sequences are not packed: all rows of the chunk, of every sequence


class Group(NamedTuple):
    """The first batch entry and the first key/value head of those that one loop over time has."""

    batch: jax.Array
    head: jax.Array


class Layout:
    """Arrays as given, [B, T, HQ or H, W], with T padded to chunks; reversed, turned over. A step's rows of a group with N key/value heads,
    counting each batch entry's, and their query heads: q, o and the like [N, G, C, W], k and the like [N, C, W], float32."""

    def __init__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        cu_seqlens: jax.Array | None,
        *,
        reverse: bool,
        few: bool,
    ) -> None:
        """few: groups of few heads, see `WIDTH`; otherwise there is one group, of all."""
        self.b, self.t, self.h = k.shape[:3]
        self.group = q.shape[2] // self.h
        self._like = k  # whose mesh axes, inside jax.shard_map, a loop's first values must vary over
        self.entries, self.n = self.b, self.h
        if few:
            most = max(1, WIDTH // max(q.shape[3], v.shape[3]))
            self.n = _divisor(self.h, most)
            self.entries = _divisor(self.b, most // self.n)
        self.size = min(CHUNK, 1 << max(self.t - 1, 0).bit_length())
        self.reverse = reverse
        self.sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
        self.key_width, self.value_width = q.shape[3], v.shape[3]
        # B may be symbolic where a group has all of it.
        self.counts = (self.b // self.entries, self.h // self.n) if few else (1, 1)
        entry, head = np.indices(self.counts, np.int32).reshape(2, -1)
        self.groups = Group(jnp.asarray(entry * self.entries), jnp.asarray(head * self.n))
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

    def of_group(self, x: jax.Array, group: Group) -> jax.Array:
        """`states` -> [N, K, V]; packed [sequences, n, K, V]."""
        x = lax.dynamic_slice_in_dim(x, group.head, self.n, 1)
        if self.sequences is not None:
            return x
        x = x if self.entries == self.b else lax.dynamic_slice_in_dim(x, group.batch, self.entries, 0)
        return x.reshape(-1, *x.shape[2:])

    def start(self, states: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """The state before the first step, and where the ends of packed sequences are gathered: None where there are none."""
        return (states, None) if self.sequences is None else (jnp.zeros_like(states[0]), jnp.zeros_like(states))

    def as_given(self, x: jax.Array) -> jax.Array:
        """What `of_group` gives, stacked [groups, ..] -> [B or N, H, K, V]."""
        count = self.b if self.sequences is None else self.sequences
        # The group's batch entry and head, then the state's among the group's.
        x = x.reshape(*self.counts, -1, self.n, *x.shape[-2:]).swapaxes(1, 2)
        x = x.reshape(count, self.h, *x.shape[-2:])
        return x[::-1] if self.reverse and self.sequences is not None else x

    def cut_queries(self, x: jax.Array, group: Group, at: Step) -> jax.Array:
        """[B, T, HQ, W] -> [N, G, C, W], the rows of a visit."""
        x = self.cut(x, group, at)
        return x.reshape(-1, self.group, *x.shape[1:])

    def cut(self, x: jax.Array, group: Group, at: Step) -> jax.Array:
        """[B, T, H, W] -> [N, C, W], the rows of a visit; zeros outside of it: no query, key or value there, and no decay. A select, so that
        a NaN there stays there."""
        each = x.shape[2] // self.h
        shape = self.entries, self.size, self.n * each, x.shape[-1]
        x = lax.dynamic_slice(x, self._corner(at.chunk, group, each), shape)
        x = x.swapaxes(1, 2).reshape(-1, self.size, shape[-1]).astype(jnp.float32)
        return x if at.visit is None else jnp.where(self._inside(at.visit), x, 0.0)

    def put(self, out: jax.Array, x: jax.Array, group: Group, at: Step) -> jax.Array:
        """`out` [B, T, HQ or H, W] with the rows of a visit, x [N or N * G, C, W]."""
        x = x.reshape(self.entries, -1, *x.shape[-2:]).swapaxes(1, 2).astype(out.dtype)
        start = self._corner(at.chunk, group, out.shape[2] // self.h)
        if at.visit is not None:
            x = jnp.where(self._inside(at.visit)[:, None], x, lax.dynamic_slice(out, start, x.shape))
        return lax.dynamic_update_slice(out, x, start)

    def _corner(self, chunk: jax.Array, group: Group, each: int) -> tuple[jax.Array, ...]:
        zero = jnp.zeros((), jnp.int32)  # a plain 0 is an int64 under jax_enable_x64, and indices must be of one type
        return self.first_entry(group), chunk * self.size, group.head * each, zero

    def first_entry(self, group: Group) -> jax.Array:
        # Of all entries none is cut: a dimension that may be split over devices.
        return jnp.zeros((), jnp.int32) if self.entries == self.b else group.batch

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


def _divisor(x: int, most: int) -> int:
    """The greatest of x up to `most`."""
    return max(n for n in range(1, x + 1) if x % n == 0 and n <= most)
