"""gla with gates on values (gv) against the oracle: exact at any gate, packed, reversed, and in memory that does not grow with T * K * V."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels
import tops_manifest
from tops_tests.optest import OpTest
from tops_tests.subject import case

OP = tops_manifest.op("gla")
FAST = {"xla_backend_optimization_level": 0}  # compiling takes the time here
GATES = (0.0, -1e-6, -0.05, -1.0, -5.0, -20.0, "mixed", "one of -100", "some of -inf", "all of -inf")
ALL = ("initial_state", "cu_seqlens", "gv")
BOUNDS = ((0, 0, 30, 30, 64, 70, 70, 90), (0, 1, 2, 64, 65, 65, 80, 80))


def gates(kind: Any, shape: tuple[int, ...], random: np.random.Generator) -> jax.Array:
    g = -random.exponential(size=shape).astype(np.float32)
    if kind == "mixed":
        g *= np.float32(10) ** random.uniform(-6, 2.5, shape).astype(np.float32)
    elif kind == "one of -100":
        g *= 0.01
        g[:, shape[1] // 3] = -100
    elif kind == "some of -inf":
        g *= 0.05
        g[random.uniform(size=shape) < 0.02] = -np.inf
        g[:, [0, shape[1] // 2, -1], :, ::2] = -np.inf
    else:
        g = np.full(shape, -np.inf, np.float32) if kind == "all of -inf" else g * np.float32(-kind)
    return jnp.asarray(g)


class Passes:
    """One compiled pair of passes for many contents."""

    def __init__(self, present: tuple[str, ...], dtype: str = "float32", reverse: bool = False, **dims: int) -> None:
        sizes = {"B": 1, "T": 90, "HQ": 2, "H": 1, "K": 20, "V": 12, "N": 7} | dims
        self.test = OpTest(case(OP, sizes, {"X": dtype}, {"reverse": reverse}, present))
        self.names = tuple(self.test.avals())
        self.traced = 0

        def run(cotangents: Any, *arrays: Any) -> Any:
            self.traced += 1
            call = functools.partial(tops_kernels.gla, reverse=reverse)
            outputs, pull = jax.vjp(lambda *x: call(**dict(zip(self.names, x, strict=True))), *arrays)
            return outputs, pull(cotangents)

        self.run = jax.jit(run, compiler_options=FAST)

    def hold(self, kind: Any, bounds: Any = None) -> None:
        inputs, cotangents = dict(self.test.gen_inputs(jax.random.key(0))), self.test.gen_cotangents(jax.random.key(1))
        random = np.random.default_rng(0)
        inputs |= {name: gates(kind, inputs[name].shape, random) for name in ("g", "gv")}
        if bounds is not None:
            inputs["cu_seqlens"] = jnp.array(bounds, jnp.int32)
            for name in ("q", "k", "v", "g", "gv"):  # padding may hold anything
                inputs[name] = inputs[name].at[:, bounds[-1] :].set(jnp.nan)
        outputs, gradients = self.run(cotangents, *(inputs[name] for name in self.names))
        assert self.traced == 1
        self.test.check(outputs, inputs)
        found = dict(zip(self.names, gradients, strict=True))
        self.test.check_gradients({name: found[name] for name in self.test.differentiable}, cotangents, inputs)


@pytest.fixture(scope="module")
def packed() -> Passes:
    return Passes(ALL, reverse=True)


@pytest.fixture(scope="module")
def whole() -> Passes:
    return Passes(("initial_state", "gv"), B=2)


@pytest.mark.parametrize("kind", GATES)
def test_values_and_gradients_are_exact_at_any_gate(whole: Passes, kind: Any) -> None:
    whole.hold(kind)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("kind", ["some of -inf", -0.05])
def test_packed_sequences_are_those_sequences_alone(packed: Passes, kind: Any, bounds: Any) -> None:
    packed.hold(kind, bounds)


@pytest.mark.parametrize(
    "t", [1, *(pytest.param(t, marks=pytest.mark.slow) for t in (2, 15, 16, 17, 63, 64, 65, 1000))]
)
def test_any_length(t: int) -> None:
    Passes(("gv",), T=t, K=16, reverse=t % 2 == 0).hold("mixed")


@pytest.mark.slow
@pytest.mark.parametrize("present", [("gv",), ALL], ids=["whole", "packed"])
def test_bfloat16_is_rounded_once(present: tuple[str, ...]) -> None:
    bounds = BOUNDS[0] if "cu_seqlens" in present else None
    passes = Passes(present, "bfloat16", K=64, V=80)
    for kind in GATES:
        passes.hold(kind, bounds)


@pytest.mark.slow
def test_two_calls_through_the_state_are_one() -> None:
    test = OpTest(case(OP, {"B": 1, "T": 70, "HQ": 2, "H": 2, "K": 8, "V": 6, "N": 1}, present=("gv",)))
    inputs = test.gen_inputs(jax.random.key(0))
    run = jax.jit(tops_kernels.gla, compiler_options=FAST)
    o, final = run(**inputs)
    left, state = run(**{name: x[:, :35] for name, x in inputs.items()})
    right, last = run(**{name: x[:, 35:] for name, x in inputs.items()}, initial_state=state)
    np.testing.assert_allclose(np.concatenate([left, right], axis=1), o, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(last, final, rtol=1e-5, atol=1e-5)


def test_a_step_more_is_gla_steps() -> None:
    test = OpTest(case(OP, {"B": 2, "T": 9, "HQ": 2, "H": 1, "K": 8, "V": 6, "N": 1}, present=("gv",)))
    inputs = test.gen_inputs(jax.random.key(0))
    o, final = tops_kernels.gla(**inputs)
    _, state = tops_kernels.gla(**{name: x[:, :8] for name, x in inputs.items()})
    token, after = tops_kernels.gla_step(**{name: x[:, 8] for name, x in inputs.items()}, state=state)
    np.testing.assert_allclose(token, o[:, 8], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(after, final, rtol=1e-5, atol=1e-5)


def test_no_state_of_each_step_is_kept_for_the_backward_pass() -> None:
    sizes = {"B": 1, "T": 1024, "HQ": 1, "H": 1, "K": 64, "V": 64, "N": 1}
    avals = OpTest(case(OP, sizes, present=("gv",))).avals()

    def gradients(*arrays: Any) -> Any:
        def loss(*x: Any) -> Any:
            return sum(y.sum() for y in tops_kernels.gla(**dict(zip(avals, x, strict=True))))

        return jax.grad(loss, argnums=range(len(arrays)))(*arrays)

    memory = jax.jit(gradients).lower(*avals.values()).compile(compiler_options=FAST).memory_analysis()
    assert memory.temp_size_in_bytes < 1024 * 64 * 64 * 4 / 2


def test_a_kernel_that_lacks_it_is_refused_by_name() -> None:
    x = jnp.ones((1, 4, 1, 8))
    message = r'^gla: backend is \'pallas_tpu\' with gv; expected backend None or "xla"'
    with pytest.raises(ValueError, match=message):
        tops_kernels.gla(x, x, x, -x, gv=-x, backend="pallas_tpu")
    with pytest.raises(ValueError, match=r"^gla: interpret is given with gv; expected"):
        tops_kernels.gla(x, x, x, -x, gv=-x, interpret=True)
