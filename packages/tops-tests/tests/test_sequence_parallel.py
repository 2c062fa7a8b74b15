"""gla and simple_gla with T split over a mesh axis: values and gradients are the oracle's, whatever lies at the edges between shards, for one exchange a pass."""

import functools
import math
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import tops_kernels
import tops_manifest
from tops_tests.optest import OpTest
from tops_tests.subject import case

SHARDS = 8
FAST = {"xla_backend_optimization_level": 0}  # compiling takes the time here
ROWS = ("q", "k", "v", "g", "gv")  # inputs that are split along T
EDGES = ("initial_state", "cu_seqlens")
DIMS = {"B": 1, "T": 80, "HQ": 2, "H": 1, "K": 16, "V": 8, "N": 9}

# Ten rows a shard.
PACKS = {
    "one sequence over all shards, among empty ones": [0, 0, 80, 80, 80, 80, 80, 80, 80, 80],
    "boundaries at the edges": [0, 10, 20, 20, 30, 40, 50, 60, 70, 80],
    "many in one shard": [0, 1, 2, 3, 3, 5, 6, 8, 9, 80],
    "begins and ends in the middle, shards of padding": [0, 4, 15, 15, 33, 50, 51, 51, 52, 57],
    "an empty one at an edge that another crosses": [0, 0, 20, 20, 41, 60, 60, 60, 75, 80],
    "all empty": [0] * 10,
    "all but one in the last shard": [0, 71, 72, 73, 74, 75, 76, 77, 78, 79],
}


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    assert len(jax.devices()) >= SHARDS, "a backend was started before conftest.py asked for 8 devices"
    return Mesh(np.array(jax.devices()[:SHARDS]), ("time",))


def public(op: str) -> Any:
    return {"gla": tops_kernels.gla, "simple_gla": tops_kernels.simple_gla}[op]


def inputs_of(op: str, *optional: str) -> list[str]:
    """Of a call that gives these optional inputs, in the signature's order."""
    return [spec.name for spec in tops_manifest.op(op).inputs if not spec.optional or spec.name in optional]


def sharded(mesh: Mesh, op: str, names: Sequence[str], *, check_vma: bool = True, **params: Any) -> Any:
    """The op of the named inputs, T split."""
    rows, whole = PartitionSpec(None, "time"), PartitionSpec()
    return jax.shard_map(
        lambda *arrays: public(op)(**dict(zip(names, arrays, strict=True)), axis_name="time", **params),
        mesh=mesh,
        in_specs=tuple(rows if name in ROWS else whole for name in names),
        out_specs=(rows, whole),
        check_vma=check_vma,
    )


def pulled(run: Any, cotangents: Any, *arrays: jax.Array) -> Any:
    outputs, pull = jax.vjp(run, *arrays)
    return outputs, pull(cotangents)


