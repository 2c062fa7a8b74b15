"""gla in plain JAX: a scan over chunks of 64 steps, the state carried along, and one of two exact forms a chunk.

A chunk whose gates are weak takes `_xla_narrow`, any other `_xla_chunk`; a `lax.cond` on the chunk's own gates decides. Nothing of size
T * K * V is kept: the backward pass keeps the state before each chunk, a 64th of that.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tops_kernels.ops.gla import _xla_chunk as exact
from tops_kernels.ops.gla import _xla_narrow as narrow
from tops_kernels.ops.gla.visits import Visits, visits

CHUNK = 64


def gla_fwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
) -> tuple[jax.Array, jax.Array]:
    """q [B, T, HQ, K], k, g [B, T, H, K], v [B, T, H, V], initial_state [B or N, H, K, V] or None, cu_seqlens [N + 1] or None
    -> o [B, T, HQ, V] in v's dtype, final_state like initial_state, float32."""
    call = _Call(q, k, v, cu_seqlens, reverse)
    arrays = call.queries(q, scale), call.keys(k), call.keys(v), call.keys(g)
    state = call.states(initial_state)
    if call.visits is None:
        final, o = lax.scan(lambda s, xs: _swapped(*_forward(*xs, s)), state, arrays)
        return call.rows(o, v.dtype), call.as_given(final)

    def visit(carry: tuple[jax.Array, jax.Array, jax.Array], at: Visits) -> tuple[Any, None]:
        current, finals, out = carry
        current = jnp.where(at.first, _pick(state, at.sequence), current)
        inside = call.inside(at)
        xs = [_kept(_pick(x, at.chunk), inside) for x in arrays]
        o, current = _forward(*xs, current)
        out = _put(out, at.chunk, jnp.where(inside, o, _pick(out, at.chunk)))
        finals = _put(finals, at.sequence, jnp.where(at.last, current, _pick(finals, at.sequence)))
        return (current, finals, out), None

    empty = jnp.zeros((*arrays[0].shape[:-1], v.shape[-1]), jnp.float32)
    (_, finals, out), _ = lax.scan(visit, (state[0], jnp.zeros_like(state), empty), call.visits)
    return call.rows(out, v.dtype), call.as_given(finals)


def gla_bwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    do: jax.Array,
    dfinal: jax.Array,
    *,
    scale: float,
    reverse: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """The arguments of `gla_fwd`, do and dfinal the cotangents of its outputs -> gradients of q, k, v, g and initial_state (None where
    that is None), in their dtypes."""
    call = _Call(q, k, v, cu_seqlens, reverse)
    arrays = call.queries(q, scale), call.keys(k), call.keys(v), call.keys(g)
    cotangent = call.queries(do, 1.0)
    state, dstate = call.states(initial_state), call.states(dfinal)
    if call.visits is None:
        _, before = lax.scan(lambda s, xs: (_next_state(*xs, s), s), state, arrays[1:])

        def step(ds: jax.Array, xs: tuple[jax.Array, ...]) -> tuple[jax.Array, tuple[jax.Array, ...]]:
            *grads, ds = _backward(*xs, ds)
            return ds, tuple(grads)

        dstate, found = lax.scan(step, dstate, (*arrays, before, cotangent), reverse=True)
    else:
        dstate, found = _packed_backward(call, arrays, state, cotangent, dstate)
    dq, dk, dv, dg = found
    dinitial = None if initial_state is None else call.as_given(dstate).astype(initial_state.dtype)
    return (
        call.rows(dq * scale, q.dtype), call.rows(dk[:, :, None], k.dtype), call.rows(dv[:, :, None], v.dtype),
        call.rows(dg[:, :, None], g.dtype), dinitial,
    )  # fmt: skip


