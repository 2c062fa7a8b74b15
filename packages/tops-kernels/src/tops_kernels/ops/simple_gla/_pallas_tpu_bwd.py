"""Backward kernels: `states` goes through the steps once more and writes the state before each of them ([K, V] a chunk and head, in the
operands' dtype: a 120th of T * K * V); `backward` goes through them from the end, the state's gradient staying in VMEM.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.gla._pallas_tpu_blocks import Call, clear_tail, in_hbm, keep_inside, split
from tops_kernels.ops.gla._pallas_tpu_chunk import NN, NT, TN, dot, pick, stack
from tops_kernels.ops.gla._pallas_tpu_decay import LANES, ROWS, Rows
from tops_kernels.ops.gla._pallas_tpu_plan import Visit
from tops_kernels.ops.simple_gla._pallas_tpu_decay import Tables, inside_lanes, line, read_decays, spread
from tops_kernels.ops.simple_gla._pallas_tpu_fwd import first_decays, for_heads, gates, gates_after, next_decays
from tops_kernels.runtime.manual import shape_like

_AT_ONCE = 8  # heads that the compiler may interleave: with four the kernel is 21% longer on v6e, 4% shorter on v5e
_SEMANTICS = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))


def _steps_state(call: Call, backwards: bool) -> pl.BlockSpec:
    """A state a step, [B, steps, H, K, V]: VMEM."""
    last = call.plan.steps - 1
    return pl.BlockSpec(
        (1, 1, call.block_h, call.k, call.v),
        lambda b, heads, step, *table: (b, last - step if backwards else step, heads, 0, 0),
    )


def states(
    k: jax.Array,
    v: jax.Array,
    log: jax.Array,
    initial_state: jax.Array | None,
    table: jax.Array | None,
    *,
    call: Call,
    interpret: Any,
) -> jax.Array:
    """k, v, log as `forward` takes them, initial_state [B or N, H, K, V] float32 or None -> [B, steps, H, K, V] before each step."""
    operands = {
        "k": (k, call.heads(call.k)),
        "v": (v, call.heads(call.v)),
        "log": (log, gates(call)),
        "next": gates_after(log, call),
        "h0": (initial_state, call.state()),
    }
    given = {name: pair for name, pair in operands.items() if pair[0] is not None}
    out: jax.Array = pl.pallas_call(
        functools.partial(_states_body, names=(*given, "states", "s", *Tables.scratch()), call=call),
        name="simple_gla_bwd_states",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=int(call.plan.packed),
            grid=call.grid,
            in_specs=[spec for _, spec in given.values()],
            out_specs=_steps_state(call, False),
            scratch_shapes=[pltpu.VMEM((call.block_h, call.k, call.v), jnp.float32), *Tables.scratch().values()],
        ),
        out_shape=shape_like((call.b, call.plan.steps, call.h, call.k, call.v), call.dtype, k),
        compiler_params=_SEMANTICS,
        interpret=interpret,
    )(*([] if table is None else [table]), *(array for array, _ in given.values()))
    return out


def _states_body(*refs: Any, names: tuple[str, ...], call: Call) -> None:
    # in: k, v blocks of heads; log [1, 1, 1, heads, 128]; h0 [1, heads, K, V], if given. out: states [1, 1, heads, K, V].
    # scratch: s [heads, K, V] float32.
    table, ref = split(refs, call, names)
    visit = call.plan.visit(pl.program_id(2), table)
    clear_tail([ref["k"], ref["v"]], call, visit)

    @pl.when(pl.program_id(2) == 0)
    def _write_tables() -> None:
        Tables.write(ref, call.scale, reverse=call.layout.reverse, upright=True)
        first_decays(ref, visit, call)

    @pl.when(visit.is_first)
    def _load_state() -> None:
        ref["s"][...] = ref["h0"][0] if "h0" in ref else jnp.zeros(ref["s"].shape, jnp.float32)

    layout = call.layout
    inside_k = layout.inside(visit.start, visit.stop, call.k) if call.plan.packed else None
    inside_v = layout.inside(visit.start, visit.stop, call.v) if call.plan.packed else None
    d = read_decays(ref, call.scale)

    def some_heads(heads: list[Any]) -> None:
        for h in heads:
            k = stack(keep_inside(layout.load(ref["k"], h), inside_k), call.dtype).T
            v = stack(keep_inside(layout.load(ref["v"], h), inside_v), call.dtype)
            state, ends = ref["s"][h], (k.astype(jnp.float32) * line(d.end, h)).astype(call.dtype)
            ref["states"][0, 0, h] = state.astype(call.dtype)
            ref["s"][h] = spread(line(d.whole, h), call.v) * state + dot(ends, v, NN)

    layout.for_heads(call.block_h, some_heads)
    next_decays(ref, table, call)


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    log: jax.Array,
    do: jax.Array,
    states: jax.Array,
    dfinal: jax.Array,
    table: jax.Array | None,
    *,
    call: Call,
    interpret: Any,
) -> list[jax.Array]:
    """q, k, v, log, do as `forward` has them, states [B, steps, H, K, V], dfinal [B or N, H, K, V] float32 -> dq, dk, dv as the layout has
    them, in their primals' dtypes, the gradient of log as it lies, and that of initial_state [B or N, H, K, V] float32.
    """
    query, key = call.heads(call.k, call.group, backwards=True), call.heads(call.k, backwards=True)
    value, output = call.heads(call.v, backwards=True), call.heads(call.v, call.group, backwards=True)
    state, gate = call.state(backwards=True), gates(call, backwards=True)
    scratch = {"ds": pltpu.VMEM((call.block_h, call.k, call.v), jnp.float32), **Tables.scratch(), **Held.scratch(call)}
    names = (
        "q",
        "k",
        "v",
        "log",
        "next",
        "do",
        "states",
        "dfinal",
        "dq",
        "dk",
        "dv",
        "dlog",
        "dh0",
        *scratch,
    )
    shape = functools.partial(call.layout.shape, call.b, call.t)
    following = gates_after(log, call, backwards=True)
    q, k, v, do = (in_hbm(x, interpret) for x in (q, k, v, do))
    out: list[jax.Array] = pl.pallas_call(
        functools.partial(_bwd_body, names=names, call=call),
        name="simple_gla_bwd",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=int(call.plan.packed),
            grid=call.grid,
            in_specs=[query, key, value, gate, following[1], output, _steps_state(call, True), state],
            out_specs=[query, key, value, gate, state],
            scratch_shapes=list(scratch.values()),
        ),
        out_shape=[
            shape_like(shape(call.h * call.group, call.k), call.dtype, q),
            shape_like(shape(call.h, call.k), call.dtype, q),
            shape_like(shape(call.h, call.v), call.dtype, q),
            shape_like(log.shape, jnp.float32, q),
            shape_like((call.states, call.h, call.k, call.v), jnp.float32, q),
        ],
        compiler_params=_SEMANTICS,
        interpret=interpret,
    )(*([] if table is None else [table]), q, k, v, log, following[0], do, states, dfinal)
    return out


def _bwd_body(*refs: Any, names: tuple[str, ...], call: Call) -> None:
    # in: q, k, v, do blocks of heads; log [1, 1, 1, heads, 128]; states [1, 1, heads, K, V]; dfinal [1, heads, K, V]. out: dq, dk, dv; dlog as
    # log; dh0 as dfinal. scratch: ds [heads, K, V] float32, gradient of the state after the step; `Held`.
    table, ref = split(refs, call, names)
    visit = call.plan.visit(pl.program_id(2), table, backwards=True)
    clear_tail([ref[name] for name in ("q", "k", "v", "do")], call, visit)

    @pl.when(pl.program_id(2) == 0)
    def _write_tables() -> None:
        Tables.write(ref, call.scale, reverse=call.layout.reverse, upright=True)
        first_decays(ref, visit, call)

    @pl.when(visit.is_last)
    def _load_gradient() -> None:
        ref["ds"][...] = ref["dfinal"][0]

    if call.plan.packed:

        @pl.when(visit.is_fresh)
        def _clear_outputs() -> None:  # steps that belong to no sequence keep these zeros
            for name in ("dq", "dk", "dv", "dlog"):
                ref[name][...] = jnp.zeros(ref[name].shape, ref[name].dtype)

        @pl.when(visit.start < visit.stop)
        def _some_steps() -> None:
            _steps(ref, visit, call)
    else:
        _steps(ref, visit, call)

    next_decays(ref, table, call, backwards=True)

    @pl.when(visit.is_first)
    def _save_gradient() -> None:
        ref["dh0"][0] = ref["ds"][...]


def _steps(ref: dict[str, Any], visit: Visit, call: Call) -> None:
    layout = call.layout
    inside_k = layout.inside(visit.start, visit.stop, call.k) if call.plan.packed else None
    inside_v = layout.inside(visit.start, visit.stop, call.v) if call.plan.packed else None
    outside_k = None if inside_k is None else [~mask for mask in inside_k]
    outside_v = None if inside_v is None else [~mask for mask in inside_v]
    d = read_decays(ref, call.scale)

    held = Held(ref)

    def some_heads(heads: list[Any]) -> None:
        # Stage by stage, not head by head: the compiler interleaves what stands close together. What a stage leaves to a later one goes through VMEM.
        dtype, many = call.dtype, range(len(heads))
        of = [i for i in many for _ in range(call.group)]  # each query head's place in `heads`
        queries = range(len(of))
        first = heads[0] * call.group
        for i, h in enumerate(heads):
            held.put("k_rows", i, stack(keep_inside(layout.load(ref["k"], h), inside_k), dtype))
            held.put("v_rows", i, stack(keep_inside(layout.load(ref["v"], h), inside_v), dtype))
        for j in queries:
            rows = stack(keep_inside(layout.load(ref["q"], first + j), inside_k), dtype)
            held.put("q_rows", j, rows)
            held.put("q_columns", j, rows.T)
            held.put("do_rows", j, stack(keep_inside(layout.load(ref["do"], first + j), inside_v), dtype))
        k, v, q, upright, do = (held.of(name) for name in ("k_rows", "v_rows", "q_rows", "q_columns", "do_rows"))

        scores = [dot(k(i), upright(j), NN) for j, i in enumerate(of)]
        dscores = [dot(v(i), do(j), NT) for j, i in enumerate(of)]
        for i, h in enumerate(heads):
            pairs = d.from_row_to_lane(h)
            dpairs = []
            for j in (j for j in queries if of[j] == i):
                decayed = dscores[j] * pairs
                held.put("da", j, decayed.astype(dtype))
                held.put("a", j, (scores[j] * pairs).astype(dtype))
                dpairs.append(scores[j] * decayed)
            held.put("dpairs", i, _sum(dpairs).astype(dtype))
        da, a = held.of("da"), held.of("a")

        from_state = [dot(do(j), ref["states"][0, 0, heads[i]], NT) for j, i in enumerate(of)]
        from_pairs = [dot(da(j), k(i), TN) for j, i in enumerate(of)]
        dq: list[Rows] = []
        dstart: list[list[jax.Array]] = [[] for _ in many]
        for j, i in enumerate(of):
            share = d.start_column(heads[i]) * from_state[j]
            dq.append(_rows(share + from_pairs[j]))
            dstart[i].append(q(j).astype(jnp.float32) * share)
        for i in many:
            held.put("dstart", i, _sum(dstart[i]).astype(dtype))
        layout.store(ref["dq"], first, dq, outside_k)

        to_end = [dot(v(i), ref["ds"][h].astype(dtype), NT) for i, h in enumerate(heads)]
        to_pairs = [_sum([dot(da(j), q(j), NN) for j in queries if of[j] == i]) for i in many]
        dk = []
        for i, h in enumerate(heads):
            share = d.end_column(h) * to_end[i]
            dk.append(_rows(share + to_pairs[i]))
            held.put("dend", i, (k(i).astype(jnp.float32) * share).astype(dtype))
        layout.store(ref["dk"], heads[0], dk, outside_k)

        to_end = [dot(k(i), ref["ds"][h].astype(dtype), NN) for i, h in enumerate(heads)]
        to_pairs = [_sum([dot(a(j), do(j), NN) for j in queries if of[j] == i]) for i in many]
        dv = [_rows(d.end_column(h) * to_end[i] + to_pairs[i]) for i, h in enumerate(heads)]
        layout.store(ref["dv"], heads[0], dv, outside_v)

        gates = [
            of_gates(held.get("dpairs", i), held.get("dstart", i), held.get("dend", i), ref["after"]) for i in many
        ]
        added = []
        for i, h in enumerate(heads):
            starts, mine = line(d.start, h), [j for j in queries if of[j] == i]
            added.append(_sum([dot((upright(j).astype(jnp.float32) * starts).astype(dtype), do(j), NN) for j in mine]))
        for i, h in enumerate(heads):
            whole = spread(line(d.whole, h), call.v)
            dwhole = jnp.sum(whole * ref["states"][0, 0, h].astype(jnp.float32) * ref["ds"][h], axis=0, keepdims=True)
            dlog = gates[i] + jnp.sum(dwhole, axis=1, keepdims=True)
            if call.plan.packed:
                mask = inside_lanes(visit.start, visit.stop, 1)
                dlog = jnp.where(mask, dlog, ref["dlog"][0, 0, 0, pl.ds(h, 1)])
            ref["dlog"][0, 0, 0, pl.ds(h, 1)] = dlog
            ref["ds"][h] = whole * ref["ds"][h] + added[i]

    # Products of float32 take several passes: what two heads hold meanwhile, or what unrolled heads do, does not fit in VMEM beside the blocks.
    for_heads(call, some_heads, one_by_one=call.dtype == jnp.float32, at_once=_AT_ONCE)


class Held:
    """What stages leave to later ones, in VMEM where `scratch` gives room, else as values.

    As values, those of eight heads are more than there are registers: 2118 spills a step on v5e, not 776, and 6% of the time.
    """

    def __init__(self, ref: dict[str, Any]) -> None:
        self._ref = ref
        self._values: dict[tuple[str, int], jax.Array] = {}

    @staticmethod
    def scratch(call: Call) -> dict[str, Any]:
        """By name. float32 goes head by head and several query heads two by two, so that less is held at once: there it stays with the compiler."""
        if call.dtype == jnp.float32 or call.group > 1:
            return {}
        slots = min(_AT_ONCE, call.block_h)
        rows, columns = (slots, LANES, call.k), (slots, call.k, LANES)
        shapes = {"k_rows": rows, "q_rows": rows, "q_columns": columns, "dstart": rows, "dend": rows}
        shapes |= dict.fromkeys(("v_rows", "do_rows"), (slots, LANES, call.v))
        shapes |= dict.fromkeys(("da", "a", "dpairs"), (slots, LANES, LANES))
        return {name: pltpu.VMEM(shape, call.dtype) for name, shape in shapes.items()}

    def put(self, name: str, slot: int, value: jax.Array) -> None:
        """slot: the head's place among those at once."""
        if name in self._ref:
            self._ref[name][slot] = value
        else:
            self._values[name, slot] = value

    def get(self, name: str, slot: int) -> jax.Array:
        """What was put there; read again each time, so that no register holds it in between."""
        return self._ref[name][slot] if name in self._ref else self._values[name, slot]

    def of(self, name: str) -> Callable[[int], jax.Array]:
        """`get` of one name."""
        return functools.partial(self.get, name)


