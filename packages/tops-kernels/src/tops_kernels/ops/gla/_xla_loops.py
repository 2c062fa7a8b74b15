"""The loops of gla and its relatives in plain JAX: one or a few heads after another (on a CPU; elsewhere all at once), chunk after chunk of 64
steps, the state carried along. What a chunk computes is for `Forms` to say.

Nothing of size T * K * V is kept: the backward pass keeps the state before each chunk, a 64th of that, for the heads at hand.

On a CPU each step cuts its rows out of the arrays as they lie, and turns them to [heads, C, width] in the cache: no operand is arranged as a whole
beforehand (docs/kernels/gla.md has the figures).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tops_kernels.ops.gla._xla_layout import Group, Layout, Step, rows_of
from tops_kernels.runtime.partition import divided

# In shorter chunks the exact form is no slower, and gradients of g that are 0 come out as 0.
_SHORT = 16


class Forms(NamedTuple):
    """The arithmetic of one chunk, as modules: `exact` for any gates; `narrow`, if there is one, for the gates that `weak` lets through, [B, T, H, ..]
    in chunks of a size -> [B, T / size, H] bool."""

    exact: Any
    narrow: Any = None
    weak: Callable[[jax.Array, int], jax.Array] | None = None


def _by_platform(function: Callable[..., Any], *arrays: Any, **static: Any) -> Any:
    """function(*arrays, **static, few=..): few heads at a time on a CPU, unless the program is for several devices: batch entries may then be theirs,
    and are not cut. The second of arrays is [B, T, H, W]."""
    b, _, h, _ = arrays[1].shape
    few, together = (functools.partial(function, **static, few=few) for few in (True, False))
    if not isinstance(b * h, int) or b * h <= 1:  # a symbolic size, or the same either way
        return together(*arrays)
    return lax.platform_dependent(
        *arrays, cpu=lambda *arrays: lax.cond(divided(), together, few, *arrays), default=together
    )


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
    forms: Forms,
) -> tuple[jax.Array, jax.Array]:
    """q [B, T, HQ, K], k, g [B, T, H, K], v [B, T, H, V], initial_state [B or N, H, K, V] or None, cu_seqlens [N + 1] or None
    -> o [B, T, HQ, V] in v's dtype, final_state like initial_state, float32."""
    return _by_platform(_forward, q, k, v, g, initial_state, cu_seqlens, scale=scale, reverse=reverse, forms=forms)  # type: ignore[no-any-return]  # as the function


def _forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
    forms: Forms,
    few: bool,
) -> tuple[jax.Array, jax.Array]:
    call = Layout(q, k, v, cu_seqlens, reverse=reverse, few=few)
    arrays = tuple(call.arranged(x) for x in (q, k, v, g))
    weak = _weak(call, forms, arrays[3])
    states = call.states(initial_state)

    def group(out: jax.Array, group: Group) -> tuple[jax.Array, jax.Array]:
        initial = call.of_group(states, group)

        def step(carry: Any, at: Step) -> tuple[Any, None]:
            current, finals, out = carry
            current = _entered(initial, current, at)

            def chunk(form: Any) -> Any:
                q, *others = arrays
                q = call.cut_queries(q, group, at) * scale
                return form.forward(q, *(call.cut(x, group, at) for x in others), current)

            o, current = _choose(forms, chunk, weak, group, at)
            return (
                current,
                _gathered(finals, current, at, at.visit and at.visit.last),
                call.put(out, o, group, at),
            ), None

        (current, finals, out), _ = lax.scan(step, (*call.start(initial), out), call.steps)
        return out, current if finals is None else finals

    empty = lax.full_like(v, 0, shape=(*arrays[0].shape[:-1], v.shape[-1]))
    out, finals = lax.scan(group, empty, call.groups)
    return call.rows(out), call.as_given(finals)