class Split:
    """One compiled pair of passes, held against the oracle for many contents."""

    def __init__(
        self,
        mesh: Mesh,
        op: str,
        dims: Mapping[str, int],
        present: Sequence[str],
        *,
        check_vma: bool,
        reverse: bool,
        **how: Any,
    ) -> None:
        self.test = OpTest(case(tops_manifest.op(op), dims, params={"reverse": reverse}, present=present))
        self.names = inputs_of(op, *present)
        self.rows = [name for name in self.names if name in ROWS]
        self.traced = 0
        run = sharded(mesh, op, self.names, check_vma=check_vma, reverse=reverse, **({"backend": "xla"} | how))

        def passes(cotangents: Any, *arrays: jax.Array) -> Any:
            self.traced += 1
            return pulled(run, cotangents, *arrays)

        self.passes = jax.jit(passes, compiler_options=FAST)

    def draw(self) -> dict[str, jax.Array]:
        inputs = dict(self.test.gen_inputs(jax.random.key(0)))
        if "g_gamma" in inputs:
            inputs["g_gamma"] *= 0.02  # or little would cross an edge
        return inputs

    def hold(self, gates: Any, **given: Any) -> None:
        """gates: what changes those of each step; given: inputs that are not drawn."""
        inputs = self.draw() | given
        do, dfinal = self.test.gen_cotangents(jax.random.key(1))
        for name in {"g", "gv"} & inputs.keys():
            inputs[name] = jnp.asarray(gates(np.array(inputs[name])))
        if "cu_seqlens" in inputs:  # padding may hold anything
            at = int(inputs["cu_seqlens"][-1])
            for name in self.rows:
                inputs[name] = inputs[name].at[:, at:].set(jnp.nan)
            do = do.at[:, at:].set(jnp.nan)
        outputs, gradients = self.passes((do, dfinal), *(inputs[name] for name in self.names))
        assert self.traced == 1
        self.test.check(outputs, inputs)
        by_name = dict(zip(self.names, gradients, strict=True))
        self.test.check_gradients({name: by_name[name] for name in self.test.differentiable}, (do, dfinal), inputs)

    def hold_apart(self, bounds: Sequence[int], n: int) -> None:
        """Sequence n is all NaN: no other one's values or gradients change by a bit."""
        inputs = self.draw() | {"cu_seqlens": jnp.array(bounds, jnp.int32)}
        cotangents = self.test.gen_cotangents(jax.random.key(1))
        clean = self.passes(cotangents, *(inputs[name] for name in self.names))
        own = {name: slice(bounds[n], bounds[n + 1]) for name in self.rows}
        spoilt = inputs | {name: inputs[name].at[:, rows].set(jnp.nan) for name, rows in own.items()}
        poisoned = self.passes(cotangents, *(spoilt[name] for name in self.names))
        names = "o", "final_state", *self.names
        for name, x, y in zip(names, *map(jax.tree.leaves, (clean, poisoned)), strict=True):
            if name not in ("cu_seqlens", "g_gamma"):  # no gradient; one of all sequences together
                sides = (0, n, n + 1) if x.shape[0] > 1 else (1, bounds[n], bounds[n + 1])
                others = (np.split(np.asarray(z), sides[1:], axis=sides[0])[::2] for z in (x, y))
                for one, other in zip(*others, strict=True):
                    np.testing.assert_array_equal(one, other)


def weak(g: Any) -> Any:
    return g * 0.02


def strong(g: Any) -> Any:
    return g * 20


def reset_at_edges(g: Any) -> Any:
    """The first and the last row of a shard, by channels: -inf in one, the other, or both; and a whole shard of it."""
    g = weak(g)
    rows = g.shape[1] // SHARDS
    for shard in range(SHARDS):
        g[:, shard * rows, ..., shard % 3 :: 5] = -np.inf
        g[:, (shard + 1) * rows - 1, ..., shard % 4 :: 4] = -np.inf
    g[:, 5 * rows : 6 * rows] = -np.inf
    return g


# (op, the gates that a call gives beside those it must, reverse)
CALLS = [
    ("gla", (), False),
    ("gla", (), True),
    ("gla", ("gv",), True),
    ("simple_gla", ("g", "g_gamma"), False),
    ("simple_gla", ("g",), True),
]


@pytest.mark.parametrize(("op", "gates", "reverse"), CALLS)
def test_packed_sequences_are_one_devices_wherever_shards_cut_them(
    mesh: Mesh, op: str, gates: Sequence[str], reverse: bool
) -> None:
    split = Split(mesh, op, DIMS, [*gates, *EDGES], check_vma=not reverse, reverse=reverse)
    for bounds in PACKS.values():
        split.hold(weak, cu_seqlens=jnp.array(bounds, jnp.int32))
    split.hold(reset_at_edges, cu_seqlens=jnp.array(PACKS["many in one shard"], jnp.int32))
    split.hold(reset_at_edges, cu_seqlens=jnp.array([0, 0, 3, 10, 10, 20, 21, 55, 55, 79], jnp.int32))
    split.hold_apart([0, 5, 5, 12, 44, 46, 47, 78, 80, 80], 3)


@pytest.mark.parametrize(
    ("op", "gates", "reverse"),
    [
        *(pytest.param(*call, marks=[pytest.mark.slow] if "gv" in call[1] else []) for call in CALLS),
        ("simple_gla", ("g_gamma",), False),
    ],
)
def test_whole_sequences_are_one_devices(mesh: Mesh, op: str, gates: Sequence[str], reverse: bool) -> None:
    dims = {**DIMS, "B": 2, "T": 8 * 30}
    present = [] if reverse else ["initial_state"]
    split = Split(mesh, op, dims, [*gates, *present], check_vma=not reverse, reverse=reverse)
    for change in (weak, strong, reset_at_edges):
        split.hold(change)


