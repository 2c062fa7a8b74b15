"""Forward kernel. Grid (B, blocks of heads, steps). The state of each head stays in VMEM along the steps, as [V, K], so that decays lie
along lanes. VMEM a step: two buffers of each block [120, heads, width] and of the states' blocks, and the states; T does not enter.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.gla import _pallas_tpu_chunk as chunk
from tops_kernels.ops.gla._pallas_tpu_blocks import Call, clear_tail, keep_inside, load_state, save_state, split
from tops_kernels.ops.gla._pallas_tpu_decay import ROWS, decays, masks
from tops_kernels.ops.gla._pallas_tpu_plan import Visit
from tops_kernels.runtime.manual import shape_like


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    table: jax.Array | None,
    *,
    call: Call,
    interpret: Any,
) -> list[jax.Array]:
    """q, k, v, g as `call.layout` has them; initial_state [B or N, H, K, V] float32 or None; table of a packed plan or None.

    Returns o as the layout has it, in v's dtype, and final_state [B or N, H, K, V] float32.
    """
    key, value, state = call.heads(call.k), call.heads(call.v), call.state()
    operands = {
        "q": (q, call.heads(call.k, call.group)),
        "k": (k, key),
        "v": (v, value),
        "g": (g, key),
        "h0": (initial_state, state),
    }
    given = {name: pair for name, pair in operands.items() if pair[0] is not None}
    out: list[jax.Array] = pl.pallas_call(
        functools.partial(_fwd_body, names=(*given, "o", "final", "s"), call=call),
        name="gla_fwd",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=int(call.plan.packed),
            grid=call.grid,
            in_specs=[spec for _, spec in given.values()],
            out_specs=[call.heads(call.v, call.group), state],
            scratch_shapes=[pltpu.VMEM((call.block_h, call.v, call.k), jnp.float32)],
        ),
        out_shape=[
            shape_like(call.layout.shape(call.b, call.t, call.h * call.group, call.v), call.dtype, q),
            shape_like((call.states, call.h, call.k, call.v), jnp.float32, q),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
    )(*([] if table is None else [table]), *(array for array, _ in given.values()))
    return out


def _fwd_body(*refs: Any, names: tuple[str, ...], call: Call) -> None:
    # in: q, k, v, g [1, 120, heads, width] in place or [1, heads, 1, 120, width] arranged; h0 [1, heads, K, V], if given.
    # out: o as q, final as h0. scratch: s [heads, V, K] float32, carried along the steps.
    table, ref = split(refs, call, names)
    visit = call.plan.visit(pl.program_id(2), table)
    clear_tail([ref["k"], ref["v"], ref["g"]], call, visit)

    @pl.when(visit.is_first)
    def _load_state() -> None:
        load_state(ref["s"], ref.get("h0"))

    if call.plan.packed:

        @pl.when(visit.is_fresh)
        def _clear_output() -> None:  # steps that belong to no sequence keep these zeros
            ref["o"][...] = jnp.zeros(ref["o"].shape, ref["o"].dtype)

        @pl.when(visit.start < visit.stop)
        def _some_steps() -> None:
            _steps(ref, visit, call)
    else:
        _steps(ref, visit, call)

    @pl.when(visit.is_last)
    def _save_state() -> None:
        save_state(ref["s"], ref["final"])


def _steps(ref: dict[str, Any], visit: Visit, call: Call) -> None:
    layout, pattern = call.layout, masks(reverse=call.layout.reverse)
    inside_k = layout.inside(visit.start, visit.stop, call.k) if call.plan.packed else None
    inside_v = layout.inside(visit.start, visit.stop, call.v) if call.plan.packed else None
    outside_v = None if inside_v is None else [~mask for mask in inside_v]

    def some_heads(heads: list[Any]) -> None:
        # Stage by stage, not head by head: the compiler interleaves what stands close together.
        d = [decays(keep_inside(layout.load(ref["g"], h), inside_k), reverse=layout.reverse) for h in heads]
        k_rows = [keep_inside(layout.load(ref["k"], h), inside_k) for h in heads]
        k = [chunk.keys(rows, decay, call.dtype) for rows, decay in zip(k_rows, d, strict=True)]
        of = [i for i in range(len(heads)) for _ in range(call.group)]  # each query head's place in `heads`
        q_rows = [layout.load(ref["q"], heads[0] * call.group + j) for j in range(len(of))]
        q = [chunk.queries(rows, d[i], call.dtype) for rows, i in zip(q_rows, of, strict=True)]
        own = [chunk.own_scores(rows, k_rows[i]) for rows, i in zip(q_rows, of, strict=True)]
        a = [chunk.scores(q[j], k[i], own[j], pattern) for j, i in enumerate(of)]
        v = [chunk.stack(keep_inside(layout.load(ref["v"], h), inside_v), call.dtype) for h in heads]
        states = [ref["s"][h] for h in heads]
        o = [chunk.output(q[j], a[j], v[i], states[i].astype(call.dtype)) * call.scale for j, i in enumerate(of)]
        for i, h in enumerate(heads):
            ref["s"][h] = chunk.next_state(k[i], v[i], states[i], d[i])
        rows = [[chunk.pick(one, r) for r in range(ROWS)] for one in o]
        layout.store(ref["o"], heads[0] * call.group, rows, outside_v)

    layout.for_heads(call.block_h, some_heads)
