"""The walk through T chunk by chunk in plain JAX, one sequence a batch entry or packed: whatever a chunk's arithmetic is.

That arithmetic is three functions of one chunk's arrays [N, G, C, K], [N, C, K], [N, C, V], [N, C, gates] and states [N, K, V]:

    forward(q, k, v, g, state) -> o, state after      next_state(k, v, g, state) -> state after
    backward(q, k, v, g, state, do, gradient of the state after) -> dq, dk, dv, dg, gradient of the state before
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tops_kernels.ops.gla.visits import Visits, visits


class Chunks:
    """How a call's arrays lie, chunk by chunk: [chunks, N, .., C, width] float32 with N = B * H, in the order of processing."""

    def __init__(
        self, q: jax.Array, k: jax.Array, v: jax.Array, cu_seqlens: jax.Array | None, *, reverse: bool, most: int
    ) -> None:
        """q [B, T, HQ, K], k [B, T, H, K], v [B, T, H, V], cu_seqlens [N + 1] or None; `most`, a power of two: steps of a chunk."""
        self.b, self.t, self.h = k.shape[:3]
        self.group = q.shape[2] // self.h
        self.size = min(most, 1 << max(self.t - 1, 0).bit_length())
        self.reverse = reverse
        self._like = k  # whose mesh axes, inside jax.shard_map, a loop's first values must vary over
        self.sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
        self.key_width, self.value_width = k.shape[3], v.shape[3]
        # Reversed, sequence n has the rows T - cu[n + 1] .. T - cu[n]: the boundaries turn over with the rows, and the sequences too.
        turned = self.t - cu_seqlens[::-1] if cu_seqlens is not None and reverse else cu_seqlens
        self.visits = None if turned is None else visits(turned, self.t, self.size)

    def zeros(self, shape: tuple[int, ...]) -> jax.Array:
        """float32."""
        return lax.full_like(self._like, 0, jnp.float32, shape)

    def keys(self, x: jax.Array) -> jax.Array:
        """[B, T, H, W] -> [chunks, N, C, W]."""
        x = jnp.flip(x, 1) if self.reverse else x
        x = jnp.pad(
            x.astype(jnp.float32), ((0, 0), (0, -self.t % self.size), (0, 0), (0, 0))
        )  # no key, no value, no decay
        x = x.reshape(self.b, -1, self.size, *x.shape[2:]).transpose(1, 0, 3, 2, 4)
        return x.reshape(x.shape[0], -1, *x.shape[3:])

    def queries(self, x: jax.Array, scale: float) -> jax.Array:
        """[B, T, HQ, W] -> [chunks, N, G, C, W], times scale."""
        x = self.keys(x)
        return (x * scale).reshape(x.shape[0], -1, self.group, *x.shape[2:])

    def rows(self, x: jax.Array, dtype: Any) -> jax.Array:
        """[chunks, N, G, C, W] -> [B, T, HQ or H, W]."""
        x = x.reshape(x.shape[0], self.b, -1, *x.shape[3:]).transpose(1, 0, 3, 2, 4)
        x = x.reshape(self.b, -1, *x.shape[3:])[:, : self.t].astype(dtype)
        return jnp.flip(x, 1) if self.reverse else x

    def states(self, x: jax.Array | None) -> jax.Array:
        """[B or N, H, K, V] or None -> [B * H, K, V]; packed [N, H, K, V]."""
        count = self.b if self.sequences is None else self.sequences
        shape = (count, self.h, self.key_width, self.value_width)
        x = self.zeros(shape) if x is None else x.astype(jnp.float32)
        if self.sequences is None:
            return x.reshape(-1, *shape[2:])
        return x[::-1] if self.reverse else x

    def as_given(self, x: jax.Array) -> jax.Array:
        """The inverse of `states`."""
        if self.sequences is None:
            return x.reshape(self.b, self.h, self.key_width, self.value_width)
        return x[::-1] if self.reverse else x

    def inside(self, at: Visits) -> jax.Array:
        """[1, 1, C, 1] bool: the rows of a visit."""
        row = jnp.arange(self.size)[None, None, :, None]
        found: jax.Array = (row >= at.start) & (row < at.stop)
        return found