def test_packs_need_no_initial_state(mesh: Mesh) -> None:
    split = Split(mesh, "gla", DIMS, ["cu_seqlens"], check_vma=True, reverse=True)
    split.hold(weak, cu_seqlens=jnp.array([0, 3, 9, 10, 22, 50, 50, 51, 70, 78], jnp.int32))


def test_sequences_without_any_gate_are_one_devices(mesh: Mesh) -> None:
    Split(mesh, "simple_gla", DIMS, [], check_vma=True, reverse=False).hold(weak)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("op", "gates"), [("gla", ()), ("simple_gla", ("g", "g_gamma"))])
def test_interpreted_kernels_are_one_devices_too(mesh: Mesh, op: str, gates: Sequence[str], packed: bool) -> None:
    # Pallas' interpreter loses what varies over an axis (a scan of its own): under check_vma it runs no kernel, this one or another.
    present = [*gates, *(EDGES if packed else EDGES[:1])]
    how = {"backend": "pallas_tpu", "interpret": True}
    split = Split(mesh, op, DIMS, present, check_vma=False, reverse=packed, **how)
    split.hold(reset_at_edges, **({"cu_seqlens": jnp.array(PACKS["boundaries at the edges"])} if packed else {}))
    if packed:
        split.hold(weak, cu_seqlens=jnp.array([0, 0, 3, 10, 10, 20, 21, 55, 55, 79], jnp.int32))


EXCHANGE = re.compile(
    r'"stablehlo\.(all_gather|all_reduce|all_to_all|collective_permute|reduce_scatter|collective_broadcast)"\('
    r".*?: \(tensor<((?:\d+x)+)\w+>\)",
    re.DOTALL,
)
STATE = 16 * 8  # K * V of the one head
DECAYS = {("gla", ()): 16, ("gla", ("gv",)): 16 + 8, ("simple_gla", ("g",)): 1}  # numbers a head


def exchanged(
    mesh: Mesh, op: str, present: Sequence[str], *, backward: bool, rows: int = 80, check_vma: bool = True, **dims: int
) -> list[tuple[str, int]]:
    """(collective, elements of its operand), as lowered, nothing being optimized away."""
    test = OpTest(case(tops_manifest.op(op), {**DIMS, "T": rows, **dims}, present=present))
    names = inputs_of(op, *present)
    arrays = [test.avals()[name] for name in names]
    cotangents = jax.eval_shape(test.gen_cotangents, jax.random.key(0))
    run = sharded(mesh, op, names, check_vma=check_vma, backend="xla")
    passes = functools.partial(pulled, run)
    text = (jax.jit(passes).lower(cotangents, *arrays) if backward else jax.jit(run).lower(*arrays)).as_text()
    return [(what, math.prod(map(int, sizes[:-1].split("x")))) for what, sizes in EXCHANGE.findall(text)]


@pytest.mark.parametrize(("op", "gates"), DECAYS)
@pytest.mark.parametrize("edges", [(), EDGES[:1]], ids=["from nothing", "from a state"])
def test_a_pass_of_whole_sequences_has_one_exchange(
    mesh: Mesh, op: str, gates: tuple[str, ...], edges: Sequence[str]
) -> None:
    once = [("all_gather", STATE + DECAYS[op, gates])]
    for rows in (80, 160):
        assert exchanged(mesh, op, [*gates, *edges], backward=False, rows=rows) == once
        assert exchanged(mesh, op, [*gates, *edges], backward=True, rows=rows) == 2 * once


def test_what_is_exchanged_fills_whole_registers_of_a_tpu(mesh: Mesh) -> None:
    """Else its compiler makes an all-reduce of all shards' parts of it."""
    assert exchanged(mesh, "simple_gla", ["g"], backward=False, K=64, V=64) == [("all_gather", 64 * 64 + 1024)]


def test_the_gradient_of_decays_that_all_shards_share_is_summed_as_a_weights_is(mesh: Mesh) -> None:
    once = ("all_gather", STATE + 1)
    assert exchanged(mesh, "simple_gla", ["g_gamma"], backward=False) == [once]
    assert exchanged(mesh, "simple_gla", ["g_gamma"], backward=True) == [once, once, ("all_reduce", 1)]


def test_without_check_vma_parts_of_the_final_states_gradient_go_along_in_the_exchange(mesh: Mesh) -> None:
    found = exchanged(mesh, "gla", (), backward=True, check_vma=False)
    assert found == [("all_gather", STATE + 16), ("all_gather", 2 * STATE + 16)]


