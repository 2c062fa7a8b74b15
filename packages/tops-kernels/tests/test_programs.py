"""What a call adds to the compiled program, and when it compiles again."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tops_kernels import configurations, matmul, rms_norm, use_config
from tops_kernels.ops.rms_norm.config import RmsNormTpuConfig

# NumPy, not jnp: an array made at import would start a backend while pytest still collects.
X, SCALE, W = (np.ones(shape, np.float32) for shape in ((64, 96), (96,), (96, 32)))


def _jnp_rms_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def _jnp_matmul(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision="highest", preferred_element_type=jnp.float32).astype(a.dtype)


def _ops(function: Callable[..., Any], *arrays: Any) -> int:
    """Instructions of the optimized program on this platform."""
    text = jax.jit(function).lower(*arrays).compile().as_text()
    return len(re.findall(r"^\s+(?:ROOT )?%?[\w.-]+ = ", text, re.MULTILINE))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_under_jit_rms_norm_is_as_many_instructions_as_jnp(dtype: str) -> None:
    x = jnp.asarray(X, dtype)
    assert abs(_ops(lambda x, s: rms_norm(x, s), x, SCALE) - _ops(_jnp_rms_norm, x, SCALE)) <= 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_under_jit_matmul_is_as_many_instructions_as_jnp(dtype: str) -> None:
    a, b = jnp.asarray(X, dtype), jnp.asarray(W, dtype)
    assert abs(_ops(lambda a, b: matmul(a, b), a, b) - _ops(_jnp_matmul, a, b)) <= 2


def test_instructions_are_counted() -> None:
    assert _ops(lambda x: jnp.sin(x) @ jnp.cos(x).T, X) > _ops(lambda x: x + 1, X) > 1


def _traces(calls: Callable[[], Any]) -> int:
    count = 0

    def listener(event: str, *_: Any, **__: Any) -> None:
        nonlocal count
        count += event == "/jax/core/compile/jaxpr_trace_duration"

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        calls()
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    return count


def test_a_second_call_traces_nothing() -> None:
    x = jnp.ones((5, 7))
    assert _traces(lambda: rms_norm(x, eps=1e-3)) >= 1
    assert _traces(lambda: rms_norm(x + 1, eps=1e-3)) <= 1  # the addition's own
    assert _traces(lambda: rms_norm(x, eps=1e-3)) == 0
    assert _traces(lambda: rms_norm(x, eps=1e-4)) >= 1


def test_a_configuration_is_part_of_what_is_compiled_and_ends_with_its_block() -> None:
    x = jax.random.normal(jax.random.key(0), (64, 256))
    spaces = configurations("rms_norm", "pallas_tpu", "fwd", {"x": x}, {}, "v5e")
    assert len(spaces) >= 3
    assert len(set(spaces)) == len(spaces)

    def program() -> str:
        return jax.jit(lambda x: rms_norm(x)).trace(x).lower(lowering_platforms=("tpu",)).as_text()

    plain = program()
    texts = []
    for config in spaces:
        with use_config("rms_norm", "fwd", config):
            texts.append(program())
    assert texts[0] == plain  # the heuristic's choice comes first
    assert len(set(texts)) == len(spaces)
    assert program() == plain


def test_configurations_change_no_value() -> None:
    a, b = jax.random.normal(jax.random.key(0), (40, 300)), jax.random.normal(jax.random.key(1), (300, 260))
    want = matmul(a, b, backend="xla")
    spaces = configurations("matmul", "pallas_tpu", "fwd", {"a": a, "b": b}, {}, "v5e")
    for config in spaces[:: max(len(spaces) // 3, 1)]:
        with use_config("matmul", "fwd", config):
            assert jnp.allclose(matmul(a, b, interpret=True), want, rtol=1e-5, atol=1e-4)


def _gradients(x: np.ndarray, scale: np.ndarray, dy: np.ndarray, *, mxu_squares: bool) -> list[np.ndarray]:
    with use_config("rms_norm", "vjp", RmsNormTpuConfig(block_n=64, block_d=x.shape[1], mxu_squares=mxu_squares)):
        _, back = jax.vjp(lambda x, scale: rms_norm(x, scale, interpret=True), jnp.asarray(x), jnp.asarray(scale))
        return [np.asarray(one, np.float32) for one in back(jnp.asarray(dy))]


@pytest.mark.parametrize("rows", [128, 200])
def test_squares_added_up_by_the_mxu_give_the_same_gradients_and_keep_a_nan_to_its_row(rows: int) -> None:
    random = np.random.default_rng(7)
    x, dy = (random.normal(size=(rows, 256)).astype(jnp.bfloat16) for _ in range(2))
    scale = random.normal(size=256).astype(np.float32)
    plain, plain_scale = _gradients(x, scale, dy, mxu_squares=False)
    mxu, mxu_scale = _gradients(x, scale, dy, mxu_squares=True)
    np.testing.assert_allclose(mxu, plain, rtol=2**-7)
    np.testing.assert_allclose(mxu_scale, plain_scale, rtol=1e-5, atol=1e-5)
    x[5, 3] = np.nan
    broken, _ = _gradients(x, scale, dy, mxu_squares=True)
    others = np.arange(rows) != 5
    np.testing.assert_array_equal(broken[others], mxu[others])
    assert np.isnan(broken[5]).any()


def test_configurations_nest_and_are_each_ops_and_each_passes_own() -> None:
    from tops_kernels.runtime.overrides import current

    with use_config("rms_norm", "fwd", "outer"), use_config("rms_norm", "vjp", "back"):
        with use_config("rms_norm", "fwd", "inner"), use_config("matmul", "fwd", "other"):
            assert dict(current("rms_norm")) == {"fwd": "inner", "vjp": "back"}
            assert dict(current("matmul")) == {"fwd": "other"}
        assert dict(current("rms_norm")) == {"fwd": "outer", "vjp": "back"}
        assert current("matmul") == ()
    assert current("rms_norm") == ()


def test_a_configuration_reaches_its_own_kernel_and_no_other(
    on: Callable[[str], contextlib.AbstractContextManager[object]],
) -> None:
    inputs = {"x": X}
    tpu, gpu = (configurations("rms_norm", key, "fwd", inputs, {}, "") for key in ("pallas_tpu", "pallas_gpu"))
    programs: dict[str, set[str]] = {"tpu": set(), "cuda": set()}
    for config in (tpu[0], tpu[1], gpu[0], gpu[1]):
        for platform, found in programs.items():
            with use_config("rms_norm", "fwd", config), on(platform):
                traced = jax.jit(lambda x: rms_norm(x)).trace(X)
                found.add(traced.lower(lowering_platforms=(platform,)).as_text())
    assert {platform: len(found) for platform, found in programs.items()} == {"tpu": 2, "cuda": 2}


@pytest.mark.parametrize("config", ["fast", 3, ("block_n", 16)])
def test_what_is_no_configuration_of_the_op_is_refused(config: Any) -> None:
    with (
        use_config("rms_norm", "fwd", config),
        pytest.raises(
            TypeError, match=r"rms_norm: configuration is of type .*; expected RmsNormTpuConfig or RmsNormGpuConfig"
        ),
    ):
        rms_norm(X)


def test_an_op_or_implementation_without_choices_has_no_configurations() -> None:
    assert configurations("rms_norm", "xla", "fwd", {"x": X}, {}, "cpu") == ()
    with pytest.raises(KeyError, match="nonsense"):
        configurations("nonsense", "xla", "fwd", {"x": X}, {}, "cpu")
