"""OpTest.check: shape and dtype exactly, then values by name. Everything a kernel may get wrong is told as what it is."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels
import tops_manifest
from tops_tests import ConformanceError, OpTest, oracles
from tops_tests.conformance import drawing
from tops_tests.tolerances import tolerance


@pytest.fixture(scope="module")
def test() -> OpTest:
    return OpTest(drawing.tiny(tops_manifest.op("add_rms_norm"), size=5))


@pytest.fixture(scope="module")
def inputs(test: OpTest) -> dict[str, jax.Array]:
    return test.gen_inputs(jax.random.key(0))


@pytest.fixture(scope="module")
def outputs(inputs: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    return tops_kernels.add_rms_norm(**inputs)


def test_right_outputs_are_measured_by_name(test: OpTest, inputs: Any, outputs: Any) -> None:
    found = test.check(outputs, inputs)
    assert set(found) == {"y", "new_residual"}
    for name, one in found.items():
        assert 0 <= one.measured <= one.tolerance == tolerance("add_rms_norm", "float32", name, "fwd")


WRONG: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "one output too few": (lambda y, h: y, r"1 arrays; expected 2: y, new_residual"),
    "one too many": (lambda y, h: (y, h, h), r"3 arrays; expected 2"),
    "outputs swapped": (lambda y, h: (h, y), r"y is off by"),
    "another shape": (lambda y, h: (y[0], h), r"y is float32\[.*\]; expected float32\["),
    "another dtype": (lambda y, h: (y.astype(jnp.bfloat16), h), r"y is bfloat16\[.*\]; expected float32\["),
    "a NumPy array": (lambda y, h: (np.asarray(y), h), r"y is a ndarray; expected a jax.Array"),
    "a little off": (lambda y, h: (y * (1 + 1e-5), h), r"y is off by .*e-06 \(relative, by norm\); tolerance 1e-06"),
    "off in one element": (lambda y, h: (y, h.at[0, 0].add(1e-3)), r"new_residual is off by"),
    "a NaN": (lambda y, h: (y.at[1, 2].set(jnp.nan), h), r"y is NaN at \(1, 2\)"),
    "an infinity": (lambda y, h: (y, h.at[1, 2].set(jnp.inf)), r"new_residual is inf at \(1, 2\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_outputs_are_told_as_what_they_are(name: str, test: OpTest, inputs: Any, outputs: Any) -> None:
    change, says = WRONG[name]
    with pytest.raises(ConformanceError, match=says) as caught:
        test.check(change(*outputs), inputs)
    assert str(caught.value).startswith("add_rms_norm (x float32[")


def test_a_weakly_typed_result_is_a_fault() -> None:
    test = OpTest(drawing.tiny(tops_manifest.op("rms_norm"), dims={"B": (), "D": 1}))
    inputs = test.gen_inputs(jax.random.key(0))
    weak = jnp.asarray(1.0)[None] if jnp.asarray(1.0).weak_type else jax.lax.broadcast(1.0, (1,))
    assert weak.weak_type
    with pytest.raises(ConformanceError, match="weakly typed"):
        test.check(weak, inputs)


def test_gradients_are_held_by_name_dtype_and_value(test: OpTest, inputs: Any) -> None:
    cotangents = test.gen_cotangents(jax.random.key(1))
    assert test.differentiable == ("x", "residual", "scale")
    right = dict(zip(inputs, jax.vjp(tops_kernels.add_rms_norm, *inputs.values())[1](cotangents), strict=True))
    assert set(test.check_gradients(right, cotangents, inputs)) == {"dx", "dresidual", "dscale"}
    for change, says in (
        ({"x": right["x"] * 1.01}, r"dx is off by"),
        ({"scale": right["scale"].astype(jnp.bfloat16)}, r"dscale is bfloat16"),
        ({"residual": jnp.zeros_like(right["residual"])}, r"dresidual is off by"),
    ):
        with pytest.raises(ConformanceError, match=says):
            test.check_gradients({**right, **change}, cotangents, inputs)
    with pytest.raises(ConformanceError, match=r"gradients of .*; expected"):
        test.check_gradients({"x": right["x"]}, cotangents, inputs)


def test_integers_must_be_exact() -> None:
    case = drawing.tiny(tops_manifest.op("matmul"), dtypes={"X": "int8"})
    test = OpTest(case)
    inputs = test.gen_inputs(jax.random.key(0))
    right = tops_kernels.matmul(**inputs)
    assert test.check(right, inputs)["y"].measured == 0.0
    assert test.differentiable == ()
    with pytest.raises(ConformanceError, match="y is off by"):
        test.check(right.at[0, 0, 0].add(1), inputs)


def test_an_oracle_out_of_memory_is_a_fault_and_no_pass(test: OpTest, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(oracles, "forward", lambda op: exhausted)
    inputs = test.gen_inputs(jax.random.key(0))
    with pytest.raises(ConformanceError, match="the oracle ran out of memory; give it a smaller case"):
        test.check(tops_kernels.add_rms_norm(**inputs), inputs)


def test_cotangents_are_the_outputs_in_shape_and_dtype_and_depend_on_the_key(test: OpTest) -> None:
    first, other = (test.gen_cotangents(jax.random.key(seed)) for seed in (0, 1))
    assert [c.shape for c in first] == [spec.shape for spec in test.case.outputs().values()]
    assert not np.array_equal(first[0], other[0])
    assert not np.array_equal(first[0], first[1])
