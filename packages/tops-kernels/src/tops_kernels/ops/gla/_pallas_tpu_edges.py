"""Kernels that go through the steps for the state alone, as sequence parallelism needs it: `end` for the state after them, `start` for the
gradient of the state before them. Grid (B, blocks of heads, steps); the state stays in VMEM along the steps and is all that is written.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.gla import _pallas_tpu_chunk as chunk
from tops_kernels.ops.gla._pallas_tpu_blocks import Call, clear_tail, keep_inside, load_state, save_state, split
from tops_kernels.ops.gla._pallas_tpu_decay import SUBLANES, decays
from tops_kernels.ops.gla._pallas_tpu_plan import Visit
from tops_kernels.runtime.manual import shape_like


def end(
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    table: jax.Array | None,
    *,
    call: Call,
    interpret: Any,
) -> jax.Array:
    """k, v, g as `call.layout` has them; initial_state [B or N, H, K, V] float32 or None; table of a packed plan or None
    -> final_state [B or N, H, K, V] float32."""
    key = call.heads(call.k)
    operands = {"k": (k, key), "v": (v, call.heads(call.v)), "g": (g, key), "edge": (initial_state, call.state())}
    return _launch("gla_end", operands, table, call, interpret, backwards=False)


def start(
    q: jax.Array,
    g: jax.Array,
    do: jax.Array,
    dfinal: jax.Array,
    table: jax.Array | None,
    *,
    call: Call,
    interpret: Any,
) -> jax.Array:
    """q, g, do as `call.layout` has them, dfinal [B or N, H, K, V] float32 -> the gradient of initial_state, like dfinal."""
    operands = {
        "q": (q, call.heads(call.k, call.group, backwards=True)),
        "g": (g, call.heads(call.k, backwards=True)),
        "do": (do, call.heads(call.v, call.group, backwards=True)),
        "edge": (dfinal, call.state(backwards=True)),
    }
    return _launch("gla_start", operands, table, call, interpret, backwards=True)


def _launch(
    name: str,
    operands: dict[str, tuple[Any, pl.BlockSpec]],
    table: jax.Array | None,
    call: Call,
    interpret: Any,
    *,
    backwards: bool,
) -> jax.Array:
    given = {name: pair for name, pair in operands.items() if pair[0] is not None}
    out: jax.Array = pl.pallas_call(
        functools.partial(_body, names=(*given, "out", "s"), call=call, backwards=backwards),
        name=name,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=int(call.plan.packed),
            grid=call.grid,
            in_specs=[spec for _, spec in given.values()],
            out_specs=call.state(backwards),
            scratch_shapes=[pltpu.VMEM((call.block_h, call.v, call.k), jnp.float32)],
        ),
        out_shape=shape_like((call.states, call.h, call.k, call.v), jnp.float32, operands["g"][0]),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
    )(*([] if table is None else [table]), *(array for array, _ in given.values()))
    return out


def _body(*refs: Any, names: tuple[str, ...], call: Call, backwards: bool) -> None:
    # in: k, v, g or q, g, do: blocks of heads; edge [1, heads, K, V]: the state, or its gradient, at the edge where the walk begins, if given.
    # out: the same at the other edge. scratch: s [heads, V, K] float32, carried along the steps.
    table, ref = split(refs, call, names)
    visit = call.plan.visit(pl.program_id(2), table, backwards)
    clear_tail([ref[name] for name in ("q", "k", "v", "g", "do") if name in ref], call, visit)

    @pl.when(visit.is_last if backwards else visit.is_first)
    def _load() -> None:
        load_state(ref["s"], ref.get("edge"))

    steps: Callable[..., None] = _steps_back if backwards else _steps_on
    if call.plan.packed:

        @pl.when(visit.start < visit.stop)
        def _some_steps() -> None:
            steps(ref, visit, call)
    else:
        steps(ref, visit, call)

    @pl.when(visit.is_first if backwards else visit.is_last)
    def _save() -> None:
        save_state(ref["s"], ref["out"])


def _steps_on(ref: dict[str, Any], visit: Visit, call: Call) -> None:
    layout = call.layout
    inside_k = layout.inside(visit.start, visit.stop, call.k) if call.plan.packed else None
    inside_v = layout.inside(visit.start, visit.stop, call.v) if call.plan.packed else None

    def some_heads(heads: list[Any]) -> None:
        for h in heads:
            d = decays(keep_inside(layout.load(ref["g"], h), inside_k), reverse=layout.reverse)
            k = chunk.keys(keep_inside(layout.load(ref["k"], h), inside_k), d, call.dtype)
            v = chunk.stack(keep_inside(layout.load(ref["v"], h), inside_v), call.dtype)
            ref["s"][h] = chunk.next_state(k, v, ref["s"][h], d)

    layout.for_heads(call.block_h, some_heads)


def _steps_back(ref: dict[str, Any], visit: Visit, call: Call) -> None:
    layout = call.layout
    inside_k = layout.inside(visit.start, visit.stop, call.k) if call.plan.packed else None
    inside_v = layout.inside(visit.start, visit.stop, call.v) if call.plan.packed else None

    def some_heads(heads: list[Any]) -> None:
        for h in heads:
            d = decays(keep_inside(layout.load(ref["g"], h), inside_k), reverse=layout.reverse)
            # The state's decay over the chunk, and what its query heads give it.
            ds = jnp.concatenate([d.whole] * (call.v // SUBLANES), axis=0) * ref["s"][h]
            for i in range(call.group):
                q = chunk.queries(keep_inside(layout.load(ref["q"], h * call.group + i), inside_k), d, call.dtype)
                do = chunk.stack(keep_inside(layout.load(ref["do"], h * call.group + i), inside_v), call.dtype)
                ds = ds + call.scale * chunk.dot(do, q.start, chunk.TN)
            ref["s"][h] = ds

    layout.for_heads(call.block_h, some_heads)
