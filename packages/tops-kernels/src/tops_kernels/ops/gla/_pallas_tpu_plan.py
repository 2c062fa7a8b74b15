"""The order of a kernel's steps over chunks: plain, or through packed sequences.

Packed: a step is a visit of one sequence to one chunk. Chunks stay where they are; a chunk in which several sequences meet is visited once for
each, its block staying in VMEM, with the other sequences' steps masked. An empty sequence is a visit of no steps, so that its final
state is written too, and so are the padding rows after the last boundary, whose outputs are zeroed. At most chunks + N visits.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from tops_kernels.ops.gla._pallas_tpu_decay import CHUNK

_FIELDS = ("chunk", "sequence", "start", "stop", "flags")
_FIRST, _LAST, _FRESH = 1, 2, 4  # flags: a sequence's first visit, its last, a chunk's first visit


@dataclasses.dataclass(frozen=True, slots=True)
class Visit:
    """One step: Python numbers or scalars read inside a kernel."""

    chunk: Any
    sequence: Any  # which initial and final state
    start: Any  # steps of the chunk that take part, in the order of memory
    stop: Any
    is_first: Any  # the state comes from initial_state
    is_last: Any  # the state goes to final_state
    is_fresh: Any  # the chunk's output block holds nothing yet


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Steps of one head. Backward passes go through it from its end, `backwards`."""

    steps: int
    chunks: int
    packed: bool
    reverse: bool  # time runs from the last step to the first

    def index(self, step: Any, table: Any, backwards: bool = False) -> tuple[Any, Any]:
        """(chunk, sequence) of a step, for index maps; without packing the sequence is the batch entry, and None here."""
        if not self.packed:
            return (self.chunks - 1 - step if self.reverse != backwards else step), None
        at = self.steps - 1 - step if backwards else step
        return table[at], table[self.steps + at]

    def visit(self, step: Any, table: Any, backwards: bool = False) -> Visit:
        """A step inside a kernel. Backwards, `is_fresh` is the visit that comes first in that order."""
        if not self.packed:
            first, last = step == 0, step == self.steps - 1
            if backwards:
                first, last = last, first
            return Visit(self.index(step, None, backwards)[0], None, None, None, first, last, True)
        at = self.steps - 1 - step if backwards else step
        chunk, sequence, start, stop, flags = (table[i * self.steps + at] for i in range(len(_FIELDS)))
        fresh = (flags & _FRESH) != 0
        if backwards:
            following = table[jnp.minimum(at + 1, self.steps - 1)]
            fresh = (step == 0) | (following != chunk)
        return Visit(chunk, sequence, start, stop, (flags & _FIRST) != 0, (flags & _LAST) != 0, fresh)


def plan_for(t: int, sequences: int | None, *, reverse: bool) -> Plan:
    """t steps, in N packed sequences or None."""
    chunks = pl.cdiv(t, CHUNK)
    return Plan(chunks + (sequences or 0), chunks, sequences is not None, reverse)


def visits(cu_seqlens: jax.Array, t: int, plan: Plan) -> jax.Array:
    """cu_seqlens [N + 1] int32 -> the table a packed plan reads, [5 * steps] int32: chunk, sequence, start, stop, flags."""
    n = cu_seqlens.shape[0] - 1
    bounds = jnp.concatenate([jnp.clip(cu_seqlens.astype(jnp.int32), 0, t), jnp.array([t], jnp.int32)])
    start, stop = bounds[:-1], bounds[1:]  # [N + 1]: the padding rows are the last
    first_chunk = jnp.minimum(start // CHUNK, plan.chunks - 1)
    last_chunk = jnp.maximum((stop - 1) // CHUNK, first_chunk)
    counts = jnp.where((stop > start) | (jnp.arange(n + 1) < n), last_chunk - first_chunk + 1, 0)
    ends = jnp.cumsum(counts)
    step = jnp.arange(plan.steps, dtype=jnp.int32)
    owner = jnp.minimum(jnp.searchsorted(ends, step, side="right"), n).astype(jnp.int32)
    spare = step >= ends[-1]  # more steps than visits: they repeat the last chunk and do nothing
    chunk = jnp.where(spare, plan.chunks - 1, first_chunk[owner] + step - (ends - counts)[owner])
    real = (owner < n) & ~spare
    low = jnp.clip(start[owner] - chunk * CHUNK, 0, CHUNK)
    high = jnp.clip(stop[owner] - chunk * CHUNK, 0, CHUNK)
    first, last = real & (chunk == first_chunk[owner]), real & (chunk == last_chunk[owner])
    columns = [chunk, jnp.minimum(owner, n - 1), jnp.where(real, low, 0), jnp.where(real, high, 0)]
    if plan.reverse:
        columns, first, last = [column[::-1] for column in columns], last[::-1], first[::-1]
    fresh = jnp.concatenate([jnp.ones(1, bool), columns[0][1:] != columns[0][:-1]])
    return jnp.concatenate([*columns, first * _FIRST + last * _LAST + fresh * _FRESH]).astype(jnp.int32)
