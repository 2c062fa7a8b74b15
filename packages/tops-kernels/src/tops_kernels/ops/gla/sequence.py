"""Sequence parallelism of a recurrence whose state is multiplied by a decay: T lies split over a mesh axis, inside jax.shard_map.

A shard's steps take the state before them to `decay * state + own`. So a pass is: each shard's own end state from nothing, and its decay;
one all_gather of the two; a walk over the shards, S <- decay * S + own; the op itself on the shard's own rows, from the state that
the walk gives it. The backward pass is the same walk from the end, over gradients of states. Decays are products of numbers up to 1, so
nothing overflows, and a hard reset is a decay of 0.

Packed: of all sequences only the one that crosses an edge between two shards is exchanged there. What replicated boundaries say (who owns an
edge, which shard holds a sequence's first and last row) every shard works out for itself.

Knows no op: `Recurrence` is what one brings along. States are [S, H, K, V], S = B, or the number of sequences; decays need only broadcast.
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tops_kernels.runtime.manual import cast, varying
from tops_kernels.runtime.residuals import named

_REGISTER = 1024  # numbers of 32 bits


class Recurrence(Protocol):
    """What one shard does with its own rows; static, so hashable. floats: the op's arrays but for states and boundaries, the first [B, T, ..];
    rows: int32 [2], the first row that takes part and the one after the last, None: all. States and gradients of them are float32."""

    @property
    def name(self) -> str: ...  # of the op

    @property
    def inputs(self) -> tuple[str, ...]: ...  # names of floats

    @property
    def axis_name(self) -> str: ...

    @property
    def reverse(self) -> bool: ...

    def forward(self, floats: Any, initial_state: jax.Array, cu_seqlens: jax.Array | None) -> Any:
        """-> (o, final_state)"""

    def backward(
        self, floats: Any, initial_state: jax.Array, cu_seqlens: jax.Array | None, do: jax.Array, dfinal: jax.Array
    ) -> Any:
        """-> (gradients of floats .., gradient of initial_state)"""

    def gates(self, floats: Any) -> tuple[jax.Array, ...]:
        """-> log decays of the steps, each [B, T, H, K or 1, V or 1]: 1 where all channels share one. What it makes varies as floats do"""

    def end(self, floats: Any, state: jax.Array | None, rows: jax.Array | None) -> jax.Array:
        """The state before the rows, None: zeros -> the state after them [B, H, K, V]"""

    def start(self, floats: Any, do: jax.Array, dstate: jax.Array, rows: jax.Array | None) -> jax.Array:
        """The gradient of the state after the rows -> of the state before them [B, H, K, V]"""


def attend(op: Recurrence, floats: Any, initial_state: jax.Array | None, cu_seqlens: jax.Array | None) -> Any:
    """-> (o of this shard's rows, final_state the same on every shard). initial_state and cu_seqlens must be so too."""
    arrays = (*floats, initial_state, cu_seqlens, lax.axis_index(op.axis_name))
    axes = frozenset[Any]().union(*(varying(x) for x in arrays if x is not None))
    floats = tuple(cast(x, axes) for x in floats)
    shared = axes - {op.axis_name}
    return _attend(op, floats, cast(initial_state, shared), cast(cu_seqlens, shared))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(op: Recurrence, floats: Any, initial_state: Any, cu_seqlens: Any) -> Any:
    return _attend_fwd(op, floats, initial_state, cu_seqlens)[0]


def _attend_fwd(op: Recurrence, floats: Any, initial_state: Any, cu_seqlens: Any) -> Any:
    kept = tuple(x if x is None else named(x, f"{op.name}.{name}") for x, name in zip(floats, op.inputs, strict=True))
    forward = _whole_fwd if cu_seqlens is None else _packed_fwd
    outputs, state = forward(op, floats, initial_state, cu_seqlens)
    return outputs, (kept, initial_state, cu_seqlens, named(state, f"{op.name}.state"))


def _attend_bwd(op: Recurrence, residuals: Any, cotangents: Any) -> Any:
    floats, initial_state, cu_seqlens, state = residuals
    backward = _whole_bwd if cu_seqlens is None else _packed_bwd
    grads, dinitial = backward(op, floats, initial_state, cu_seqlens, state, *cotangents)
    integers = None if cu_seqlens is None else np.zeros(cu_seqlens.shape, jax.dtypes.float0)
    return grads, None if initial_state is None else dinitial.astype(initial_state.dtype), integers


_attend.defvjp(_attend_fwd, _attend_bwd)


@dataclasses.dataclass(frozen=True, slots=True)
class _Axis:
    """The axis as a shard sees it. Steps of time: 0 is the shard whose rows come first, which with `reverse` is the last one."""

    name: str
    size: int
    index: jax.Array  # of this shard along the mesh
    reverse: bool

    @classmethod
    def of(cls, op: Recurrence) -> "_Axis":
        return cls(op.axis_name, lax.axis_size(op.axis_name), lax.axis_index(op.axis_name), op.reverse)

    @property
    def time(self) -> jax.Array:
        """This shard's place in time."""
        return self.size - 1 - self.index if self.reverse else self.index

    @property
    def is_tracked(self) -> bool:
        """Whether jax knows what varies over the axis (check_vma). If it does not, the gradient of what is the same on every shard is
        handed out in parts, and taken in parts: the sum over shards counts."""
        return self.name in varying(self.index)

    def gather(self, *parts: jax.Array) -> tuple[jax.Array, ...]:
        """The one exchange: each part [..] -> [P, ..] in the order of time, the same on every shard."""
        flat = jnp.concatenate([part.reshape(-1) for part in parts])
        if (
            flat.size > _REGISTER
        ):  # of anything but whole registers a TPU's compiler makes a sum: all shards' parts, zeros but for one's own
            flat = jnp.pad(flat, (0, -flat.size % _REGISTER))
        # Outside of check_vma there is nothing to be said about what varies, and jax refuses to have it said.
        found = lax.all_gather(flat, self.name, to="invarying" if self.is_tracked else "varying")
        found = found[::-1] if self.reverse else found
        ends = np.cumsum([part.size for part in parts])
        shapes = [(self.size, *part.shape) for part in parts]
        return tuple(x.reshape(shape) for x, shape in zip(jnp.split(found, ends, axis=1)[:-1], shapes, strict=True))

    def total(self, x: jax.Array) -> jax.Array:
        """The sum of what the shards have."""
        total: jax.Array = lax.psum(x, self.name)  # type: ignore[no-untyped-call]  # jax has no types for it
        return total


def _decays(op: Recurrence, floats: Any) -> list[jax.Array]:
    """Of all this shard's steps together, each [B, H, K or 1, V or 1]; their product is the state's. The logs are added up as a tree, 64 by
    64: rounding does not grow with T."""
    found = []
    for g in op.gates(floats):
        g = g.astype(jnp.float32)
        while g.shape[1] > 1:
            g = jnp.pad(g, ((0, 0), (0, -g.shape[1] % min(64, g.shape[1])), (0, 0), (0, 0), (0, 0)))
            g = g.reshape(g.shape[0], -1, min(64, g.shape[1]), *g.shape[2:]).sum(2)
        found.append(jnp.exp(g[:, 0]))
    return found


def _walk(
    start: jax.Array | None,
    decays: Sequence[jax.Array],
    own: jax.Array,
    crosses: jax.Array | None = None,
    *,
    backwards: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """S <- decays * S + own along the shards [P, S, H, K, V], in the order of time or from its end.

    crosses: bool [P]; where false the state before a shard does not reach its other edge, whatever it is (a NaN too).
    Returns: S before each step, [P, S, H, K, V]; S after all.
    """
    state = cast(jnp.zeros(own.shape[1:], own.dtype) if start is None else start.astype(own.dtype), varying(own))
    if crosses is None:
        crosses = jnp.ones(own.shape[0], bool)

    def step(state: jax.Array, x: tuple[list[jax.Array], jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        decays, own, crosses = x
        return jnp.where(crosses, functools.reduce(operator.mul, decays, state), 0.0) + own, state

    last, before = lax.scan(step, state, (list(decays), own, cast(crosses, varying(own))), reverse=backwards)
    return before, last


def _pick(x: jax.Array, index: jax.Array) -> jax.Array:
    picked: jax.Array = lax.dynamic_index_in_dim(x, index, 0, keepdims=False)
    return picked


def _whole_fwd(op: Recurrence, floats: Any, initial_state: Any, _: None) -> Any:
    axis = _Axis.of(op)
    *decays, own = axis.gather(*_decays(op, floats), op.end(floats, None, None))
    before, final = _walk(initial_state, decays, own)
    state = _pick(before, axis.time)
    o, _final = op.forward(floats, state, None)
    return (o, final), state


def _whole_bwd(op: Recurrence, floats: Any, initial_state: Any, _: None, state: Any, do: Any, dfinal: Any) -> Any:
    axis = _Axis.of(op)
    dfinal = dfinal.astype(jnp.float32)
    parts = *_decays(op, floats), op.start(floats, do, jnp.zeros_like(state), None)
    if axis.is_tracked:
        *decays, own = axis.gather(*parts)
    else:
        *decays, own, dfinals = axis.gather(*parts, dfinal)
        dfinal = dfinals.sum(0)
    after, dinitial = _walk(dfinal, decays, own, backwards=True)
    *grads, _dstate = op.backward(floats, state, None, do, _pick(after, axis.time))
    if not axis.is_tracked:
        dinitial = jnp.where(axis.time == 0, dinitial, 0.0)
    return tuple(grads), dinitial


@dataclasses.dataclass(frozen=True, slots=True)
class _Pack:
    """Packed sequences as one shard sees them. Edges 0..P lie before, between and after the shards, in the order of memory."""

    axis: _Axis
    local: jax.Array  # [N + 1] boundaries among this shard's rows
    owner: jax.Array  # [P + 1] the sequence that goes across an edge
    is_open: jax.Array  # [P + 1] bool: there is one
    crosses: jax.Array  # [P] bool, in the order of time: it is one sequence at both edges of a shard
    first: jax.Array  # [N] bool: this shard has the sequence's first step in time
    last: jax.Array  # [N] bool: and the last

    @classmethod
    def of(cls, axis: _Axis, cu_seqlens: jax.Array, t: int) -> "_Pack":
        """t rows a shard."""
        n = cu_seqlens.shape[0] - 1
        bounds = jnp.clip(cu_seqlens.astype(jnp.int32), 0, axis.size * t)
        begin, end = bounds[:-1], bounds[1:]
        edges = t * np.arange(axis.size + 1, dtype=np.int32)
        owner = jnp.clip(jnp.searchsorted(bounds, jnp.asarray(edges), side="right") - 1, 0, n - 1).astype(jnp.int32)
        is_open = (begin[owner] < edges) & (edges < end[owner])
        crosses = is_open[:-1] & is_open[1:] & (owner[:-1] == owner[1:])
        low = jnp.minimum(begin // t, axis.size - 1)
        high = jnp.where(end > begin, (end - 1) // t, low)  # an empty sequence belongs to the shard it lies in
        first, last = (high, low) if axis.reverse else (low, high)
        local = jnp.clip(bounds - axis.index * t, 0, t)
        crosses = crosses[::-1] if axis.reverse else crosses
        return cls(axis, local, owner, is_open, crosses, first == axis.index, last == axis.index)

    def edge(self, *, later: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(sequence across this shard's earlier or later edge in time, whether there is one, its rows here)."""
        at = self.axis.index + int(later != self.axis.reverse)
        n, is_open = self.owner[at], self.is_open[at]
        return n, is_open, jnp.where(is_open, jnp.stack([self.local[n], self.local[n + 1]]), 0)

    @property
    def crosses_here(self) -> jax.Array:
        return self.crosses[self.axis.time]

    def put(self, states: jax.Array, n: jax.Array, where: jax.Array, state: jax.Array) -> jax.Array:
        """states [N, ..] with sequence n's replaced by state [1, ..]."""
        return jnp.where(_over(jnp.arange(states.shape[0]) == n, states) & where, state, states)


def _over(flags: jax.Array, states: jax.Array) -> jax.Array:
    """flags [N] -> [N, 1, .., 1]."""
    return flags.reshape(-1, *[1] * (states.ndim - 1))


def _packed_start(pack: _Pack, initial_state: Any, state: jax.Array) -> jax.Array:
    """The state [N, H, K, V] before each sequence's rows of this shard. state [1, H, K, V]: what comes across the earlier edge."""
    n, is_open, _ = pack.edge(later=False)
    if initial_state is None:
        initial_state = jnp.zeros((pack.first.shape[0], *state.shape[1:]), state.dtype)
    return pack.put(initial_state.astype(state.dtype), n, is_open, state)


def _packed_fwd(op: Recurrence, floats: Any, initial_state: Any, cu_seqlens: Any) -> Any:
    axis = _Axis.of(op)
    pack = _Pack.of(axis, cu_seqlens, floats[0].shape[1])
    n, is_open, rows = pack.edge(later=True)
    here = pack.crosses_here  # then the state of before comes by way of the walk
    start = None if initial_state is None else jnp.where(here, 0.0, initial_state[n][None].astype(jnp.float32))
    own = jnp.where(is_open, op.end(floats, start, rows), 0.0)
    *decays, owns = axis.gather(*(jnp.where(here, x, 0.0) for x in _decays(op, floats)), own)
    before, _ = _walk(None, decays, owns, pack.crosses)
    state = _pick(before, axis.time)
    o, finals = op.forward(floats, _packed_start(pack, initial_state, state), pack.local)
    return (o, axis.total(jnp.where(_over(pack.last, finals), finals, 0.0))), state


def _packed_bwd(
    op: Recurrence, floats: Any, initial_state: Any, cu_seqlens: Any, state: Any, do: Any, dfinal: Any
) -> Any:
    axis = _Axis.of(op)
    pack = _Pack.of(axis, cu_seqlens, floats[0].shape[1])
    dfinal = dfinal.astype(jnp.float32)
    dfinal = dfinal if axis.is_tracked else axis.total(dfinal)
    n, is_open, rows = pack.edge(later=False)
    here = pack.crosses_here
    own = op.start(floats, do, jnp.where(is_open & ~here, dfinal[n][None], 0.0), rows)
    ends = (jnp.where(here, x, 0.0) for x in _decays(op, floats))
    *decays, owns = axis.gather(*ends, jnp.where(is_open, own, 0.0))
    after, _ = _walk(None, decays, owns, pack.crosses, backwards=True)
    n, is_open, _ = pack.edge(later=True)
    dlocal = pack.put(jnp.where(_over(pack.last, dfinal), dfinal, 0.0), n, is_open, _pick(after, axis.time))
    start = _packed_start(pack, initial_state, state)
    *grads, dinitial = op.backward(floats, start, pack.local, do, dlocal)
    dinitial = jnp.where(_over(pack.first, dinitial), dinitial, 0.0)
    if initial_state is not None and axis.is_tracked:
        dinitial = axis.total(dinitial)
    return tuple(grads), dinitial
