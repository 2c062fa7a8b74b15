"""Forward kernel. Grid (B, blocks of heads, steps). The state of each head, [K, V], stays in VMEM along the steps. VMEM a step: two buffers of
each block [120, heads, width] and of the states' blocks, and the states; T does not enter.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.gla._pallas_tpu_blocks import Call, clear_tail, keep_inside, split
from tops_kernels.ops.gla._pallas_tpu_chunk import NN, dot, pick, stack
from tops_kernels.ops.gla._pallas_tpu_decay import LANES, ROWS
from tops_kernels.ops.gla._pallas_tpu_plan import Visit
from tops_kernels.ops.simple_gla._pallas_tpu_decay import Tables, inside_lanes, line, read_decays, spread, write_decays
from tops_kernels.runtime.manual import shape_like

_AT_ONCE = 4  # heads that the compiler may interleave: with two the estimate is 10% longer, forward, on v5e


def gates(call: Call, backwards: bool = False) -> pl.BlockSpec:
    """A chunk's gates of a block of heads, [1, 1, 1, heads, 128]: VMEM."""

    def index(b: Any, heads: Any, step: Any, *table: Any) -> Any:
        return b, heads, call.plan.index(step, table[0] if table else None, backwards)[0], 0, 0

    return pl.BlockSpec((1, 1, 1, call.block_h, LANES), index)


def gates_after(log: jax.Array, call: Call, backwards: bool = False) -> tuple[jax.Array, pl.BlockSpec]:
    """The gates once more, and where a step finds those of the step after it; the last step finds any."""
    if not call.plan.packed:  # turned, so that the index is that of the step itself
        return jnp.roll(log, 1 if call.layout.reverse != backwards else -1, axis=2), gates(call, backwards)

    def index(b: Any, heads: Any, step: Any, table: Any) -> Any:
        return b, heads, call.plan.index(jnp.minimum(step + 1, call.plan.steps - 1), table, backwards)[0], 0, 0

    return log, pl.BlockSpec((1, 1, 1, call.block_h, LANES), index)


def forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log: jax.Array,
    initial_state: jax.Array | None,
    table: jax.Array | None,
    *,
    call: Call,
    interpret: Any,
) -> list[jax.Array]:
    """q, k, v as `call.layout` has them; log decays [B, blocks, chunks, heads, 128]; initial_state [B or N, H, K, V] float32 or None; table of
    a packed plan or None.

    Returns o as the layout has it, in v's dtype, and final_state [B or N, H, K, V] float32.
    """
    state = call.state()
    operands = {
        "q": (q, call.heads(call.k, call.group)),
        "k": (k, call.heads(call.k)),
        "v": (v, call.heads(call.v)),
        "log": (log, gates(call)),
        "next": gates_after(log, call),
        "h0": (initial_state, state),
    }
    given = {name: pair for name, pair in operands.items() if pair[0] is not None}
    out: list[jax.Array] = pl.pallas_call(
        functools.partial(_fwd_body, names=(*given, "o", "final", "s", *Tables.scratch()), call=call),
        name="simple_gla_fwd",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=int(call.plan.packed),
            grid=call.grid,
            in_specs=[spec for _, spec in given.values()],
            out_specs=[call.heads(call.v, call.group), state],
            scratch_shapes=[pltpu.VMEM((call.block_h, call.k, call.v), jnp.float32), *Tables.scratch().values()],
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
    # in: q, k, v [1, 120, heads, width] in place or [1, heads, 1, 120, width] arranged; log, next [1, 1, 1, heads, 128]; h0 [1, heads, K, V], if given.
    # out: o as q, final as h0. scratch: s [heads, K, V] float32, carried along the steps.
    table, ref = split(refs, call, names)
    visit = call.plan.visit(pl.program_id(2), table)
    clear_tail([ref["k"], ref["v"]], call, visit)

    @pl.when(pl.program_id(2) == 0)
    def _write_tables() -> None:
        Tables.write(ref, call.scale, reverse=call.layout.reverse, upright=False)
        first_decays(ref, visit, call)

    @pl.when(visit.is_first)
    def _load_state() -> None:
        ref["s"][...] = ref["h0"][0] if "h0" in ref else jnp.zeros(ref["s"].shape, jnp.float32)

    if call.plan.packed:

        @pl.when(visit.is_fresh)
        def _clear_output() -> None:  # steps that belong to no sequence keep these zeros
            ref["o"][...] = jnp.zeros(ref["o"].shape, ref["o"].dtype)

        @pl.when(visit.start < visit.stop)
        def _some_steps() -> None:
            _steps(ref, visit, call)
    else:
        _steps(ref, visit, call)

    next_decays(ref, table, call)

    @pl.when(visit.is_last)
    def _save_state() -> None:
        ref["final"][0] = ref["s"][...]


def for_heads(
    call: Call, body: Callable[[list[Any]], None], *, one_by_one: bool = False, at_once: int = _AT_ONCE
) -> None:
    """`Layout.for_heads`, `at_once` at a time where registers and VMEM have the room."""
    few = call.layout.interpreted or one_by_one or call.dtype == jnp.float32 or call.group > 1
    if few or call.block_h % at_once:
        call.layout.for_heads(call.block_h, body, one_by_one=one_by_one)
        return
    for head in range(0, call.block_h, at_once):
        body([head + i for i in range(at_once)])


def first_decays(ref: dict[str, Any], visit: Visit, call: Call) -> None:
    """Decays of a launch's first visit, from its gates' block."""
    _write(ref, ref["log"][0, 0, 0], visit, call)


def next_decays(ref: dict[str, Any], table: Any, call: Call, backwards: bool = False) -> None:
    """Decays of the visit after this one, when this one needs its own no more: a product and two exponentials that wait for each other, 12% of
    the time of a step on v6e if it began with them."""
    step = jnp.minimum(pl.program_id(2) + 1, call.plan.steps - 1)
    _write(ref, ref["next"][0, 0, 0], call.plan.visit(step, table, backwards), call)


def _write(ref: dict[str, Any], log: jax.Array, visit: Visit, call: Call) -> None:
    if call.plan.packed:
        log = jnp.where(inside_lanes(visit.start, visit.stop, log.shape[0]), log, 0.0)
    write_decays(log, ref, call.scale, reverse=call.layout.reverse)


def _steps(ref: dict[str, Any], visit: Visit, call: Call) -> None:
    layout = call.layout
    inside_k = layout.inside(visit.start, visit.stop, call.k) if call.plan.packed else None
    inside_v = layout.inside(visit.start, visit.stop, call.v) if call.plan.packed else None
    outside_v = None if inside_v is None else [~mask for mask in inside_v]
    d = read_decays(ref, call.scale)

    def some_heads(heads: list[Any]) -> None:
        # Stage by stage, not head by head: the compiler interleaves what stands close together.
        k = [stack(keep_inside(layout.load(ref["k"], h), inside_k), call.dtype).T for h in heads]
        v = [stack(keep_inside(layout.load(ref["v"], h), inside_v), call.dtype) for h in heads]
        of = [i for i in range(len(heads)) for _ in range(call.group)]  # each query head's place in `heads`
        q = [stack(layout.load(ref["q"], heads[0] * call.group + j), call.dtype) for j in range(len(of))]
        pairs = [d.from_lane_to_row(h) for h in heads]
        # What q is multiplied with: keys and the state, side by side.
        right = [
            jnp.concatenate([key, ref["s"][h].astype(call.dtype)], axis=1) for key, h in zip(k, heads, strict=True)
        ]
        both = [dot(q[j], right[i], NN) for j, i in enumerate(of)]
        scores = [(both[j][:, :LANES] * pairs[i]).astype(call.dtype) for j, i in enumerate(of)]
        o = []
        for i, h in enumerate(heads):
            # What multiplies v, one above the other: the scores of each query head, and the keys decayed to the chunk's end.
            mine = [j for j, place in enumerate(of) if place == i]
            ends = (k[i].astype(jnp.float32) * line(d.end, h)).astype(call.dtype)
            out = dot(jnp.concatenate([*(scores[j] for j in mine), ends], axis=0), v[i], NN)
            ref["s"][h] = spread(line(d.whole, h), call.v) * ref["s"][h] + out[LANES * len(mine) :]
            start = d.start_column(h)
            for n, j in enumerate(mine):
                own = out[LANES * n : LANES * (n + 1)] + start * both[j][:, LANES:]
                o.append([pick(own, r) for r in range(ROWS)])
        layout.store(ref["o"], heads[0] * call.group, o, outside_v)

    for_heads(call, some_heads)
