"""gla_step and simple_gla_step against the recurrence in NumPy float64: by XLA, and the TPU kernel in the interpreter."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels

LIMITS = {"float32": 2e-6, "bfloat16": 4e-3}
HOW: dict[str, dict[str, Any]] = {"xla": {"backend": "xla"}, "interpreted": {"interpret": True}}
# B, HQ, H, K, V, P: widths below, at and above a lane tile, values along lanes and keys along lanes, one head, grouped heads, P below B
SHAPES = [(3, 4, 2, 16, 24, 7), (5, 3, 3, 80, 48, 5), (2, 1, 1, 200, 300, 9), (4, 6, 2, 128, 64, 3)]
INDEX = {
    "no pool": None,
    "padding first": [-1, 2, 0, -1, 1],
    "padding last": [2, 0, 1, -1, -5],
    "above": [1, 99, 2, 2**31 - 1, 0],
    "all padding": [-1] * 5,
}


def _definition(q: Any, k: Any, v: Any, g: Any, state: Any, index: Any, gv: Any, scale: float | None) -> Any:
    q, k, v, g, state = (np.array(x, np.float64) for x in (q, k, v, g, state))
    group = q.shape[1] // k.shape[1]
    o = np.zeros((*q.shape[:2], v.shape[2]))
    for b in range(len(q)):
        place = b if index is None else int(index[b])
        if not 0 <= place < len(state):
            continue
        for h in range(k.shape[1]):
            decay = np.exp(g[b, h])[:, None] * (1.0 if gv is None else np.exp(np.float64(gv[b, h])))
            state[place, h] = decay * state[place, h] + np.outer(k[b, h], v[b, h])
            for head in range(h * group, (h + 1) * group):
                o[b, head] = (q.shape[2] ** -0.5 if scale is None else scale) * q[b, head] @ state[place, h]
    return o, state


def _draw(shape: tuple[int, ...], index: str, gate: float, dtype: str = "float32", seed: int = 0) -> dict[str, Any]:
    b, hq, h, k, v, p = shape
    random = np.random.default_rng(seed)

    def normal(*sizes: int) -> Any:
        return random.standard_normal(sizes).astype(np.float32)

    g = -gate * np.abs(normal(b, h, k))
    g[0, 0, 0] = -np.inf
    where = INDEX[index]
    arrays = {"q": normal(b, hq, k), "k": normal(b, h, k), "v": normal(b, h, v)}
    arrays = {name: np.asarray(x).astype(jnp.dtype(dtype)) for name, x in arrays.items()}
    state = normal(b if where is None else p, h, k, v)
    # Distinct within the pool: what of the list lies in it comes up once.
    return {**arrays, "g": g, "state": state, "index": None if where is None else np.array(where[:b], np.int32)}


def _off(got: Any, want: Any) -> float:
    error = float(np.linalg.norm(np.asarray(got).astype(np.float64) - want))
    return error / float(np.linalg.norm(want)) if np.any(want) else error


@functools.cache
def _program(op: str, how: str, shapes: Any, scale: float | None) -> Any:
    function = functools.partial(getattr(tops_kernels, op), scale=scale, **HOW[how])
    arrays = {name: None if one is None else jax.ShapeDtypeStruct(*one) for name, one in shapes}
    # An interpreted kernel is a long program: compiling it is what takes time.
    options = {"xla_backend_optimization_level": 0} if how == "interpreted" else None
    return jax.jit(function).lower(**arrays).compile(compiler_options=options)


def _run(op: str, how: str, scale: float | None = None, **arrays: Any) -> Any:
    shapes = tuple((name, None if x is None else (x.shape, x.dtype.name)) for name, x in arrays.items())
    return _program(op, how, shapes, scale)(**arrays)


def _hold(how: str, arrays: dict[str, Any], gv: Any, limit: float) -> None:
    want = _definition(**arrays, gv=gv, scale=None)
    got = _run("gla_step", how, **arrays, gv=gv)
    for name, x, y in zip(("o", "new_state"), got, want, strict=True):
        assert _off(x, y) <= limit, f"{name} is off by {_off(x, y)}"
    index = arrays["index"]
    if index is not None:  # states of no row, to the bit
        others = [i for i in range(len(arrays["state"])) if i not in index]
        np.testing.assert_array_equal(np.asarray(got[1])[others], arrays["state"][others])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("index", INDEX)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_step_is_the_recurrences(shape: tuple[int, ...], index: str, how: str) -> None:
    arrays = _draw(shape, index, gate=0.5)
    _hold(how, arrays, None, LIMITS["float32"])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", SHAPES[::3], ids=str)
def test_values_may_be_gated_too(shape: tuple[int, ...], how: str) -> None:
    for index in ("no pool", "padding first"):
        arrays = _draw(shape, index, gate=0.5)
        gv = -np.abs(np.random.default_rng(5).standard_normal(arrays["v"].shape)).astype(np.float32)
        gv[0, 0, 0] = -np.inf
        _hold(how, arrays, gv, LIMITS["float32"])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("gate", [0.0, 1e-6, 5.0, 100.0, np.inf])
def test_a_gate_of_any_strength_is_exact(gate: float, how: str) -> None:
    with np.errstate(invalid="ignore"):
        arrays = _draw(SHAPES[0], "padding first", gate=gate)
    _hold(how, {**arrays, "g": np.nan_to_num(arrays["g"], nan=-np.inf)}, None, LIMITS["float32"])


@pytest.mark.parametrize("how", HOW)
def test_bfloat16_is_rounded_once(how: str) -> None:
    arrays = _draw(SHAPES[3], "padding first", gate=0.5, dtype="bfloat16")
    want = _definition(**arrays, gv=None, scale=None)
    o, state = _run("gla_step", how, **arrays)
    assert o.dtype == jnp.bfloat16
    assert _off(o, want[0]) <= LIMITS["bfloat16"]
    assert _off(state, want[1]) <= LIMITS["float32"], "the state is of float32 and not rounded"


def test_a_gpu_or_another_machine_gets_the_same_values_at_once() -> None:
    """XLA's form for what is no CPU is compiled there alone: here it is called by its name."""
    from tops_kernels.ops.gla_step import xla

    for index in ("padding first", "above", "all padding"):
        arrays = _draw(SHAPES[0], index, gate=0.5)
        q, k, v, g, pool, where = arrays.values()
        got = xla._at_once(q, k, v, jnp.asarray(g), jnp.asarray(pool), jnp.asarray(where), scale=16**-0.5)
        for x, y in zip(got, _definition(**arrays, gv=None, scale=None), strict=True):
            assert _off(x, y) <= LIMITS["float32"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("gates", ["none", "g", "g_gamma", "both"])
def test_one_decay_a_head_is_the_same_in_all_its_channels(gates: str, how: str) -> None:
    for index in ("no pool", "padding first"):
        arrays = _draw(SHAPES[0], index, gate=0.5)
        b, h = arrays["k"].shape[:2]
        random = np.random.default_rng(3)
        g = -np.abs(random.standard_normal((b, h))).astype(np.float32) if gates in ("g", "both") else None
        g_gamma = -np.abs(random.standard_normal(h)).astype(np.float32) if gates in ("g_gamma", "both") else None
        total = np.zeros((b, h)) + (0 if g is None else g) + (0 if g_gamma is None else g_gamma)
        want = _definition(**{**arrays, "g": np.broadcast_to(total[..., None], arrays["k"].shape)}, gv=None, scale=0.5)
        del arrays["g"]
        got = _run("simple_gla_step", how, scale=0.5, **arrays, g=g, g_gamma=g_gamma)
        for x, y in zip(got, want, strict=True):
            assert _off(x, y) <= LIMITS["float32"]


@pytest.mark.parametrize("shape", [SHAPES[1], (4, 6, 2, 16, 24, 7)], ids=["keys along lanes", "values along lanes"])
def test_the_kernel_has_no_race_and_reads_nothing_unwritten(shape: tuple[int, ...]) -> None:
    for index in ("no pool", "padding first", "padding last"):
        arrays = _draw(shape, index, gate=0.5)
        got = tops_kernels.gla_step(**arrays, interpret=tops_kernels.checking_interpreter())
        for x, y in zip(got, _definition(**arrays, gv=None, scale=None), strict=True):
            assert _off(x, y) <= LIMITS["float32"]
        assert not tops_kernels.races_found()


def _loss(arrays: Any, index: Any, weights: Any, step: Any) -> Any:
    return sum(jnp.vdot(y, w) for y, w in zip(step(**arrays, index=index), weights, strict=True))


@pytest.mark.parametrize("index", ["no pool", "padding first"])
def test_gradients_are_those_of_the_definition(index: str) -> None:
    """Against central differences of the definition in float64, along a line in each input."""
    arrays = _draw(SHAPES[0], index, gate=0.5)
    where = arrays.pop("index")
    arrays["g"] = np.maximum(arrays["g"], -5.0)  # a difference at -inf is none
    arrays["gv"] = -np.abs(np.random.default_rng(5).standard_normal(arrays["v"].shape)).astype(np.float32)
    random = np.random.default_rng(7)
    definition = functools.partial(_definition, scale=None)
    weights = [random.standard_normal(y.shape).astype(np.float32) for y in definition(**arrays, index=where)]

    def exact(changed: Any) -> float:
        return sum(float(np.vdot(y, w)) for y, w in zip(definition(**changed, index=where), weights, strict=True))

    for how in HOW:
        step = functools.partial(tops_kernels.gla_step, **HOW[how])
        gradients = jax.jit(jax.grad(functools.partial(_loss, index=where, weights=weights, step=step)))(arrays)
        for name, array in arrays.items():
            line = random.standard_normal(array.shape)
            ends = [exact({**arrays, name: array.astype(np.float64) + sign * 1e-5 * line}) for sign in (1, -1)]
            assert gradients[name].dtype == jnp.float32
            assert float(np.vdot(gradients[name], line)) == pytest.approx(
                (ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-4
            )


def test_a_gradient_at_a_hard_reset_is_finite() -> None:
    arrays = _draw(SHAPES[0], "padding first", gate=np.inf) | {"g": np.full((3, 2, 16), -np.inf, np.float32)}
    where = arrays.pop("index")
    weights = [np.ones(shape, np.float32) for shape in ((3, 4, 24), (7, 2, 16, 24))]
    gradients = jax.grad(functools.partial(_loss, index=where, weights=weights, step=tops_kernels.gla_step))(arrays)
    assert all(np.all(np.isfinite(x)) for x in gradients.values())
    assert not np.any(gradients["g"])


@pytest.mark.parametrize("op", ["gla_step", "simple_gla_step"])
@pytest.mark.parametrize("index", ["no pool", "padding first"])
def test_states_that_are_given_away_are_updated_in_place(index: str, op: str) -> None:
    """Compiled: what comes out as states lies where they lay, and there is no copy of them beside."""
    arrays = _draw((5, 4, 4, 64, 128, 100), index, gate=0.5)
    step = jax.jit(getattr(tops_kernels, op), donate_argnames="state")
    memory = step.lower(**(arrays if op == "gla_step" else {**arrays, "g": None})).compile().memory_analysis()
    assert memory.alias_size_in_bytes == arrays["state"].nbytes
    assert memory.temp_size_in_bytes <= 3 * arrays["state"][0].nbytes
    given = jnp.array(arrays["state"])
    step(**{**arrays, "state": given, **({} if op == "gla_step" else {"g": None})})
    assert given.is_deleted()


def test_an_eager_call_leaves_the_callers_array() -> None:
    for index in ("no pool", "padding first"):
        arrays = _draw(SHAPES[0], index, gate=0.5)
        given = jnp.array(arrays["state"])
        for _ in range(2):
            tops_kernels.gla_step(**{**arrays, "state": given})
        np.testing.assert_array_equal(np.asarray(given), arrays["state"])


def test_one_compilation_serves_every_index() -> None:
    traces = 0

    def counted(*given: Any) -> Any:
        nonlocal traces
        traces += 1
        return tops_kernels.gla_step(*given)

    step = jax.jit(counted)
    for index in ("padding first", "padding last", "above", "all padding"):
        step(*_draw(SHAPES[1], index, gate=0.5).values())
    assert traces == 1


def test_many_steps_are_gla() -> None:
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, 20, 2, 16)).astype(np.float32) for _ in range(3))
    g = -np.abs(random.standard_normal((2, 20, 2, 16))).astype(np.float32)
    o, final = tops_kernels.gla(q, k, v, g)
    state = jnp.zeros(final.shape)
    step = jax.jit(tops_kernels.gla_step, donate_argnames="state")
    for t in range(20):
        one, state = step(q[:, t], k[:, t], v[:, t], g[:, t], state)
        assert _off(one, np.asarray(o[:, t], np.float64)) <= 2 * LIMITS["float32"]
    assert _off(state, np.asarray(final, np.float64)) <= 2 * LIMITS["float32"]


def test_a_program_for_tpu_takes_a_narrow_state_as_it_lies_in_memory(on: Any) -> None:
    """V = 64 leaves half of each register empty: XLA keeps such states with keys along lanes, and so does the kernel."""
    for width_k, width_v, inside in ((128, 64, "2x64x128xf32"), (64, 128, "2x64x128xf32"), (128, 128, "2x128x128xf32")):
        arrays = _draw((3, 2, 2, width_k, width_v, 5), "padding first", gate=0.5)
        with on("tpu"):
            lowered = jax.jit(tops_kernels.gla_step).trace(**arrays).lower(lowering_platforms=("tpu",)).as_text()
        call = next(line for line in lowered.splitlines() if "tpu_custom_call" in line)
        assert f"tensor<5x{inside}>" in call
        assert "output_operand_alias" in call
