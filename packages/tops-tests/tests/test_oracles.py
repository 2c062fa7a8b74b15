"""The oracles by hand: numbers that can be worked out on paper, and what an oracle module must have."""

import math
import types

import numpy as np
import pytest

import tops_manifest
from tops_tests import oracles
from tops_tests.oracles import matmul as products
from tops_tests.oracles import rms_norm as norms


def test_rms_norm_of_three_four_is_on_paper() -> None:
    rms = math.sqrt((9 + 16) / 2)
    np.testing.assert_allclose(norms.rms_norm([3.0, 4.0], eps=0.0), [3 / rms, 4 / rms], rtol=1e-15)
    np.testing.assert_allclose(
        norms.rms_norm([3.0, 4.0], [1.0, 0.0], eps=0.0, scale_offset=1.0), [6 / rms, 4 / rms], rtol=1e-15
    )
    y, h = norms.add_rms_norm([1.0, 5.0], [2.0, -1.0], eps=0.0)
    np.testing.assert_allclose(y, [3 / rms, 4 / rms], rtol=1e-15)
    assert h.tolist() == [3.0, 4.0]


def test_without_scale_the_offset_is_not_added() -> None:
    np.testing.assert_array_equal(norms.rms_norm([3.0, 4.0], scale_offset=5.0), norms.rms_norm([3.0, 4.0]))


def test_matmul_of_small_integers_is_on_paper() -> None:
    a, b = [[1, 2], [3, 4]], [[5, 6], [7, 8]]
    assert products.matmul(a, b).tolist() == [[19, 22], [43, 50]]
    assert products.matmul(a, b, [-20, -20], activation="relu").tolist() == [[0, 2], [23, 30]]
    silu = products.matmul([[1.0]], [[2.0]], activation="silu")
    np.testing.assert_allclose(silu, [[2 / (1 + math.exp(-2))]], rtol=1e-15)
    gelu = products.matmul([[1.0]], [[1.0]], activation="gelu")
    np.testing.assert_allclose(gelu, [[0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715))]], rtol=1e-15)
    with pytest.raises(ValueError, match="matmul: activation is 'tanh'; expected none, relu, gelu or silu"):
        products.matmul(a, b, activation="tanh")


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_activations_neither_overflow_nor_vanish_at_the_ends(activation: str) -> None:
    with np.errstate(over="raise", invalid="raise"):
        low, high = (products.matmul([[z]], [[1.0]], activation=activation).item() for z in (-1e4, 1e4))
    assert low == pytest.approx(0.0, abs=1e-300)
    assert high == 1e4


@pytest.mark.parametrize("op", [op.name for op in tops_manifest.ops() if op.status == "implemented"])
def test_every_implemented_op_has_an_oracle_and_its_derivative_in_plain_numpy(op: str) -> None:
    contract = tops_manifest.op(op)
    assert callable(oracles.forward(contract))
    assert callable(oracles.backward(contract))
    text = oracles.module_path(contract).read_text(encoding="utf-8")
    assert "jax" not in text
    assert "float64" in text


def test_an_op_without_an_oracle_is_told_where_to_write_one(monkeypatch: pytest.MonkeyPatch) -> None:
    contract = tops_manifest.op("rms_norm")
    monkeypatch.setattr(oracles.importlib, "import_module", lambda name: types.ModuleType(name))  # an empty module
    with pytest.raises(oracles.OracleError, match="rms_norm"):
        oracles.forward(contract)(1.0)
