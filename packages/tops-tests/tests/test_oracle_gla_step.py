"""The oracle of the decode steps: on paper, as gla over one step, and by central differences."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tops_tests.oracles.gla import gla
from tops_tests.oracles.gla_step import gla_step, gla_step_vjp, simple_gla_step, simple_gla_step_vjp

Array = npt.NDArray[np.float64]
HEADS = [(2, 2), (4, 2), (3, 1)]  # HQ, H
INDEX = [3, -1, 0]  # into a pool of 4, one row of padding
CALLS = {"gla_step": (gla_step, gla_step_vjp), "simple_gla_step": (simple_gla_step, simple_gla_step_vjp)}
GIVEN = {
    "gla_step": [("g",), ("g", "gv")],
    "simple_gla_step": [(), ("g",), ("g_gamma",), ("g", "g_gamma")],
}
FORMS = [(op, given, pooled) for op, forms in GIVEN.items() for given in forms for pooled in (False, True)]


def draw(
    op: str, given: tuple[str, ...], pooled: bool, heads: tuple[int, int] = (4, 2), resets: bool = False
) -> dict[str, Array]:
    random = np.random.default_rng(0)
    (HQ, H), B, K, V = heads, 3, 3, 2
    gates = {
        "g": -random.uniform(0.0, 2.0, (B, H, K) if op == "gla_step" else (B, H)),
        "gv": -random.uniform(0.0, 2.0, (B, H, V)),
        "g_gamma": -random.uniform(0.0, 2.0, H),
    }
    if resets:
        gates = {name: np.where(random.random(g.shape) < 0.4, -np.inf, g) for name, g in gates.items()}
    return {
        "q": random.standard_normal((B, HQ, K)),
        "k": random.standard_normal((B, H, K)),
        "v": random.standard_normal((B, H, V)),
        "state": random.standard_normal((4 if pooled else B, H, K, V)),
    } | {name: gates[name] for name in given}


def draw_cotangents(inputs: Mapping[str, Array]) -> tuple[Array, Array]:
    random = np.random.default_rng(1)
    q, v = inputs["q"], inputs["v"]
    return random.standard_normal((*q.shape[:2], v.shape[2])), random.standard_normal(inputs["state"].shape)


def test_the_state_decays_before_the_token_is_added_and_is_read_after() -> None:
    one = np.ones((1, 1, 1))
    o, state = gla_step(one, one, 3 * one, math.log(0.5) * one, 8 * one[None])
    assert (o.item(), state.item()) == pytest.approx((7.0, 7.0), rel=1e-15)
    o, state = gla_step(one, one, 3 * one, math.log(0.5) * one, 8 * one[None], gv=math.log(0.25) * one)
    assert (o.item(), state.item()) == pytest.approx((4.0, 4.0), rel=1e-15)
    o, state = simple_gla_step(
        one, one, 3 * one, 8 * one[None], g=math.log(0.5) * one[0], g_gamma=math.log(0.25) * one[0, 0]
    )
    assert (o.item(), state.item()) == pytest.approx((4.0, 4.0), rel=1e-15)


def test_the_value_gate_decays_columns_and_the_key_gate_rows() -> None:
    zero = np.zeros((1, 1, 2))
    g, gv = np.log([[[0.5, 1.0]]]), np.log([[[1.0, 0.25]]])
    _, state = gla_step(zero, zero, zero, g, np.ones((1, 1, 2, 2)), gv=gv)
    np.testing.assert_allclose(state[0, 0], [[0.5, 0.125], [1.0, 0.25]], rtol=1e-15)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_a_step_is_gla_over_one_step(heads: tuple[int, int], resets: bool) -> None:
    inputs = draw("gla_step", ("g",), pooled=False, heads=heads, resets=resets)
    at_one_step = {name: array[:, None] for name, array in inputs.items() if name != "state"}
    o, state = gla(**at_one_step, initial_state=inputs["state"])
    got = gla_step(**inputs)
    np.testing.assert_allclose(got[0], o[:, 0], rtol=0, atol=1e-14)
    np.testing.assert_allclose(got[1], state, rtol=0, atol=1e-14)


@pytest.mark.parametrize("given", GIVEN["simple_gla_step"], ids=lambda given: "+".join(given) or "no decay")
@pytest.mark.parametrize("pooled", [False, True])
def test_the_simple_step_is_the_step_with_one_gate_for_all_channels(given: tuple[str, ...], pooled: bool) -> None:
    inputs = draw("simple_gla_step", given, pooled)
    wide: dict[str, Any] = dict(inputs)
    gates = wide.pop("g", np.zeros((3, 2))) + wide.pop("g_gamma", np.zeros(1))
    index = INDEX if pooled else None
    for got, expected in zip(
        simple_gla_step(**inputs, index=index),
        gla_step(**wide, g=np.broadcast_to(gates[..., None], wide["k"].shape), index=index),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("outside", [-1, -7, 4, 1000])
def test_a_row_outside_the_pool_gives_zero_and_writes_nothing(outside: int) -> None:
    inputs = draw("gla_step", ("g",), pooled=True)
    index = [3, outside, 0]
    o, state = gla_step(**inputs, index=index)
    assert not o[1].any()
    np.testing.assert_array_equal(state[[1, 2]], inputs["state"][[1, 2]])
    alone = {name: array if name == "state" else array[2:] for name, array in inputs.items()}
    o_alone, state_alone = gla_step(**alone, index=[0])
    np.testing.assert_array_equal(o[2:], o_alone)
    np.testing.assert_array_equal(state[0], state_alone[0])
    do, dstate = draw_cotangents(inputs)
    gradients = gla_step_vjp((do, dstate), **inputs, index=index)
    assert not any(gradients[name][1].any() for name in "qkvg")
    np.testing.assert_array_equal(gradients["state"][[1, 2]], dstate[[1, 2]])


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("op", "given", "pooled"), FORMS)
def test_the_derivative_is_that_of_central_differences(
    op: str, given: tuple[str, ...], pooled: bool, heads: tuple[int, int], resets: bool
) -> None:
    step, step_vjp = CALLS[op]
    inputs = draw(op, given, pooled, heads, resets)
    cotangents = draw_cotangents(inputs)
    options: dict[str, Any] = {"index": INDEX if pooled else None, "scale": 0.7}

    def loss() -> float:
        return sum(float(np.sum(d * y)) for d, y in zip(cotangents, step(**inputs, **options), strict=True))

    gradients = step_vjp(cotangents, **inputs, **options)
    assert set(gradients) == set(inputs)
    for name, array in inputs.items():
        flat, slopes = array.reshape(-1), np.zeros(array.size)  # a view: what is written is seen by loss()
        for i, value in enumerate(flat.tolist()):
            ends = []
            for moved in (value + 1e-5, value - 1e-5):
                flat[i] = moved
                ends.append(loss())
            flat[i] = value
            slopes[i] = (ends[0] - ends[1]) / 2e-5
        slopes = slopes.reshape(array.shape)
        np.testing.assert_allclose(gradients[name], slopes, rtol=1e-7, atol=1e-8, equal_nan=False, err_msg=name)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="q has 3 heads and k has 2"):
        gla_step(**draw("gla_step", ("g",), pooled=False, heads=(3, 2)))
