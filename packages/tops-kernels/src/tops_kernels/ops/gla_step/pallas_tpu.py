"""One step on TPU: each state comes into VMEM once and goes out once, from and to its own place. Grid (blocks of heads, B).

VMEM a step: two buffers each of a block of states in and out, [block_h, K, V] float32; the rest is small. B and P do not enter.

With a pool the block of a step is picked by the index, which the scalar core reads ahead. A row of padding must write no state: it keeps the
block of the row before it, which then goes out once, as that row left it; padding before the first such row keeps that one's block as it came in.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.gla_step._pallas_tpu_step import Step, keys_along_lanes, step_for
from tops_kernels.ops.gla_step.config import GlaStepTpuConfig, default_config
from tops_kernels.runtime.chip import chip
from tops_kernels.runtime.manual import shape_like

_BEFORE, _PADDING, _ROW = 0, 1, 2  # what a grid step is: padding before the first row, padding behind it, a row


def gla_step_fwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    state: jax.Array,
    index: jax.Array | None,
    gv: jax.Array | None,
    *,
    scale: float,
    config: Any,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """The arguments and results of `xla.gla_step_fwd`. The states after the step take the place of those before it where XLA may reuse them."""
    b, hq, width_k = q.shape
    h, width_v = v.shape[1:]
    if config is None:
        config = default_config(h=h, k=width_k, v=width_v, has_index=index is not None, cores=chip().cores)
    if not isinstance(config, GlaStepTpuConfig) or h % config.block_h:
        raise TypeError(f"gla_step: configuration is {config}; expected a GlaStepTpuConfig whose block_h divides {h}")
    blocks = h // config.block_h
    step = step_for(width_k, width_v)
    is_swapped = step is keys_along_lanes
    placed = state.swapaxes(2, 3) if is_swapped else state  # as it lies in memory: nothing moves
    given = [(q, hq), (k, h), (v, h), (g, h)] + ([] if gv is None else [(gv, h)])
    small = [x.reshape(b, blocks, heads // blocks, x.shape[2]) for x, heads in given]
    prefetched = () if index is None else _steps(index, state.shape[0])

    def row(heads: int, width: int) -> pl.BlockSpec:  # VMEM; a row's heads of this block
        return pl.BlockSpec((1, 1, heads, width), lambda j, i, *_: (i, j, 0, 0))

    # VMEM; the row's own state, or the one that the table picks
    states = pl.BlockSpec(
        (1, config.block_h, *placed.shape[2:]),
        lambda j, i, *table: (table[0][i] if table else i, j, 0, 0),
    )
    o, new_state = pl.pallas_call(
        functools.partial(_body, step=step, scale=scale, has_index=index is not None, has_gv=gv is not None),
        name="gla_step_fwd",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(prefetched),
            grid=(blocks, b),
            in_specs=[*(row(*x.shape[2:]) for x in small), states],
            out_specs=[row(hq // blocks, width_v), states],
        ),
        out_shape=[
            shape_like((b, blocks, hq // blocks, width_v), v.dtype, q),
            shape_like(placed.shape, jnp.float32, q),
        ],
        input_output_aliases={len(prefetched) + len(small): 1},
        # Padding keeps the block of the row before it, so with an index rows must come in order.
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel" if index is None else "arbitrary")
        ),
        interpret=interpret,
    )(*prefetched, *small, placed)
    return o.reshape(b, hq, width_v), new_state.swapaxes(2, 3) if is_swapped else new_state


def _steps(index: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """[B] int32 each: which state a step holds, and what it is."""
    is_row = (index >= 0) & (index < size)
    position = jnp.arange(index.shape[0], dtype=jnp.int32)
    # By masks [B, B], which XLA fuses: gathers and running maxima are programs of their own, each with its start.
    last = jnp.max(jnp.where(is_row & (position <= position[:, None]), position, -1), axis=1)  # at or before; -1: none
    first = jnp.min(jnp.where(is_row, position, index.shape[0]))
    holder = jnp.where(last < 0, first, last)
    place = jnp.sum(jnp.where(position == holder[:, None], index, 0), axis=1, dtype=jnp.int32)  # 0 where no row is
    return place, jnp.where(is_row, _ROW, jnp.where(last < 0, _BEFORE, _PADDING)).astype(jnp.int32)


def _body(*refs: Any, step: Step, scale: float, has_index: bool, has_gv: bool) -> None:
    kind_ref = refs[1] if has_index else None
    q_ref, k_ref, v_ref, g_ref, *rest = refs[2:] if has_index else refs
    gv_ref = rest.pop(0) if has_gv else None
    state_ref, o_ref, new_ref = rest
    row = functools.partial(step, q_ref, k_ref, v_ref, g_ref, gv_ref, state_ref, o_ref, new_ref, scale=scale)
    if kind_ref is None:
        row()
        return
    kind = kind_ref[pl.program_id(1)]
    pl.when(kind == _ROW)(row)

    @pl.when(kind != _ROW)
    def _no_output() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    @pl.when(kind == _BEFORE)
    def _keep_state() -> None:
        new_ref[...] = state_ref[...]