def _packed_backward(
    call: "_Call", arrays: tuple[jax.Array, ...], state: jax.Array, cotangent: jax.Array, dstate: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    def inputs(at: Visits) -> tuple[jax.Array, list[jax.Array]]:
        inside = call.inside(at)
        return inside, [_kept(_pick(x, at.chunk), inside) for x in (*arrays, cotangent)]

    def onward(current: jax.Array, at: Visits) -> tuple[jax.Array, jax.Array]:
        current = jnp.where(at.first, _pick(state, at.sequence), current)
        _, (_, *xs, _) = inputs(at)
        return _next_state(*xs, current), current

    _, before = lax.scan(onward, state[0], call.visits)

    def step(carry: Any, xs: Any) -> tuple[Any, None]:
        ds, dinitial, out = carry
        at, kept = xs
        ds = jnp.where(at.last, _pick(dstate, at.sequence), ds)
        inside, (q, k, v, g, do) = inputs(at)
        *grads, ds = _backward(q, k, v, g, kept, do, ds)
        out = tuple(
            _put(total, at.chunk, jnp.where(inside if x.ndim == 4 else inside[0], x, _pick(total, at.chunk)))
            for total, x in zip(out, grads, strict=True)
        )
        dinitial = _put(dinitial, at.sequence, jnp.where(at.first, ds, _pick(dinitial, at.sequence)))
        return (ds, dinitial, out), None

    start = jnp.zeros_like(dstate[0]), jnp.zeros_like(dstate), tuple(jnp.zeros_like(x) for x in arrays)
    (_, dinitial, out), _ = lax.scan(step, start, (call.visits, before), reverse=True)
    return dinitial, out


class _Call:
    """How a call's arrays lie, chunk by chunk: [chunks, N, .., C, width] float32 with N = B * H, in the order of processing."""

    def __init__(self, q: jax.Array, k: jax.Array, v: jax.Array, cu_seqlens: jax.Array | None, reverse: bool) -> None:
        self.b, self.t, self.h = k.shape[:3]
        self.group = q.shape[2] // self.h
        self.size = min(CHUNK, 1 << max(self.t - 1, 0).bit_length())
        self.reverse = reverse
        self.sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
        self.key_width, self.value_width = k.shape[3], v.shape[3]
        # Reversed, sequence n has the rows T - cu[n + 1] .. T - cu[n]: the boundaries turn over with the rows, and the sequences too.
        turned = self.t - cu_seqlens[::-1] if cu_seqlens is not None and reverse else cu_seqlens
        self.visits = None if turned is None else visits(turned, self.t, self.size)

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
        x = jnp.zeros(shape, jnp.float32) if x is None else x.astype(jnp.float32)
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
        return (row >= at.start) & (row < at.stop)


def _swapped(o: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    return state, o


def _choose(forms: tuple[Callable[..., Any], Callable[..., Any]], g: jax.Array, *operands: jax.Array) -> Any:
    if g.shape[-2] <= exact.SUB:
        return forms[1](*operands)  # no slower, and gradients of g that are 0 come out as 0
    return lax.cond(narrow.is_narrow(g), *forms, *operands)


def _forward(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _choose((narrow.forward, exact.forward), operands[3], *operands)  # type: ignore[no-any-return]  # cond has no types


def _next_state(*operands: jax.Array) -> jax.Array:
    return _choose((narrow.next_state, exact.next_state), operands[2], *operands)  # type: ignore[no-any-return]  # likewise


def _backward(*operands: jax.Array) -> tuple[jax.Array, ...]:
    return _choose((narrow.backward, exact.backward), operands[3], *operands)  # type: ignore[no-any-return]  # likewise


def _pick(x: jax.Array, index: jax.Array) -> jax.Array:
    picked: jax.Array = lax.dynamic_index_in_dim(x, index, 0, keepdims=False)
    return picked


def _put(x: jax.Array, index: jax.Array, value: jax.Array) -> jax.Array:
    updated: jax.Array = lax.dynamic_update_index_in_dim(x, value, index, 0)
    return updated


def _kept(x: jax.Array, inside: jax.Array) -> jax.Array:
    """Zeros outside of the visit's rows: no query, key or value there, and no decay. A select, so that a NaN there stays there."""
    return jnp.where(inside if x.ndim == 4 else inside[0], x, 0.0)