@pytest.mark.parametrize(("op", "gates"), DECAYS)
def test_packs_exchange_one_open_sequence_an_edge_and_sum_the_states_of_all(
    mesh: Mesh, op: str, gates: tuple[str, ...]
) -> None:
    once, states = ("all_gather", STATE + DECAYS[op, gates]), ("all_reduce", DIMS["N"] * STATE)
    present = [*gates, *EDGES]
    assert exchanged(mesh, op, present, backward=False, rows=160) == [once, states]
    assert sorted(exchanged(mesh, op, present, backward=True)) == [once, once, states, states]


@pytest.mark.parametrize(("op", "gates"), [("gla", ()), ("simple_gla", ("g",))])
def test_states_of_packs_that_nobody_asks_for_are_not_summed(mesh: Mesh, op: str, gates: Sequence[str]) -> None:
    present = [*gates, "cu_seqlens"]
    avals = OpTest(case(tops_manifest.op(op), DIMS, present=present)).avals()
    *names, _ = inputs_of(op, *present)
    run = sharded(mesh, op, [*names, "cu_seqlens"], backend="xla")
    gradient = jax.grad(lambda cu_seqlens, *floats: run(*floats, cu_seqlens)[0].sum(), argnums=(1, 2, 3, 4))
    arrays = [avals[name] for name in ("cu_seqlens", *names)]
    text = jax.jit(gradient).lower(*arrays).compile(compiler_options=FAST).as_text()
    assert len(re.findall(r"= \S+ all-gather(?:-start)?\(", text)) == 2
    assert "all-reduce" not in text


@pytest.mark.parametrize("op", ["gla", "simple_gla"])
def test_an_axis_that_no_shard_map_binds_is_refused(op: str) -> None:
    x, g = jnp.ones((1, 8, 1, 4)), -jnp.ones((1, 8, 1, 4) if op == "gla" else (1, 8, 1))
    with pytest.raises(ValueError, match=rf"^{op}: axis_name is 'time'; expected a mesh axis that a jax.shard_map"):
        public(op)(x, x, x, g, axis_name="time")
    with pytest.raises(TypeError, match=rf"^{op}: axis_name is 3; expected None or a string"):
        public(op)(x, x, x, g, axis_name=3)


@pytest.mark.parametrize(
    ("op", "name", "array"),
    [
        ("gla", "initial_state", np.ones((8, 1, 4, 4), np.float32)),
        ("gla", "cu_seqlens", np.zeros(16, np.int32)),
        ("simple_gla", "cu_seqlens", np.zeros(16, np.int32)),
        ("simple_gla", "g_gamma", np.zeros(8, np.float32)),
    ],
)
def test_what_must_be_the_same_on_every_shard_and_is_not_is_refused(mesh: Mesh, op: str, name: str, array: Any) -> None:
    rows, split = PartitionSpec(None, "time"), PartitionSpec("time")
    x, g = jnp.ones((1, 80, 1, 4)), -jnp.ones((1, 80, 1, 4) if op == "gla" else (1, 80, 1))

    def run(x: Any, g: Any, array: Any) -> Any:
        return public(op)(x, x, x, g, **{name: array}, axis_name="time")[0]

    mapped = jax.shard_map(run, mesh=mesh, in_specs=(rows, rows, split), out_specs=rows)
    with pytest.raises(ValueError, match=rf"^{op}: {name} varies over mesh axis 'time'; expected the same array"):
        mapped(x, g, array)


def test_rows_that_shards_cannot_share_out_evenly_are_refused(mesh: Mesh) -> None:
    x = jnp.ones((1, 81, 1, 4))
    with pytest.raises(ValueError, match="81"):
        sharded(mesh, "gla", "qkvg")(x, x, x, -x)


@pytest.mark.slow
def test_two_processes_of_four_devices_give_one_devices_values_and_gradients() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    script = Path(__file__).with_name("sequence_processes.py")
    children = [
        subprocess.Popen(
            [sys.executable, str(script), port, str(process)], stderr=subprocess.STDOUT, stdout=subprocess.PIPE
        )
        for process in range(2)
    ]
    try:
        for child in children:
            out, _ = child.communicate(timeout=300)
            assert child.returncode == 0, out.decode()[-3000:]
    finally:
        for child in children:
            child.kill()
            child.communicate()