def _rows(x: jax.Array) -> Rows:
    return [pick(x, r) for r in range(ROWS)]


def _sum(arrays: list[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, arrays)


def of_gates(dpairs: jax.Array, dstart: jax.Array, dend: jax.Array, after_ref: Any) -> jax.Array:
    """dpairs [128, 128]: gradients of the exponents of pairs [j, i]; dstart, dend [128, K]: those from the start and to the end, to be summed over K
    -> of the log decays, [1, 128].

    That of step t is the sum over the pairs it lies between, j < t <= i: terms are added and never taken away again, so nothing cancels. One
    product gives the sums over i >= t for every j and t; what is left is a sum down the rows j < t.
    """
    at_or_after = after_ref[...]  # row i, lane t
    down = dot(dpairs, at_or_after.astype(dpairs.dtype), NN) + _row_sums(dend)
    return jnp.sum(jnp.where(at_or_after > 0, _row_sums(dstart), down), axis=0, keepdims=True)


def _row_sums(x: jax.Array) -> jax.Array:
    """[128, K] -> [128, 128], the same in every lane. bfloat16 by a product: sums along lanes held up the rest, 12% of the time on v6e."""
    if x.dtype == jnp.float32:
        return jnp.broadcast_to(jnp.sum(x, axis=1, keepdims=True), (LANES, LANES))
    return dot(x, jnp.ones((x.shape[1], LANES), x.dtype), NN)