def through(
    call: Chunks, arrays: tuple[jax.Array, ...], state: jax.Array, forward: Callable[..., Any]
) -> tuple[jax.Array, jax.Array]:
    """arrays: q, k, v, g by chunk; state as `Chunks.states` has it -> o by chunk, final states."""
    if call.visits is None:
        final, o = lax.scan(lambda s, xs: forward(*xs, s)[::-1], state, arrays)
        return o, final

    def visit(carry: tuple[jax.Array, jax.Array, jax.Array], at: Visits) -> tuple[Any, None]:
        current, finals, out = carry
        current = jnp.where(at.first, pick(state, at.sequence), current)
        inside = call.inside(at)
        xs = [kept(pick(x, at.chunk), inside) for x in arrays]
        o, current = forward(*xs, current)
        out = put(out, at.chunk, jnp.where(inside, o, pick(out, at.chunk)))
        finals = put(finals, at.sequence, jnp.where(at.last, current, pick(finals, at.sequence)))
        return (current, finals, out), None

    empty = call.zeros((*arrays[0].shape[:-1], call.value_width))
    (_, finals, out), _ = lax.scan(visit, (state[0], call.zeros(state.shape), empty), call.visits)
    return out, finals


def back(
    call: Chunks,
    arrays: tuple[jax.Array, ...],
    do: jax.Array,
    state: jax.Array,
    dstate: jax.Array,
    next_state: Callable[..., jax.Array],
    backward: Callable[..., Any],
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """arrays, state as `through` takes them, do and dstate the cotangents of what it gives -> gradients of state and of arrays."""
    if call.visits is None:
        _, before = lax.scan(lambda s, xs: (next_state(*xs, s), s), state, arrays[1:])

        def chunk(ds: jax.Array, xs: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
            *grads, ds = backward(*xs, ds)
            return ds, tuple(grads)

        return lax.scan(chunk, dstate, (*arrays, before, do), reverse=True)

    def inputs(at: Visits) -> tuple[jax.Array, list[jax.Array]]:
        inside = call.inside(at)
        return inside, [kept(pick(x, at.chunk), inside) for x in (*arrays, do)]

    def onward(current: jax.Array, at: Visits) -> tuple[jax.Array, jax.Array]:
        current = jnp.where(at.first, pick(state, at.sequence), current)
        _, (_, *xs, _) = inputs(at)
        return next_state(*xs, current), current

    _, before = lax.scan(onward, state[0], call.visits)

    def visit(carry: Any, xs: Any) -> tuple[Any, None]:
        ds, dinitial, out = carry
        at, earlier = xs
        ds = jnp.where(at.last, pick(dstate, at.sequence), ds)
        inside, (q, k, v, g, do) = inputs(at)
        *grads, ds = backward(q, k, v, g, earlier, do, ds)
        out = tuple(
            put(total, at.chunk, jnp.where(inside if x.ndim == 4 else inside[0], x, pick(total, at.chunk)))
            for total, x in zip(out, grads, strict=True)
        )
        dinitial = put(dinitial, at.sequence, jnp.where(at.first, ds, pick(dinitial, at.sequence)))
        return (ds, dinitial, out), None

    start = call.zeros(dstate.shape[1:]), call.zeros(dstate.shape), tuple(call.zeros(x.shape) for x in arrays)
    (_, dinitial, out), _ = lax.scan(visit, start, (call.visits, before), reverse=True)
    return dinitial, out


def pick(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index]."""
    picked: jax.Array = lax.dynamic_index_in_dim(x, index, 0, keepdims=False)
    return picked


def put(x: jax.Array, index: jax.Array, value: jax.Array) -> jax.Array:
    """x with x[index] = value."""
    updated: jax.Array = lax.dynamic_update_index_in_dim(x, value, index, 0)
    return updated


def kept(x: jax.Array, inside: jax.Array) -> jax.Array:
    """Zeros outside of the visit's rows: no query, key or value there, and no decay. A select, so that a NaN there stays there."""
    return jnp.where(inside if x.ndim == 4 else inside[0], x, 0.0)
