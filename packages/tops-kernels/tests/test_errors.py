"""Wrong calls: refused with op, argument, got and expected, in eager, jit and vmap alike, before XLA hears of them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tops_kernels import add_rms_norm, gla, gla_step, matmul, rms_norm, simple_gla, simple_gla_step


def _ones(shape: int | tuple[int, ...], dtype: Any = jnp.float32) -> np.ndarray[Any, Any]:
    """NumPy, not jnp: an array made at import would start a backend while pytest still collects."""
    return np.ones(shape, jnp.dtype(dtype))


X = _ones((4, 6))
SCALE = _ones(6)
A, B, BIAS = _ones((4, 6)), _ones((6, 5)), _ones(5)
Q, TOKEN, STATE = _ones((1, 3, 2, 4)), _ones((1, 2, 4)), _ones((1, 2, 4, 4))
EMPTY, PAIR = _ones((1, 0, 2, 4)), _ones((2, 3, 2, 4))
BOUNDS = np.array([0, 3], np.int32)

# name -> (function, arrays, static keywords, words that the message must hold)
WRONG: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = {
    "scale of another length": (rms_norm, (X, _ones(5)), {}, ("rms_norm: scale", "(5,)", "6")),
    "scale of another rank": (rms_norm, (X, _ones((1, 6))), {}, ("rms_norm: scale", "(1, 6)", "[D]")),
    "x of rank 0": (rms_norm, (np.float32(1.0),), {}, ("rms_norm: x", "()", "[*B, D]")),
    "x without columns": (rms_norm, (_ones((4, 0)),), {}, ("rms_norm: x", "(4, 0)")),
    "x of integers": (rms_norm, (_ones((4, 6), jnp.int32),), {}, ("rms_norm: x", "int32", "float32")),
    "x of float16": (rms_norm, (_ones((4, 6), jnp.float16),), {}, ("rms_norm: x", "float16", "bfloat16")),
    "scale of integers": (rms_norm, (X, _ones(6, jnp.int32)), {}, ("rms_norm: scale", "int32", "float32")),
    "negative eps": (rms_norm, (X,), {"eps": -1.0}, ("rms_norm: eps", "-1.0")),
    "eps not a number": (rms_norm, (X,), {"eps": float("nan")}, ("rms_norm: eps", "nan")),
    "eps a string": (rms_norm, (X,), {"eps": "small"}, ("rms_norm: eps", "'small'", "float")),
    "an infinite offset": (rms_norm, (X,), {"scale_offset": float("inf")}, ("rms_norm: scale_offset", "inf")),
    "an unknown backend": (rms_norm, (X,), {"backend": "cuda"}, ("rms_norm: backend", "'cuda'", "xla", "pallas_tpu")),
    "a backend of another type": (rms_norm, (X,), {"backend": 3}, ("rms_norm: backend", "int", "xla")),
    "interpret of another type": (rms_norm, (X,), {"interpret": "yes"}, ("rms_norm: interpret", "str", "True")),
    "interpret without a kernel": (
        rms_norm,
        (X,),
        {"interpret": True, "backend": "xla"},
        ("rms_norm: interpret", "Pallas"),
    ),
    "residual of another shape": (add_rms_norm, (X, _ones((3, 6))), {}, ("add_rms_norm: residual", "(3, 6)", "4")),
    "residual of another dtype": (
        add_rms_norm,
        (X, _ones((4, 6), jnp.bfloat16)),
        {},
        ("add_rms_norm: residual", "bfloat16", "float32"),
    ),
    "a and b that share no K": (matmul, (A, _ones((7, 5))), {}, ("matmul: b", "(7, 5)", "6")),
    "a of rank 1": (matmul, (_ones(6), B), {}, ("matmul: a", "(6,)", "[*B, M, K]")),
    "b of rank 1": (matmul, (A, _ones(6)), {}, ("matmul: b", "(6,)")),
    "b of another batch": (matmul, (_ones((2, 4, 6)), _ones((3, 6, 5))), {}, ("matmul: b", "(3, 6, 5)", "2")),
    "b of another dtype": (matmul, (A, B.astype(jnp.bfloat16)), {}, ("matmul: b", "bfloat16", "float32")),
    "bias of another length": (matmul, (A, B, _ones(4)), {}, ("matmul: bias", "(4,)", "5")),
    "an unknown activation": (matmul, (A, B), {"activation": "tanh"}, ("matmul: activation", "'tanh'", "gelu")),
    "an unknown out_dtype": (matmul, (A, B), {"out_dtype": "float64"}, ("matmul: out_dtype", "float64")),
    "integers with an activation": (
        matmul,
        (A.astype(jnp.int8), B.astype(jnp.int8)),
        {"activation": "relu"},
        ("matmul: activation", "relu"),
    ),
    "no step of gla": (gla, (EMPTY,) * 4, {}, ("gla: q", "T = 0", "T >= 1")),
    "no step of simple_gla": (simple_gla, (EMPTY,) * 3, {}, ("simple_gla: q", "T = 0", "T >= 1")),
    "heads that do not divide": (gla, (_ones((1, 3, 3, 4)), Q, Q, Q), {}, ("gla: k", "HQ = 3", "H = 2")),
    "gates of a head for those of channels": (gla, (Q, Q, Q, Q[..., 0]), {}, ("gla: g", "(1, 3, 2)", "(1, 3, 2, 4)")),
    "gates of channels for those of a head": (simple_gla, (Q,) * 4, {}, ("simple_gla: g", "(1, 3, 2, 4)")),
    "gates rounded": (gla, (Q, Q, Q, Q.astype(jnp.bfloat16)), {}, ("gla: g", "bfloat16", "float32")),
    "a state of another width": (gla, (Q, Q, Q, Q, _ones((1, 2, 4, 5))), {}, ("gla: initial_state", "(1, 2, 4, 5)")),
    "a batch of packs": (gla, (PAIR, PAIR, PAIR, PAIR, None, BOUNDS), {}, ("gla: q", "B = 2", "packed")),
    "boundaries of no sequence": (gla, (Q, Q, Q, Q, None, BOUNDS[:1]), {}, ("gla: cu_seqlens", "N = 0")),
    "boundaries that are no integers": (gla, (Q, Q, Q, Q, None, _ones(2)), {}, ("gla: cu_seqlens", "float32", "int32")),
    "an axis that is not there": (gla, (Q,) * 4, {"axis_name": "time"}, ("gla: axis_name", "'time'", "shard_map")),
    "decays of other heads": (simple_gla, (Q, Q, Q, None, _ones(3)), {}, ("simple_gla: g_gamma", "(3,)", "(2,)")),
    "states that are not the batch's": (gla_step, (*(TOKEN,) * 4, _ones((3, 2, 4, 4))), {}, ("gla_step: state", "3")),
    "places of other rows": (gla_step, (*(TOKEN,) * 4, STATE, BOUNDS), {}, ("gla_step: index", "(2,)", "(1,)")),
    "a pool of none": (gla_step, (*(TOKEN,) * 4, STATE[:0], BOUNDS[:1]), {}, ("gla_step: state", "P = 0")),
    "gates where the state belongs": (
        simple_gla_step,
        (TOKEN, TOKEN, TOKEN, TOKEN[..., 0], STATE),
        {},
        ("simple_gla_step: state", "(1, 2)"),
    ),
    "floats into int32": (matmul, (A, B), {"out_dtype": "int32"}, ("matmul: out_dtype", "int32")),
}
# What jax.jit itself would refuse, or take apart, before any check of ours could run.
UNTRACEABLE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = {
    "a list": (rms_norm, ([1.0, 2.0],), {}, ("rms_norm: x", "list", "jnp.asarray(x)")),
    "a string": (rms_norm, ("x",), {}, ("rms_norm: x", "str", "an array")),
    "None": (rms_norm, (None,), {}, ("rms_norm: x", "None")),
    "a shape without values": (rms_norm, (jax.ShapeDtypeStruct((4, 6), jnp.float32),), {}, ("rms_norm: x", "an array")),
    "an object": (matmul, (A, object()), {}, ("matmul: b", "object", "an array")),
    "a tuple of arrays": (matmul, ((A, A), B), {}, ("matmul: a", "tuple", "an array")),
    "an unhashable eps": (rms_norm, (X,), {"eps": [1e-6]}, ("rms_norm: eps", "list", "float")),
    "an array as eps": (rms_norm, (X,), {"eps": np.ones((), np.float32)}, ("rms_norm: eps", "static")),
    "an unhashable activation": (matmul, (A, B), {"activation": ["relu"]}, ("matmul: activation", "list")),
    "NumPy strings": (rms_norm, (np.array(["a"]),), {}, ("rms_norm: x", "float32")),
}


def _assert_named(error: BaseException, words: tuple[str, ...]) -> None:
    assert isinstance(error, ValueError | TypeError)
    missing = [word for word in words if word not in str(error)]
    assert not missing, f"{error} lacks {missing}"
    assert len(str(error)) < 400


@pytest.mark.parametrize("name", [*WRONG, *UNTRACEABLE])
def test_a_wrong_call_is_refused_by_name(name: str) -> None:
    function, arrays, keywords, words = (WRONG | UNTRACEABLE)[name]
    with pytest.raises((ValueError, TypeError)) as caught:
        function(*arrays, **keywords)
    _assert_named(caught.value, words)


@pytest.mark.parametrize("name", WRONG)
def test_under_jit_and_eval_shape_the_message_is_the_same(name: str) -> None:
    function, arrays, keywords, words = WRONG[name]
    messages = []
    for wrap in (lambda f: f, jax.jit, lambda f: lambda *xs: jax.eval_shape(f, *xs)):
        with pytest.raises((ValueError, TypeError)) as caught:
            wrap(lambda *xs: function(*xs, **keywords))(*arrays)
        _assert_named(caught.value, words)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1


@pytest.mark.parametrize("name", WRONG)
def test_under_vmap_and_grad_it_is_refused_by_name(name: str) -> None:
    function, arrays, keywords, words = WRONG[name]
    stacked = tuple(None if array is None else jnp.stack([array, array]) for array in arrays)
    with pytest.raises((ValueError, TypeError)) as caught:
        jax.vmap(lambda *xs: function(*xs, **keywords))(*stacked)
    _assert_named(caught.value, words)
    if all(array is None or jnp.issubdtype(array.dtype, jnp.floating) for array in arrays):
        with pytest.raises((ValueError, TypeError)) as caught:
            jax.vjp(lambda *xs: function(*xs, **keywords), *arrays)
        _assert_named(caught.value, words)


def _compilations(call: Callable[[], Any]) -> int:
    """How many programs XLA was given while `call` ran, whether it raised or not."""
    events: list[str] = []

    def listener(event: str, *_: Any, **__: Any) -> None:
        events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        call()
    except (ValueError, TypeError):
        pass
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    return sum("backend_compile" in event for event in events)


@pytest.mark.parametrize("name", WRONG)
def test_nothing_is_compiled_for_a_wrong_call(name: str) -> None:
    function, arrays, keywords, _ = WRONG[name]
    assert _compilations(lambda: function(*arrays, **keywords)) == 0


def test_compilations_are_counted() -> None:
    """Else the test before could not fail."""
    assert _compilations(lambda: rms_norm(jnp.ones((3, 11)), eps=0.123)) >= 1


def test_a_wrong_call_leaves_no_trace_in_the_next_right_one() -> None:
    with pytest.raises(ValueError, match="scale"):
        rms_norm(X, jnp.ones(5))
    assert rms_norm(X, SCALE).shape == X.shape
    with pytest.raises(ValueError, match="bias"):
        matmul(A, B, jnp.ones(4))
    assert matmul(A, B, BIAS).shape == (4, 5)


@pytest.mark.parametrize("backend", ["pallas_tpu", "pallas_gpu"])
@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "matmul"])
def test_a_forced_kernel_is_refused_on_this_platform_and_says_what_to_do(op: str, backend: str) -> None:
    call = {
        "rms_norm": lambda: rms_norm(X, backend=backend),
        "add_rms_norm": lambda: add_rms_norm(X, X, backend=backend),
        "matmul": lambda: matmul(A, B, backend=backend),
    }[op]
    with pytest.raises(ValueError, match=f"^{op}: backend='{backend}' has no kernel for cpu") as caught:
        call()
    assert "interpret=True" in str(caught.value)
