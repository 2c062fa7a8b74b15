"""The oracle of linear attention with a decay a head: on paper, as gla with one gate for all channels, and by central differences."""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from tops_tests.oracles.gla import gla, gla_vjp
from tops_tests.oracles.simple_gla import simple_gla, simple_gla_vjp

Array = npt.NDArray[np.float64]
Inputs = dict[str, Array]

HEADS = [(2, 2), (4, 2), (3, 1)]  # HQ, H
GATES = ["mild", "strong", "resets"]
CUTS = {
    "dense": None,
    "packed with empty sequences": [0, 0, 3, 3, 5, 5],
    "packed and short of T": [0, 1, 1, 4],
}
GIVEN = [(), ("g",), ("g_gamma",), ("g", "g_gamma", "initial_state")]


def draw(
    cuts: list[int] | None = None,
    *,
    heads: tuple[int, int] = (4, 2),
    gates: str = "mild",
    given: tuple[str, ...] = ("g",),
) -> Inputs:
    random = np.random.default_rng(0)
    HQ, H = heads
    B, T, K, V = (2 if cuts is None else 1), 5, 3, 2
    g = -random.uniform(0.0, 30.0 if gates == "strong" else 1.0, (B, T, H))
    if gates == "resets":
        g = np.where(random.random(g.shape) < 0.3, -np.inf, np.where(random.random(g.shape) < 0.3, -1000.0, g))
    optional = {
        "g": g,
        "g_gamma": -random.uniform(0.01, 0.5, H),
        "initial_state": random.standard_normal((B if cuts is None else len(cuts) - 1, H, K, V)),
    }
    return {
        "q": random.standard_normal((B, T, HQ, K)),
        "k": random.standard_normal((B, T, H, K)),
        "v": random.standard_normal((B, T, H, V)),
    } | {name: optional[name] for name in given}


def draw_cotangents(inputs: Mapping[str, Array], cuts: list[int] | None) -> tuple[Array, Array]:
    random = np.random.default_rng(1)
    B, _, H, K = inputs["k"].shape
    V = inputs["v"].shape[3]
    states = B if cuts is None else len(cuts) - 1
    return random.standard_normal((*inputs["q"].shape[:3], V)), random.standard_normal((states, H, K, V))


def as_gla(inputs: Mapping[str, Array]) -> Inputs:
    """The same with a gate for each channel of the keys."""
    arrays = dict(inputs)
    gates = arrays.pop("g", np.zeros(inputs["k"].shape[:3])) + arrays.pop("g_gamma", np.zeros(1))
    return arrays | {"g": np.broadcast_to(gates[..., None], inputs["k"].shape)}


def assert_same(got: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert set(got) == set(expected)
    for name, array in expected.items():
        assert got[name].shape == array.shape, name
        largest = float(np.max(np.abs(array), initial=0.0))
        np.testing.assert_allclose(got[name], array, rtol=0.0, atol=1e-12 * largest, equal_nan=False, err_msg=name)


def test_the_gradients_of_the_final_state_alone_are_on_paper() -> None:
    ones, state = np.ones((1, 2, 1, 1)), np.ones((1, 1, 1, 1))
    g = np.array([-0.5, -0.25]).reshape(1, 2, 1)
    inputs = {"q": ones, "k": ones, "v": ones, "g": g, "initial_state": state}
    assert simple_gla(**inputs)[1].item() == pytest.approx(math.exp(-0.25) * (math.exp(-0.5) + 1) + 1, rel=1e-15)
    gradients = simple_gla_vjp((0 * ones, state), **inputs)
    assert gradients["g"].ravel() == pytest.approx([0.472367, 1.251167], abs=5e-7)
    assert gradients["initial_state"].item() == pytest.approx(math.exp(-0.75), rel=1e-15)
    assert not gradients["q"].any()


def test_a_constant_decay_alone_is_retention_on_paper() -> None:
    """The parallel form: o_t is the sum over s <= t of gamma^(t - s) <q_t, k_s> v_s."""
    inputs = draw(heads=(2, 2), given=("g_gamma",))
    o, _ = simple_gla(**inputs, scale=1.0)
    gamma = np.exp(inputs["g_gamma"])
    distance = np.arange(5)[:, None] - np.arange(5)[None, :]
    decay = np.where(distance >= 0, gamma[:, None, None] ** distance, 0.0)
    scores = np.einsum("bthk,bshk->bhts", inputs["q"], inputs["k"]) * decay
    np.testing.assert_allclose(o, np.einsum("bhts,bshv->bthv", scores, inputs["v"]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("given", GIVEN, ids=lambda given: "+".join(given) or "no decay")
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("form", CUTS)
def test_it_is_gla_with_one_gate_for_all_channels(
    form: str, heads: tuple[int, int], gates: str, given: tuple[str, ...], reverse: bool
) -> None:
    cuts = CUTS[form]
    inputs = draw(cuts, heads=heads, gates=gates, given=given)
    cotangents = draw_cotangents(inputs, cuts)
    options = {"cu_seqlens": cuts, "scale": 0.7, "reverse": reverse}
    got, expected = simple_gla(**inputs, **options), gla(**as_gla(inputs), **options)
    assert_same(dict(enumerate(got)), dict(enumerate(expected)))  # type: ignore[arg-type]  # numbers as names
    gradients = gla_vjp(cotangents, **as_gla(inputs), **options)
    of_gates = gradients.pop("g").sum(axis=-1)
    if "g" in given:
        gradients["g"] = of_gates
    if "g_gamma" in given:
        gradients["g_gamma"] = of_gates.sum(axis=(0, 1))
    assert_same(simple_gla_vjp(cotangents, **inputs, **options), gradients)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", CUTS)
@pytest.mark.parametrize("gates", GATES)
def test_the_derivative_is_that_of_central_differences(gates: str, form: str, reverse: bool) -> None:
    cuts = CUTS[form]
    inputs = draw(cuts, gates=gates, given=("g", "g_gamma", "initial_state"))
    cotangents = draw_cotangents(inputs, cuts)
    options = {"cu_seqlens": cuts, "scale": 0.7, "reverse": reverse}

    def loss() -> float:
        outputs = simple_gla(**inputs, **options)
        return sum(float(np.sum(d * y)) for d, y in zip(cotangents, outputs, strict=True))

    gradients = simple_gla_vjp(cotangents, **inputs, **options)
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


def test_broken_inputs_are_refused() -> None:
    inputs = draw(heads=(3, 2))
    with pytest.raises(ValueError, match="q has 3 heads and k has 2"):
        simple_gla(**inputs)
    inputs = draw([0, 5])
    for cuts in ([1, 5], [0, 4, 3], [0, 6]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            simple_gla(**inputs, cu_seqlens=cuts)
