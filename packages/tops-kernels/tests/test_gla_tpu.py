"""gla's TPU kernels in the interpreter against the definition, one step at a time in float64: values and gradients."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

OUTPUTS = ("o", "final_state", "dq", "dk", "dv", "dg", "d_initial_state")
LIMITS = {"float32": (2e-6, 2e-5), "bfloat16": (4e-3, 1e-2)}  # relative by norm: forward, gradients
COMPILER = {
    "xla_backend_optimization_level": 0
}  # an interpreted kernel is a long program: compiling it is what takes time


@functools.partial(jax.jit, static_argnames="reverse")
def _recurrence(q: Any, k: Any, v: Any, g: Any, state: Any, *, reverse: bool) -> Any:
    group = q.shape[1] // k.shape[1]

    def step(state: Any, x: Any) -> Any:
        q, k, v, g = x
        state = jnp.exp(g)[:, :, None] * state + k[:, :, None] * v[:, None, :]
        return state, q.shape[-1] ** -0.5 * jnp.einsum("hk,hkv->hv", q, jnp.repeat(state, group, axis=0))

    state, o = jax.lax.scan(step, state, (q, k, v, g), reverse=reverse)
    return o, state


def _definition(q: Any, k: Any, v: Any, g: Any, states: Any, *, bounds: Any, reverse: bool) -> Any:
    if bounds is None:
        return jax.vmap(functools.partial(_recurrence, reverse=reverse))(q, k, v, g, states)
    outputs, finals = [], []
    for state, a, b in zip(states, bounds[:-1], bounds[1:], strict=True):
        o, final = _recurrence(q[0, a:b], k[0, a:b], v[0, a:b], g[0, a:b], state, reverse=reverse)
        outputs.append(o)
        finals.append(final)
    padding = jnp.zeros((q.shape[1] - bounds[-1], q.shape[2], v.shape[3]), q.dtype)
    return jnp.concatenate([*outputs, padding])[None], jnp.stack(finals)


@functools.cache
def _compiled(name: str, shapes: Any, tree: Any, scale: float, reverse: bool) -> Any:
    from tops_kernels.ops.gla import pallas_tpu  # lazily: it imports Pallas, and pytest imports this to collect

    function = functools.partial(getattr(pallas_tpu, name), scale=scale, reverse=reverse, config=None, interpret=True)
    arguments = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*shape) for shape in shapes])
    return jax.jit(function).lower(*arguments).compile(compiler_options=COMPILER)


def _run(name: str, *arguments: Any, scale: float, reverse: bool) -> Any:
    leaves, tree = jax.tree.flatten(arguments)
    return _compiled(name, tuple((x.shape, x.dtype.name) for x in leaves), tree, scale, reverse)(*arguments)


def _draw(*, b: int, t: int, hq: int, h: int, k: int, v: int, states: int, gate: Any, dtype: str) -> list[Any]:
    """q, k, v, g, initial_state, do, dfinal, NumPy."""
    random = np.random.default_rng(1000 * t + k)
    shapes = (b, t, hq, k), (b, t, h, k), (b, t, h, v), (states, h, k, v), (b, t, hq, v), (states, h, k, v)
    q, key, value, initial, do, dfinal = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    g = -random.exponential(size=key.shape).astype(np.float32)
    if gate == "mixed":
        g *= np.float32(10) ** random.uniform(-6, 2, g.shape).astype(np.float32)
    elif gate == "one of -100":
        g *= np.float32(0.01)
        g[:, t // 3] = -100
    elif gate == "some of -inf":
        g *= np.float32(0.05)
        g[random.uniform(size=g.shape) < 0.02] = -np.inf
        g[:, [0, -1], :, : k // 2] = g[:, [t // 2]] = -np.inf
    elif gate == "all of -inf":
        g[:] = -np.inf
    else:
        g *= np.float32(-gate)
    q, key, value, do = (np.array(jnp.asarray(x, dtype)) for x in (q, key, value, do))
    return [q, key, value, g, initial, do, dfinal]


def _errors(
    *,
    t: int,
    b: int = 1,
    hq: int = 1,
    h: int = 1,
    k: int = 16,
    v: int = 32,
    gate: Any = -0.05,
    dtype: str = "float32",
    bounds: tuple[int, ...] | None = None,
    initial: bool = True,
    reverse: bool = False,
) -> dict[str, float]:
    """Relative error by norm of each output, over its limit."""
    states = b if bounds is None else len(bounds) - 1
    *inputs, state, do, dfinal = _draw(b=b, t=t, hq=hq, h=h, k=k, v=v, states=states, gate=gate, dtype=dtype)
    if not initial:
        state = np.zeros_like(state)
    with jax.enable_x64(True):
        exact, do_exact, dfinal_exact = (
            [jnp.asarray(x.astype(np.float64)) for x in y] for y in ([*inputs, state], [do], [dfinal])
        )
        outputs, pull = jax.vjp(functools.partial(_definition, bounds=bounds, reverse=reverse), *exact)
        want = [np.asarray(x) for x in (*outputs, *pull((*do_exact, *dfinal_exact)))]
    if bounds is not None:  # what lies in padding rows is nobody's business
        for x in (*inputs, do):
            x[:, bounds[-1] :] = np.nan
    cu_seqlens = None if bounds is None else np.asarray(bounds, np.int32)
    given = [*inputs, state if initial else None, cu_seqlens]
    got = [*_run("gla_fwd", *given, scale=k**-0.5, reverse=reverse)]
    got += _run("gla_bwd", *given, do, dfinal, scale=k**-0.5, reverse=reverse)
    errors = {}
    for i, (name, ours, exactly) in enumerate(zip(OUTPUTS, got, want, strict=True)):
        if ours is None:
            assert name == "d_initial_state"
            assert not initial
            continue
        like = [do, state, *inputs, state][i]
        assert (ours.shape, ours.dtype) == (like.shape, like.dtype), name
        difference, size = np.linalg.norm(np.asarray(ours, np.float64) - exactly), np.linalg.norm(exactly)
        # Where everything is zero, so must ours be. NaN is an error too: it stays NaN here.
        errors[name] = float(difference / (size if size else 1e-30) / LIMITS[dtype][i > 1])
    return errors


def _assert_small(errors: dict[str, float]) -> None:
    assert all(error <= 1 for error in errors.values()), f"times the allowed error: {errors}"


GATES = (0.0, -1e-6, -0.05, -1.0, -5.0, -20.0, "mixed", "one of -100", "some of -inf", "all of -inf")


@pytest.mark.parametrize("gate", GATES)
def test_values_and_gradients_are_exact_at_any_gate(gate: Any) -> None:
    _assert_small(_errors(t=250, gate=gate))


@pytest.mark.parametrize(
    "bounds",
    [(0, 0, 30, 30, 120, 121, 250, 250), (0, 120, 240, 240, 240, 241, 245, 245), (0, 1, 2, 3, 119, 122, 131, 250)],
)
def test_packed_sequences_are_those_sequences_alone(bounds: tuple[int, ...]) -> None:
    _assert_small(_errors(t=250, bounds=bounds, gate="some of -inf", reverse=True))


@pytest.mark.slow
def test_steps_past_the_end_of_padding_hold_nothing() -> None:
    _assert_small(_errors(t=7, bounds=(0, 0, 3, 3, 5, 5)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        {"t": 1, "initial": False},
        {"t": 121, "b": 2, "hq": 4, "h": 2, "k": 48, "v": 160, "reverse": True},
        {"t": 121, "h": 8, "hq": 8, "k": 128, "v": 128, "dtype": "bfloat16", "reverse": True},
    ],
    ids=["one step", "grouped heads of odd widths", "in place"],
)
def test_any_shape(case: Any) -> None:
    _assert_small(_errors(**case))


@pytest.mark.slow
@pytest.mark.parametrize("t", [2, 119, 120])
@pytest.mark.parametrize("widths", [(80, 256), (192, 64)])
def test_any_length_and_width(t: int, widths: tuple[int, int]) -> None:
    _assert_small(_errors(t=t, k=widths[0], v=widths[1], reverse=t == 119, dtype="bfloat16" if t == 2 else "float32"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bounds", [None, (0, 0, 30, 30, 120, 121, 200, 230, 230)])
def test_heads_in_place(dtype: str, bounds: tuple[int, ...] | None) -> None:
    _assert_small(_errors(t=250, h=8, hq=16, k=128, v=128, dtype=dtype, bounds=bounds, gate="some of -inf"))


@pytest.mark.parametrize("packed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_edge_alone_is_the_state_or_gradient_that_the_whole_pass_has_there(packed: bool) -> None:
    *inputs, state, do, dfinal = _draw(
        b=1, t=130, hq=2, h=1, k=16, v=32, states=1, gate="some of -inf", dtype="float32"
    )
    for a, b in [(0, 130)] if not packed else [(0, 130), (0, 0), (130, 130), (3, 121), (120, 130), (0, 7)]:
        q, k, v, g, d = (x.astype(np.float64)[0] for x in (*inputs, do))
        end, start = state[0].astype(np.float64), dfinal[0].astype(np.float64)
        order = range(a, b)[::-1] if packed else range(a, b)  # packed and reverse in one
        for t in order:
            end = np.exp(g[t])[..., None] * end + k[t][..., None] * v[t][:, None]
        for t in order[::-1]:
            start = np.exp(g[t])[..., None] * (start + 0.25 * np.einsum("hk,hv->kv", q[t], d[t]))
        outside = (np.arange(130) < a) | (np.arange(130) >= b)
        q, k, v, g, d = (np.where(outside[:, None, None], np.nan, x).astype(np.float32) for x in (*inputs, do))
        rows = np.array([a, b], np.int32) if packed else None
        got = [_run("gla_end", k, v, g, state, rows, scale=0.25, reverse=packed)[0]]
        got += [_run("gla_start", q, v, g, d, dfinal, rows, scale=0.25, reverse=packed)[0]]
        for ours, exactly, limit in zip(got, (end, start), LIMITS["float32"], strict=True):
            assert np.linalg.norm(np.asarray(ours) - exactly) <= limit * np.linalg.norm(exactly)
