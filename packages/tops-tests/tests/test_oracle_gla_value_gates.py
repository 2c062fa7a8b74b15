"""The oracle of gated linear attention with gates on values: by loops of Python floats, and its derivative by central differences."""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from tops_tests.oracles.gla import gla, gla_vjp

Array = npt.NDArray[np.float64]
CUTS = {"dense": None, "packed": [0, 2, 5], "packed with empty ones and short of T": [0, 0, 1, 1, 4]}


def draw(*, B: int = 1, T: int = 5, states: int = 1, resets: bool = True) -> dict[str, Array]:
    """Two query heads to each of two heads."""
    random = np.random.default_rng(0)
    shapes = {"q": (B, T, 4, 3), "k": (B, T, 2, 3), "v": (B, T, 2, 2), "g": (B, T, 2, 3), "gv": (B, T, 2, 2)}
    found = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    for name in ("g", "gv"):
        gates = -np.abs(found[name])
        found[name] = np.where(random.random(gates.shape) < 0.2, -np.inf, gates) if resets else gates
    return found | {"initial_state": random.standard_normal((states, 2, 3, 2))}


def by_loops(x: dict[str, Array], scale: float, reverse: bool) -> tuple[Array, Array]:
    """The definition, one element at a time."""
    s = x["initial_state"].copy()
    B, T, HQ, K = x["q"].shape
    V = x["v"].shape[-1]
    o = np.zeros((B, T, HQ, V))
    for b in range(B):
        for t in reversed(range(T)) if reverse else range(T):
            for h, i, j in itertools.product(range(2), range(K), range(V)):
                decay = math.exp(x["g"][b, t, h, i]) * math.exp(x["gv"][b, t, h, j])
                s[b, h, i, j] = decay * s[b, h, i, j] + x["k"][b, t, h, i] * x["v"][b, t, h, j]
            for h, j in itertools.product(range(HQ), range(V)):
                o[b, t, h, j] = scale * sum(x["q"][b, t, h, i] * s[b, h // 2, i, j] for i in range(K))
    return o, s


@pytest.mark.parametrize("reverse", [False, True])
def test_it_is_the_definition_by_loops(reverse: bool) -> None:
    inputs = draw(B=2, states=2)
    found = gla(**inputs, scale=0.7, reverse=reverse)
    for got, want in zip(found, by_loops(inputs, 0.7, reverse), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-14)


def test_gates_of_0_on_values_are_none() -> None:
    inputs = draw()
    gv = inputs.pop("gv")
    for got, want in zip(gla(**inputs, gv=0 * np.abs(np.nan_to_num(gv))), gla(**inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    assert "gv" not in gla_vjp((np.ones((1, 5, 4, 2)), inputs["initial_state"]), **inputs)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_the_derivative_is_that_of_central_differences(cuts: list[int] | None, reverse: bool) -> None:
    inputs = draw(states=1 if cuts is None else len(cuts) - 1)
    random = np.random.default_rng(1)
    cotangents = random.standard_normal((1, 5, 4, 2)), random.standard_normal(inputs["initial_state"].shape)

    def loss() -> float:
        outputs = gla(**inputs, cu_seqlens=cuts, reverse=reverse)
        return sum(float(np.sum(d * y)) for d, y in zip(cotangents, outputs, strict=True))

    gradients = gla_vjp(cotangents, **inputs, cu_seqlens=cuts, reverse=reverse)
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
        np.testing.assert_allclose(gradients[name].reshape(-1), slopes, rtol=1e-7, atol=1e-8, err_msg=name)
