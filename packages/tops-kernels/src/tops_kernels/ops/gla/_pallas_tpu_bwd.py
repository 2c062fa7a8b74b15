"""Backward kernels: `states` goes through the steps once more and writes the state before each of them ([V, K] a chunk and head, in the
operands' dtype: a 120th of T * K * V); `backward` goes through them from the end, the state's gradient staying in VMEM.

Recomputed rather than kept by the forward pass, which would hold T / 120 states a layer until its backward pass.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.gla import _pallas_tpu_chunk as chunk
from tops_kernels.ops.gla import _pallas_tpu_chunk_bwd as chunk_bwd
from tops_kernels.ops.gla._pallas_tpu_blocks import Call, clear_tail, in_hbm, keep_inside, load_state, save_state, split
from tops_kernels.ops.gla._pallas_tpu_decay import ROWS, Rows, decays, masks
from tops_kernels.ops.gla._pallas_tpu_plan import Visit
from tops_kernels.runtime.manual import shape_like

_SEMANTICS = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))


def _steps_state(call: Call, backwards: bool) -> pl.BlockSpec:
    """A state a step, [B, steps, H, V, K]: VMEM."""
    last = call.plan.steps - 1
    return pl.BlockSpec(
        (1, 1, call.block_h, call.v, call.k),
        lambda b, heads, step, *table: (b, last - step if backwards else step, heads, 0, 0),
    )


def states(
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    table: jax.Array | None,
    *,
    call: Call,
    interpret: Any,
) -> jax.Array:
    """k, v, g as `call.layout` has them, initial_state [B or N, H, K, V] float32 or None -> [B, steps, H, V, K] before each step."""
    key = call.heads(call.k)
    operands = {"k": (k, key), "v": (v, call.heads(call.v)), "g": (g, key), "h0": (initial_state, call.state())}
    given = {name: pair for name, pair in operands.items() if pair[0] is not None}
    out: jax.Array = pl.pallas_call(
        functools.partial(_states_body, names=(*given, "states", "s"), call=call),
        name="gla_bwd_states",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=int(call.plan.packed),
            grid=call.grid,
            in_specs=[spec for _, spec in given.values()],
            out_specs=_steps_state(call, False),
            scratch_shapes=[pltpu.VMEM((call.block_h, call.v, call.k), jnp.float32)],
        ),
        out_shape=shape_like((call.b, call.plan.steps, call.h, call.v, call.k), call.dtype, k),
        compiler_params=_SEMANTICS,
        interpret=interpret,
    )(*([] if table is None else [table]), *(array for array, _ in given.values()))
    return out


def _states_body(*refs: Any, names: tuple[str, ...], call: Call) -> None:
    # in: k, v, g blocks of heads; h0 [1, heads, K, V], if given. out: states [1, 1, heads, V, K]. scratch: s [heads, V, K] float32.
    table, ref = split(refs, call, names)
    visit = call.plan.visit(pl.program_id(2), table)
    clear_tail([ref["k"], ref["v"], ref["g"]], call, visit)

    @pl.when(visit.is_first)
    def _load_state() -> None:
        load_state(ref["s"], ref.get("h0"))

    layout = call.layout
    inside_k = layout.inside(visit.start, visit.stop, call.k) if call.plan.packed else None
    inside_v = layout.inside(visit.start, visit.stop, call.v) if call.plan.packed else None

    def some_heads(heads: list[Any]) -> None:
        for h in heads:
            d = decays(keep_inside(layout.load(ref["g"], h), inside_k), reverse=layout.reverse)
            k = chunk.keys(keep_inside(layout.load(ref["k"], h), inside_k), d, call.dtype)
            v = chunk.stack(keep_inside(layout.load(ref["v"], h), inside_v), call.dtype)
            state = ref["s"][h]
            ref["states"][0, 0, h] = state.astype(call.dtype)
            ref["s"][h] = chunk.next_state(k, v, state, d)

    layout.for_heads(call.block_h, some_heads)


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    do: jax.Array,
    states: jax.Array,
    dfinal: jax.Array,
    table: jax.Array | None,
    *,
    call: Call,
    interpret: Any,
) -> list[jax.Array]:
    """q, k, v, g, do as `call.layout` has them, states [B, steps, H, V, K], dfinal [B or N, H, K, V] float32 -> dq, dk, dv, dg as the
    layout has them, in their primals' dtypes, and the gradient of initial_state [B or N, H, K, V] float32.
    """
    query, key = call.heads(call.k, call.group, backwards=True), call.heads(call.k, backwards=True)
    value, output = call.heads(call.v, backwards=True), call.heads(call.v, call.group, backwards=True)
    state = call.state(backwards=True)
    names = ("q", "k", "v", "g", "do", "states", "dfinal", "dq", "dk", "dv", "dg", "dh0", "ds")
    shape = functools.partial(call.layout.shape, call.b, call.t)
    out: list[jax.Array] = pl.pallas_call(
        functools.partial(_bwd_body, names=names, call=call),
        name="gla_bwd",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=int(call.plan.packed),
            grid=call.grid,
            in_specs=[query, key, value, key, output, _steps_state(call, True), state],
            out_specs=[query, key, value, key, state],
            scratch_shapes=[pltpu.VMEM((call.block_h, call.v, call.k), jnp.float32)],
        ),
        out_shape=[
            shape_like(shape(call.h * call.group, call.k), call.dtype, q),
            shape_like(shape(call.h, call.k), call.dtype, q),
            shape_like(shape(call.h, call.v), call.dtype, q),
            shape_like(shape(call.h, call.k), jnp.float32, q),
            shape_like((call.states, call.h, call.k, call.v), jnp.float32, q),
        ],
        compiler_params=_SEMANTICS,
        interpret=interpret,
    )(*([] if table is None else [table]), *(in_hbm(x, interpret) for x in (q, k, v, g, do)), states, dfinal)
    return out


def _bwd_body(*refs: Any, names: tuple[str, ...], call: Call) -> None:
    # in: q, k, v, g, do blocks of heads; states [1, 1, heads, V, K]; dfinal [1, heads, K, V]. out: dq, dk, dv, dg; dh0 as dfinal.
    # scratch: ds [heads, V, K] float32, gradient of the state after the step.
    table, ref = split(refs, call, names)
    visit = call.plan.visit(pl.program_id(2), table, backwards=True)
    clear_tail([ref[name] for name in ("q", "k", "v", "g", "do")], call, visit)

    @pl.when(visit.is_last)
    def _load_gradient() -> None:
        load_state(ref["ds"], ref["dfinal"])

    if call.plan.packed:

        @pl.when(visit.is_fresh)
        def _clear_outputs() -> None:  # steps that belong to no sequence keep these zeros
            for name in ("dq", "dk", "dv", "dg"):
                ref[name][...] = jnp.zeros(ref[name].shape, ref[name].dtype)

        @pl.when(visit.start < visit.stop)
        def _some_steps() -> None:
            _steps(ref, visit, call)
    else:
        _steps(ref, visit, call)

    @pl.when(visit.is_first)
    def _save_gradient() -> None:
        save_state(ref["ds"], ref["dh0"])


def _steps(ref: dict[str, Any], visit: Visit, call: Call) -> None:
    layout, pattern = call.layout, masks(reverse=call.layout.reverse)
    inside_k = layout.inside(visit.start, visit.stop, call.k) if call.plan.packed else None
    inside_v = layout.inside(visit.start, visit.stop, call.v) if call.plan.packed else None
    outside_k = None if inside_k is None else [~mask for mask in inside_k]
    outside_v = None if inside_v is None else [~mask for mask in inside_v]

    def some_heads(heads: list[Any]) -> None:
        dq: list[Rows] = []
        dk: list[Rows] = []
        dv: list[Rows] = []
        dg: list[Rows] = []
        for h in heads:
            of = [h * call.group + i for i in range(call.group)]
            q = [keep_inside(layout.load(ref["q"], i), inside_k) for i in of]
            do = [keep_inside(layout.load(ref["do"], i), inside_v) for i in of]
            k = keep_inside(layout.load(ref["k"], h), inside_k)
            v = keep_inside(layout.load(ref["v"], h), inside_v)
            d = decays(keep_inside(layout.load(ref["g"], h), inside_k), reverse=layout.reverse)
            state, ds = ref["states"][0, 0, h], ref["ds"][h]
            gradients, ds_before = _one_head(q, k, v, do, d, state, ds, pattern, call)
            ref["ds"][h] = ds_before
            dq += gradients[0]
            for rows, total in zip(gradients[1:], (dk, dv, dg), strict=True):
                total.append(rows)
        layout.store(ref["dq"], heads[0] * call.group, dq, outside_k)
        layout.store(ref["dk"], heads[0], dk, outside_k)
        layout.store(ref["dv"], heads[0], dv, outside_v)
        layout.store(ref["dg"], heads[0], dg, outside_k)

    # Products of float32 take several passes: what two heads hold meanwhile, or what unrolled heads do, does not fit in VMEM beside the blocks.
    layout.for_heads(call.block_h, some_heads, one_by_one=call.dtype == jnp.float32)


def _one_head(
    q: list[Rows],
    k: Rows,
    v: Rows,
    do: list[Rows],
    d: Any,
    state: jax.Array,
    ds: jax.Array,
    pattern: Any,
    call: Call,
) -> tuple[tuple[list[Rows], Rows, Rows, Rows], jax.Array]:
    """q, do: of the query heads that share k and v -> ((dq of each, dk, dv, dg), gradient of the state before)."""
    dtype, q = call.dtype, [[row * call.scale for row in rows] for rows in q]
    keys, value, dstate = chunk.keys(k, d, dtype), chunk.stack(v, dtype), ds.astype(dtype)
    grads, walked = chunk_bwd.DecayGradients.zeros(d), chunk_bwd.walk_keys(k, d)
    grads.whole = chunk_bwd.whole_gradient(state, ds, d)
    shared: chunk_bwd.Products | None = None
    dq: list[Rows] = []
    own: list[Rows] = []
    for q_rows, do_rows in zip(q, do, strict=True):
        queries = chunk.queries(q_rows, d, dtype)
        a = chunk.scores(queries, keys, chunk.own_scores(q_rows, k), pattern)
        walk = chunk_bwd.walk_queries(q_rows, d)
        one = chunk_bwd.products(walk, queries, keys, a, value, chunk.stack(do_rows, dtype), state, pattern)
        own.append(chunk.own_scores(do_rows, v))
        rows = chunk_bwd.query_gradients(one, walk, k, own[-1], d, grads)
        dq.append([row * call.scale for row in rows])
        # Added up at once: kept apart, those of many query heads would fill VMEM.
        shared = one if shared is None else shared.plus(one)
    assert shared is not None  # there is a query head
    dk = chunk_bwd.key_gradients(shared, walked, chunk.dot(value, dstate, chunk.NN), d, grads)
    for q_rows, down in zip(q, own, strict=True):
        dk = [row + down[r] * q_rows[r] for r, row in enumerate(dk)]
    dv = chunk.dot(keys.end, dstate, chunk.NT) + shared.dv
    dg = grads.of_gates(reverse=call.layout.reverse)
    return (dq, dk, [chunk.pick(dv, r) for r in range(ROWS)], dg), chunk_bwd.state_gradient(shared, ds, d)
