"""What the launchers of the gla kernels share: sizes, BlockSpecs, and the first and last things a step does with its refs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.gla._pallas_tpu_decay import CHUNK, Rows
from tops_kernels.ops.gla._pallas_tpu_layout import Layout
from tops_kernels.ops.gla._pallas_tpu_plan import Plan, Visit


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Static facts of one launch. Widths are whole lanes."""

    b: int
    t: int
    h: int  # key/value heads
    group: int  # query heads to one of these
    k: int
    v: int
    states: int  # B, or N packed sequences
    scale: float
    dtype: Any  # of q, k, v and what the matrix units take
    plan: Plan
    layout: Layout
    block_h: int

    @property
    def grid(self) -> tuple[int, int, int]:
        """(B, blocks of heads, steps)."""
        return self.b, self.h // self.block_h, self.plan.steps

    @property
    def ragged(self) -> int:
        """Steps in the last chunk where it reaches past T in memory, else 0. Packed visits mask their own."""
        return self.t % CHUNK if self.layout.in_place and not self.plan.packed else 0

    def heads(self, width: int, group: int = 1, backwards: bool = False) -> pl.BlockSpec:
        """A chunk of a block of heads. VMEM; a chunk visited again is not fetched again."""

        def index(b: Any, heads: Any, step: Any, *table: Any) -> Any:
            return self.layout.index(b, heads, self.plan.index(step, table[0] if table else None, backwards)[0])

        return pl.BlockSpec(self.layout.block(self.block_h * group, width), index)

    def state(self, backwards: bool = False) -> pl.BlockSpec:
        """States of a block of heads: VMEM, fetched or written once a sequence."""

        def index(b: Any, heads: Any, step: Any, *table: Any) -> Any:
            sequence = self.plan.index(step, table[0], backwards)[1] if table else b
            return sequence, heads, 0, 0

        return pl.BlockSpec((1, self.block_h, self.k, self.v), index)


def split(refs: tuple[Any, ...], call: Call, names: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """A body's refs -> the packed plan's table or None, and the others by name."""
    packed = int(call.plan.packed)
    return (refs[0] if packed else None), dict(zip(names, refs[packed:], strict=True))


def clear_tail(refs: list[Any], call: Call, visit: Visit) -> None:
    """Zeros for the steps past T that the last chunk's blocks hold: no key, no value, no decay. Memory gives anything there."""
    if call.ragged:

        @pl.when(visit.chunk == call.plan.chunks - 1)
        def _clear() -> None:
            for ref in refs:
                ref[0, call.ragged :] = jnp.zeros((CHUNK - call.ragged, *ref.shape[2:]), ref.dtype)


def load_state(s_ref: Any, h0_ref: Any) -> None:
    """Initial states [1, heads, K, V], or zeros, into s_ref [heads, V, K]."""
    for h in range(s_ref.shape[0]):
        s_ref[h] = jnp.zeros(s_ref.shape[1:], s_ref.dtype) if h0_ref is None else h0_ref[0, h].T


def save_state(s_ref: Any, final_ref: Any) -> None:
    """s_ref [heads, V, K] into final states [1, heads, K, V]."""
    for h in range(s_ref.shape[0]):
        final_ref[0, h] = s_ref[h].T


def keep_inside(rows: Rows, inside: list[jax.Array] | None) -> Rows:
    """Zeros for what does not take part; a select, so that a NaN there stays there."""
    if inside is None:
        return rows
    return [jnp.where(mask, row, 0.0) for mask, row in zip(inside, rows, strict=True)]


def in_hbm(x: jax.Array, interpret: Any) -> jax.Array:
    """x, an operand of a kernel, kept in HBM. XLA may choose VMEM for one: its blocks are then copied by the core, line by line, a tenth of the
    backward pass on v6e."""
    return x if interpret is not False else _constrained(x)


@jax.custom_batching.custom_vmap
def _constrained(x: jax.Array) -> jax.Array:
    return pltpu.with_memory_space_constraint(x, pltpu.HBM)


@_constrained.def_vmap
def _constrained_batch(_size: int, batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    # jax has no batching rule for the constraint.
    return _constrained(x), batched[0]
