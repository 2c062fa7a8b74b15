"""simple_gla against the definition, one step at a time in float64: values and gradients, in XLA and of the interpreted TPU kernels."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels

DIFFERENTIABLE = ("q", "k", "v", "g", "g_gamma", "initial_state")
LIMITS = {"float32": (2e-6, 2e-5), "bfloat16": (4e-3, 1e-2)}  # relative by norm: forward, gradients
# An interpreted kernel is a long program: compiling it is what takes time.
COMPILER = {"xla_backend_optimization_level": 0}
GATES = (0.0, -1e-6, -0.05, -1.0, -5.0, -20.0, "mixed", "one of -100", "one of -10000", "some of -inf", "all of -inf")
BOUNDS = ((0, 0, 30, 30, 120, 121, 130, 130), (0, 120, 120, 121, 122, 125, 125, 125), (0, 1, 2, 3, 64, 119, 122, 130))


def _one(q: Any, k: Any, v: Any, log: Any, state: Any, do: Any, dstate: Any, scale: float) -> tuple[Any, ...]:
    """One sequence of one batch entry in the order of time, float64: o, final state, and the gradients of all arguments."""
    group, steps = q.shape[1] // k.shape[1], len(q)
    decay = np.exp(log)[:, :, None, None]
    states = [state]
    for t in range(steps):
        states.append(decay[t] * states[-1] + k[t][:, :, None] * v[t][:, None, :])
    shared = [np.repeat(s, group, axis=0) for s in states]
    o = np.array([scale * np.einsum("hk,hkv->hv", q[t], shared[t + 1]) for t in range(steps)]).reshape(do.shape)
    dq = np.array([scale * np.einsum("hv,hkv->hk", do[t], shared[t + 1]) for t in range(steps)]).reshape(q.shape)
    dk, dv, dlog = np.zeros(k.shape), np.zeros(v.shape), np.zeros(log.shape)
    for t in reversed(range(steps)):
        outer = scale * q[t][:, :, None] * do[t][:, None, :]
        dstate = dstate + outer.reshape(-1, group, *outer.shape[1:]).sum(1)
        dk[t], dv[t] = np.einsum("hkv,hv->hk", dstate, v[t]), np.einsum("hkv,hk->hv", dstate, k[t])
        dlog[t] = np.sum(decay[t] * states[t] * dstate, axis=(1, 2))
        dstate = decay[t] * dstate
    return o, states[-1], dq, dk, dv, dlog, dstate


def _definition(arrays: dict[str, Any], bounds: Any, scale: float, reverse: bool) -> dict[str, Any]:
    """Outputs by name, and gradients as "dq"; float64, zeros in padding rows."""
    x = {name: None if array is None else array.astype(np.float64) for name, array in arrays.items()}
    log = np.zeros(x["k"].shape[:3]) + (0.0 if x["g"] is None else x["g"])
    log = log + (0.0 if x["g_gamma"] is None else x["g_gamma"])
    b, t = log.shape[:2]
    pieces = [(i, 0, t) for i in range(b)]
    if bounds is not None:
        pieces = [(0, start, stop) for start, stop in itertools.pairwise(bounds)]
    rows = {"o": np.zeros(x["do"].shape)} | {f"d{name}": np.zeros(x[name].shape) for name in "qkv"}
    rows["dg"], finals, initials = np.zeros(log.shape), [], []
    for n, (i, start, stop) in enumerate(pieces):
        steps = np.arange(start, stop)[:: -1 if reverse else 1]
        state = np.zeros(x["dfinal"].shape[1:]) if x["initial_state"] is None else x["initial_state"][n]
        found = _one(
            *(y[i, steps] for y in (x["q"], x["k"], x["v"], log)), state, x["do"][i, steps], x["dfinal"][n], scale
        )
        for name, value in zip(("o", "dq", "dk", "dv", "dg"), (found[0], *found[2:6]), strict=True):
            rows[name][i, steps] = value
        finals.append(found[1])
        initials.append(found[6])
    rest = {"final_state": np.array(finals), "dinitial_state": np.array(initials)}
    return rows | rest | {"dg_gamma": rows["dg"].sum((0, 1))}


def _gates(gate: Any, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    g = -random.exponential(size=shape).astype(np.float32)
    if gate == "mixed":
        return g * np.float32(10) ** random.uniform(-6, 2.5, shape).astype(np.float32)
    if str(gate).startswith("one of"):
        g *= np.float32(0.01)
        g[:, shape[1] // 3] = float(gate[6:])
        return g
    if gate == "some of -inf":
        g *= np.float32(0.05)
        g[random.uniform(size=shape) < 0.02] = -np.inf
        g[:, [0, shape[1] // 2, -1]] = -np.inf
        return g
    return np.full(shape, -np.inf, np.float32) if gate == "all of -inf" else g * np.float32(-gate)


@functools.cache
def _compiled(backend: str, shapes: Any, tree: Any, reverse: bool, scale: float | None) -> Any:
    def run(arrays: dict[str, Any], cu_seqlens: Any) -> Any:
        inputs = {name: arrays[name] for name in DIFFERENTIABLE}

        def op(inputs: dict[str, Any]) -> Any:
            interpret = backend == "pallas_tpu"
            return tops_kernels.simple_gla(
                **inputs, cu_seqlens=cu_seqlens, scale=scale, reverse=reverse, backend=backend, interpret=interpret
            )

        outputs, pull = jax.vjp(op, inputs)
        return outputs, pull((arrays["do"], arrays["dfinal"]))[0]

    arguments = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*shape) for shape in shapes])
    return jax.jit(run).lower(*arguments).compile(compiler_options=COMPILER)


def _errors(
    backend: str,
    *,
    t: int = 130,
    b: int = 1,
    hq: int = 1,
    h: int = 1,
    k: int = 16,
    v: int = 24,
    gate: Any = -0.05,
    dtype: str = "float32",
    bounds: tuple[int, ...] | None = None,
    without: tuple[str, ...] = (),
    reverse: bool = False,
    scale: float | None = None,
) -> dict[str, float]:
    """Relative error by norm of each output, over its limit."""
    random, states = np.random.default_rng(1000 * t + k), b if bounds is None else len(bounds) - 1
    shapes = {
        "q": (b, t, hq, k), "k": (b, t, h, k), "v": (b, t, h, v), "do": (b, t, hq, v),
        "initial_state": (states, h, k, v), "dfinal": (states, h, k, v),
    }  # fmt: skip
    arrays: dict[str, Any] = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    arrays |= {name: np.array(jnp.asarray(arrays[name], dtype)) for name in ("q", "k", "v", "do")}
    arrays["g"] = _gates(gate, (b, t, h), random)
    arrays["g_gamma"] = np.linspace(-0.02, -0.001, h, dtype=np.float32)
    arrays |= dict.fromkeys(without)
    want = _definition(arrays, bounds, k**-0.5 if scale is None else scale, reverse)
    if bounds is not None:  # what lies in padding rows is nobody's business
        for name in ("q", "k", "v", "g", "do"):
            if arrays[name] is not None:
                arrays[name][:, bounds[-1] :] = np.nan
    given = arrays, None if bounds is None else np.asarray(bounds, np.int32)
    leaves, tree = jax.tree.flatten(given)
    program = _compiled(backend, tuple((x.shape, x.dtype.name) for x in leaves), tree, reverse, scale)
    (o, final), grads = program(*given)
    got = {"o": o, "final_state": final} | {f"d{name}": gradient for name, gradient in grads.items()}
    assert {name for name, x in got.items() if x is None} == {f"d{name}" for name in without}
    errors = {}
    for name, ours in got.items():
        if ours is not None:
            assert ours.shape == want[name].shape, name
            difference, size = np.linalg.norm(np.asarray(ours, np.float64) - want[name]), np.linalg.norm(want[name])
            # Where everything is zero, so must ours be. NaN is an error too: it stays NaN here.
            errors[name] = float(
                difference / (size if size else 1e-30) / LIMITS[dtype][name not in ("o", "final_state")]
            )
    return errors


def _assert_small(errors: dict[str, float]) -> None:
    assert all(error <= 1 for error in errors.values()), f"times the allowed error: {errors}"


@pytest.mark.parametrize("backend", ["xla", "pallas_tpu"])
@pytest.mark.parametrize("gate", GATES)
def test_values_and_gradients_are_exact_at_any_gate(backend: str, gate: Any) -> None:
    _assert_small(_errors(backend, gate=gate))


@pytest.mark.parametrize("backend", ["xla", "pallas_tpu"])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_packed_sequences_are_those_sequences_alone(backend: str, bounds: tuple[int, ...]) -> None:
    _assert_small(_errors(backend, bounds=bounds, gate="some of -inf", reverse=True))


@pytest.mark.parametrize("t", [1, 65, *(pytest.param(t, marks=pytest.mark.slow) for t in (2, 15, 63, 64, 100, 1000))])
def test_any_length(t: int) -> None:
    _assert_small(_errors("xla", t=t, b=2, hq=4, h=2, k=48, v=80, gate="mixed", reverse=t % 2 == 0))


@pytest.mark.parametrize("without", [("g",), ("g_gamma", "initial_state")], ids=" ".join)
def test_what_is_not_given_is_zeros_and_has_no_gradient(without: tuple[str, ...]) -> None:
    _assert_small(_errors("xla", without=without, h=2, hq=2))


@pytest.mark.slow
@pytest.mark.parametrize("without", [("g",), ("g_gamma",), ("g", "g_gamma", "initial_state")], ids=" ".join)
def test_what_is_not_given_is_zeros_and_has_no_gradient_on_tpu(without: tuple[str, ...]) -> None:
    _assert_small(_errors("pallas_tpu", without=without, h=2, hq=2))


@pytest.mark.slow
@pytest.mark.parametrize("scale", [-0.5, 0.0])
def test_scale_may_be_negative_or_zero_on_tpu(scale: float) -> None:
    _assert_small(_errors("pallas_tpu", scale=scale, t=4))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {"t": 1},
        {"t": 121, "b": 2, "hq": 4, "h": 2, "k": 48, "v": 160, "reverse": True},
        {"t": 119, "k": 192, "v": 256, "dtype": "bfloat16"},
        {"t": 121, "h": 8, "hq": 8, "k": 128, "v": 128, "dtype": "bfloat16", "reverse": True},
        {"t": 130, "h": 8, "hq": 16, "k": 128, "v": 128, "gate": "some of -inf", "bounds": BOUNDS[0]},
        {"t": 130, "h": 8, "hq": 8, "k": 128, "v": 128, "gate": "mixed", "dtype": "bfloat16", "bounds": BOUNDS[1]},
    ],
    ids=["one step", "grouped heads of odd widths", "wide heads", "in place", "groups in place", "packed in place"],
)
def test_any_shape_on_tpu(case: Any) -> None:
    _assert_small(_errors("pallas_tpu", **case))


def test_one_compilation_serves_all_contents_of_cu_seqlens() -> None:
    traces = []

    @jax.jit
    def run(x: jax.Array, g: jax.Array, cu_seqlens: jax.Array) -> jax.Array:
        traces.append(1)
        return tops_kernels.simple_gla(x, x, x, g, cu_seqlens=cu_seqlens)[0]

    x, g = np.ones((1, 9, 1, 4), np.float32), np.zeros((1, 9, 1), np.float32)
    a, b = (np.asarray(run(x, g, np.asarray(bounds, np.int32))) for bounds in ((0, 4, 9), (0, 0, 3)))
    assert len(traces) == 1
    np.testing.assert_allclose(a[0, :, 0, 0], [2, 4, 6, 8, 2, 4, 6, 8, 10])
    np.testing.assert_allclose(b[0, :, 0, 0], [2, 4, 6, 0, 0, 0, 0, 0, 0])


def test_second_derivatives_are_those_of_the_definition() -> None:
    random = np.random.default_rng(0)
    q, k, v = (jnp.asarray(random.standard_normal((1, 5, 1, 4)), jnp.float32) for _ in range(3))
    g = jnp.asarray(-random.exponential(size=(1, 5, 1)), jnp.float32)

    def plain(g: jax.Array) -> jax.Array:
        total = jnp.cumsum(g[0, :, 0])
        decay = jnp.tril(jnp.exp(jnp.minimum(total[:, None] - total[None, :], 0)))
        return jnp.sum(jnp.sin(0.5 * (q[0, :, 0] @ k[0, :, 0].T * decay) @ v[0, :, 0]))

    def ours(g: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(tops_kernels.simple_gla(q, k, v, g)[0]))

    def second(function: Any) -> Any:
        return jax.grad(lambda g: jnp.sum(jnp.cos(jax.grad(function)(g))))(g)

    np.testing.assert_allclose(second(ours), second(plain), rtol=2e-5, atol=1e-6)


def test_a_batch_of_calls_is_lowered_for_a_tpu() -> None:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array) -> jax.Array:
        return jnp.sum(tops_kernels.simple_gla(q, k, v, g)[0].astype(jnp.float32))

    rows = jax.ShapeDtypeStruct((2, 1, 8, 8, 128), jnp.bfloat16)
    gates = jax.ShapeDtypeStruct(rows.shape[:-1], jnp.float32)
    traced = jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2, 3)))).trace(rows, rows, rows, gates)
    assert traced.lower(lowering_platforms=("tpu",)).as_text().count("tpu_custom_call") >= 2