def backward(
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
    forms: Forms,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """The arguments of `forward`, do and dfinal the cotangents of its outputs -> gradients of q, k, v, g and initial_state (None where
    that is None), in their dtypes."""
    arrays = q, k, v, g, initial_state, cu_seqlens, do, dfinal
    return _by_platform(_backward, *arrays, scale=scale, reverse=reverse, forms=forms)  # type: ignore[no-any-return]  # as the function


def _backward(
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
    forms: Forms,
    few: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None]:
    call = Layout(q, k, v, cu_seqlens, reverse=reverse, few=few)
    arrays = tuple(call.arranged(x) for x in (q, k, v, g, do))
    weak = _weak(call, forms, arrays[3])
    states, dfinals = call.states(initial_state), call.states(dfinal)

    def group(outs: tuple[jax.Array, ...], group: Group) -> tuple[tuple[jax.Array, ...], jax.Array]:
        initial, dlast = call.of_group(states, group), call.of_group(dfinals, group)

        def onward(left: jax.Array, at: Step) -> tuple[jax.Array, jax.Array]:
            before = _entered(initial, left, at)

            def next_state(form: Any) -> Any:
                return form.next_state(*(call.cut(x, group, at) for x in arrays[1:4]), before)

            return _choose(forms, next_state, weak, group, at), left

        # What each visit finds is what the one before left, or its sequence's initial state: `found` serves both ways.
        _, found = lax.scan(onward, call.start(initial)[0], call.steps)

        def step(carry: Any, xs: tuple[Step, jax.Array]) -> tuple[Any, None]:
            dstate, dinitials, outs = carry
            at, left = xs
            dstate = dstate if at.visit is None else jnp.where(at.visit.last, dlast[at.visit.sequence], dstate)

            def chunk(form: Any) -> Any:
                q, *others, do = arrays
                q, do = call.cut_queries(q, group, at) * scale, call.cut_queries(do, group, at)
                others = [call.cut(x, group, at) for x in others]
                dq, *grads = form.backward(q, *others, do, _entered(initial, left, at), dstate)
                return dq * scale, *grads

            *grads, dstate = _choose(forms, chunk, weak, group, at)
            outs = tuple(call.put(out, x, group, at) for out, x in zip(outs, grads, strict=True))
            return (dstate, _gathered(dinitials, dstate, at, at.visit and at.visit.first), outs), None

        dstate, dinitials = call.start(dlast)
        carry = dstate, dinitials, outs
        (dstate, dinitials, outs), _ = lax.scan(step, carry, (call.steps, found), reverse=True)
        return outs, dstate if dinitials is None else dinitials

    # Packed, rows that no step visits stay 0. Otherwise every row is written, and what was there is of no account: XLA:CPU would copy one
    # constant for each array that begins with it, and makes different ones in place.
    empty = tuple(
        lax.full_like(like, 0 if cu_seqlens is not None else i, shape=x.shape)
        for i, (x, like) in enumerate(zip(arrays[:4], (q, k, v, g), strict=True))
    )
    outs, dstates = lax.scan(group, empty, call.groups)
    dinitial = None if initial_state is None else call.as_given(dstates).astype(initial_state.dtype)
    dq, dk, dv, dg = (call.rows(x) for x in outs)
    return dq, dk, dv, dg, dinitial


def end(
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    rows: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
    forms: Forms,
) -> jax.Array:
    """Arguments of `forward`; rows [2]: the first that takes part and the one after the last, None: all -> final_state alone."""
    return _by_platform(_end, k, v, g, initial_state, rows, scale=scale, reverse=reverse, forms=forms)  # type: ignore[no-any-return]  # as the function


def _end(
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    rows: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
    forms: Forms,
    few: bool,
) -> jax.Array:
    call = Layout(k, k, v, None, reverse=reverse, few=few)
    arrays = tuple(call.arranged(rows_of(x, rows)) for x in (k, v, g))
    weak = _weak(call, forms, arrays[2])
    states = call.states(initial_state)

    def group(_: None, group: Group) -> tuple[None, jax.Array]:
        def step(current: jax.Array, at: Step) -> tuple[jax.Array, None]:
            def next_state(form: Any) -> Any:
                return form.next_state(*(call.cut(x, group, at) for x in arrays), current)

            return _choose(forms, next_state, weak, group, at), None

        return None, lax.scan(step, call.of_group(states, group), call.steps)[0]

    return call.as_given(lax.scan(group, None, call.groups)[1])


def start(
    q: jax.Array,
    v: jax.Array,
    g: jax.Array,
    do: jax.Array,
    dfinal: jax.Array,
    rows: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
    forms: Forms,
) -> jax.Array:
    """Arguments of `backward`, rows as for `end` -> the gradient of initial_state alone, float32."""
    return _by_platform(_start, q, v, g, do, dfinal, rows, scale=scale, reverse=reverse, forms=forms)  # type: ignore[no-any-return]  # as the function


def _start(
    q: jax.Array,
    v: jax.Array,
    g: jax.Array,
    do: jax.Array,
    dfinal: jax.Array,
    rows: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
    forms: Forms,
    few: bool,
) -> jax.Array:
    call = Layout(q, g, v, None, reverse=reverse, few=few)
    queries, g, cotangents = (call.arranged(rows_of(x, rows)) for x in (q, g, do))
    weak = _weak(call, forms, g)
    dstates = call.states(dfinal)

    def group(_: None, group: Group) -> tuple[None, jax.Array]:
        def step(dstate: jax.Array, at: Step) -> tuple[jax.Array, None]:
            def state_before(form: Any) -> Any:
                q, do = call.cut_queries(queries, group, at) * scale, call.cut_queries(cotangents, group, at)
                return form.state_before(q, call.cut(g, group, at), do, dstate)

            return _choose(forms, state_before, weak, group, at), None

        return None, lax.scan(step, call.of_group(dstates, group), call.steps, reverse=True)[0]

    return call.as_given(lax.scan(group, None, call.groups)[1])


def _weak(call: Layout, forms: Forms, g: jax.Array) -> Callable[[Group, Step], jax.Array] | None:
    """g as arranged -> of a group and a step, whether the narrow form may be used there; None: nowhere."""
    weak = forms.weak
    if weak is None or call.size <= _SHORT:
        return None
    if call.sequences is not None:
        # By a visit's own rows: what a sequence gives is not for its neighbours' gates to change, nor for padding's.
        return lambda group, at: jnp.all(weak(call.cut(g, group, at)[:, :, None], call.size))
    chunks, size = weak(g, call.size), (call.entries, 1, call.n)
    return lambda group, at: jnp.all(lax.dynamic_slice(chunks, (call.first_entry(group), at.chunk, group.head), size))


def _choose(
    forms: Forms,
    compute: Callable[[Any], Any],
    weak: Callable[[Group, Step], jax.Array] | None,
    group: Group,
    at: Step,
) -> Any:
    """compute(module) with the one of forms that the chunk's gates allow. It cuts its operands itself, inside the branch: cut before, they would
    be copied once more."""
    if weak is None:
        return compute(forms.exact)
    return lax.cond(weak(group, at), lambda: compute(forms.narrow), lambda: compute(forms.exact))


def _entered(initial: jax.Array, current: jax.Array, at: Step) -> jax.Array:
    """The state that a step finds: its sequence's own on the first visit."""
    return current if at.visit is None else jnp.where(at.visit.first, initial[at.visit.sequence], current)


def _gathered(ends: jax.Array | None, state: jax.Array, at: Step, now: jax.Array | None) -> jax.Array | None:
    """What packed sequences end with, so far: `state` for the visit's sequence if `now`."""
    if ends is None or at.visit is None or now is None:
        return None
    index = at.visit.sequence
    return ends.at[index].set(jnp.where(now, state, ends[index]))
