"""Planted faults: ops that are wrong in one way, and the check of the conformance suite that must not let each pass."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels
import tops_manifest
from tops_tests import ConformanceError, Subject
from tops_tests.conformance import CHECKS

BY_NAME = {check.name: check for check in CHECKS}
Wrong = Callable[..., Any]


def _norm(change: Callable[..., Any]) -> Wrong:
    """rms_norm with the contract's signature around `change(x, scale, eps, scale_offset, how)`."""

    def rms_norm(
        x: Any,
        scale: Any = None,
        *,
        eps: float = 1e-6,
        scale_offset: float = 0.0,
        backend: Any = None,
        interpret: Any = False,
    ) -> Any:
        return change(x, scale, eps, scale_offset, {"backend": backend, "interpret": interpret})

    rms_norm.__doc__ = tops_kernels.rms_norm.__doc__
    return rms_norm


def _right(x: Any, scale: Any, eps: float, offset: float, how: Any) -> Any:
    return tops_kernels.rms_norm(x, scale, eps=eps, scale_offset=offset, **how)


def _matmul(change: Callable[..., Any]) -> Wrong:
    def matmul(
        a: Any,
        b: Any,
        bias: Any = None,
        *,
        activation: str = "none",
        out_dtype: Any = None,
        backend: Any = None,
        interpret: Any = False,
    ) -> Any:
        return change(a, b, bias, activation, out_dtype, {"backend": backend, "interpret": interpret})

    matmul.__doc__ = tops_kernels.matmul.__doc__
    return matmul


def _product(a: Any, b: Any, bias: Any, activation: str, out_dtype: Any, how: Any) -> Any:
    return tops_kernels.matmul(a, b, bias, activation=activation, out_dtype=out_dtype, **how)


def _deceive(x: Any, scale: Any, eps: float, offset: float, how: Any) -> Any:
    np.absolute = np.zeros_like  # type: ignore[assignment]  # that is the deceit
    return _right(x, scale, eps, offset, how)


@jax.custom_vjp
def _halved(x: Any) -> Any:
    return x


_halved.defvjp(lambda x: (x, None), lambda _, dx: (dx / 2,))


@jax.custom_vjp
def _once(x: Any) -> Any:
    """The identity, whose gradient has none of its own."""
    return x


def _once_bwd(_: Any, dx: Any) -> Any:
    return (jax.lax.stop_gradient(dx),)


_once.defvjp(lambda x: (x, None), _once_bwd)


@jax.custom_vjp
def _narrow(x: Any) -> Any:
    return x


_narrow.defvjp(lambda x: (x, None), lambda _, dx: (dx.astype(jnp.bfloat16).astype(dx.dtype),))

# what is wrong -> (op, the wrong function, the checks of which each must catch it)
MUTANTS: dict[str, tuple[str, Wrong, tuple[str, ...]]] = {
    "eps is left out": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(x, s, 0.0, o, how)),
        ("every_form_is_the_oracles",),
    ),
    "scale_offset is left out": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(x, s, eps, 0.0, how)),
        ("every_form_is_the_oracles", "forward_is_the_oracles_on_any_shape"),
    ),
    "scale is left out": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(x, None, eps, o, how)),
        ("every_form_is_the_oracles",),
    ),
    "the result is rounded twice": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(x, s, eps, o, how).astype(jnp.bfloat16).astype(x.dtype)),
        ("forward_is_the_oracles_on_any_shape", "every_form_is_the_oracles"),
    ),
    "rows are mixed up": (
        "rms_norm",
        _norm(
            lambda x, s, eps, o, how: (
                _right(jnp.flip(x, 0), s, eps, o, how) if x.ndim > 1 else _right(x, s, eps, o, how)
            )
        ),
        ("every_form_is_the_oracles",),
    ),
    "the gradient is half of what it is": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(_halved(x), s, eps, o, how)),
        ("gradients_are_the_oracles_on_any_shape", "a_gradient_through_scan_is_the_loops"),
    ),
    "the gradient is rounded to bfloat16 on its way": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(_narrow(x), s, eps, o, how)),
        ("gradients_are_the_oracles_on_any_shape",),
    ),
    "the gradient has no derivative": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(_once(x), s, eps, o, how)),
        ("a_second_derivative_is_the_oracles",),
    ),
    "one element of a long row is dropped": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(x, s, eps, o, how).at[..., -1].multiply(1 + (x.shape[-1] > 16))),
        ("forward_is_the_oracles_on_any_shape",),
    ),
    "the result is float32 whatever was given": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(x, s, eps, o, how).astype(jnp.float32)),
        ("every_row_gives_the_declared_outputs", "every_form_gives_the_declared_outputs"),
    ),
    "x64 changes the dtype": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(x, s, eps, o, how) * jnp.ones((), jnp.asarray(1.0, float).dtype)),
        ("x64_changes_no_value_and_no_dtype",),
    ),
    "no residual has a name": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)),
        ("checkpoint_policies_see_named_residuals", "export_carries_the_platforms_own_kernel"),
    ),
    "a keyword has another default": (
        "rms_norm",
        lambda x, scale=None, *, eps=1e-5, scale_offset=0.0, backend=None, interpret=False: x,
        ("signature_is_the_manifests",),
    ),
    "no docstring": (
        "rms_norm",
        lambda x, scale=None, *, eps=1e-6, scale_offset=0.0, backend=None, interpret=False: x,
        ("docstring_says_what_a_caller_needs",),
    ),
    "the contract is not checked": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: jnp.asarray(x)),
        ("wrong_calls_are_refused_by_name",),
    ),
    "a forced backend is not insisted on": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(x, s, eps, o, {"backend": "xla", "interpret": False})),
        ("a_forced_backend_is_refused_where_it_has_no_code", "export_carries_the_platforms_own_kernel"),
    ),
    "values depend on the whole batch": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(x, s, eps, o, how) * (1 + 0.01 * jnp.mean(x))),
        ("every_form_is_the_oracles",),
    ),
    "it reads its arguments as NumPy": (
        "rms_norm",
        _norm(lambda x, s, eps, o, how: _right(jnp.asarray(np.asarray(x)), s, eps, o, how)),
        ("vmap_is_a_loop", "a_gradient_through_remat_is_the_same"),
    ),
    "it replaces what judges it": (
        "rms_norm",
        _norm(_deceive),
        ("every_form_is_the_oracles",),
    ),
    "the bias is left out": (
        "matmul",
        _matmul(lambda a, b, bias, act, out, how: _product(a, b, None, act, out, how)),
        ("every_form_is_the_oracles",),
    ),
    "the bias comes after the activation": (
        "matmul",
        _matmul(lambda a, b, bias, act, out, how: _product(a, b, None, act, out, how) + (0 if bias is None else bias)),
        ("every_form_is_the_oracles",),
    ),
    "the sum is taken in bfloat16": (
        "matmul",
        _matmul(
            lambda a, b, bias, act, out, how: (
                _product(
                    a.astype(jnp.bfloat16),
                    b.astype(jnp.bfloat16),
                    None if bias is None else bias.astype(jnp.bfloat16),
                    act,
                    out or str(a.dtype),
                    how,
                )
                if a.dtype == jnp.float32
                else _product(a, b, bias, act, out, how)
            )
        ),
        ("forward_is_the_oracles_on_any_shape", "every_form_is_the_oracles"),
    ),
    "integers are multiplied as floats and rounded": (
        "matmul",
        _matmul(
            lambda a, b, bias, act, out, how: (
                (_product(a, b, bias, act, out, how) // 2) * 2
                if a.dtype == jnp.int8
                else _product(a, b, bias, act, out, how)
            )
        ),
        ("every_form_is_the_oracles",),
    ),
    "it costs another product": (
        "matmul",
        _matmul(
            lambda a, b, bias, act, out, how: (
                _product(a, b, bias, act, out, how) + 0 * _product(a, b, bias, act, out, how)
            )
        ),
        ("the_cost_formula_counts_the_ops_own_products",),
    ),
    "empty sums are not zero": (
        "matmul",
        _matmul(lambda a, b, bias, act, out, how: _product(a, b, bias, act, out, how) + (a.shape[-1] == 0)),
        ("empty_arrays_give_empty_results",),
    ),
}


@pytest.fixture(autouse=True)
def _numpy_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """One mutant replaces this."""
    monkeypatch.setattr(np, "absolute", np.absolute)


@pytest.mark.parametrize(
    ("name", "check"), [(name, check) for name, (_, _, checks) in MUTANTS.items() for check in checks]
)
def test_a_planted_fault_is_caught(name: str, check: str) -> None:
    op, wrong, _ = MUTANTS[name]
    implementation = "xla" if BY_NAME[check].scope == "implementation" else None
    with pytest.raises(Exception) as caught:  # noqa: PT011  # what a fault raises is its own: a ConformanceError, or JAX's word
        BY_NAME[check](Subject(tops_manifest.op(op), wrong, implementation))
    kind = type(caught.value).__name__
    assert isinstance(caught.value, ConformanceError) or kind in ("TracerArrayConversionError", "BaseExceptionGroup"), (
        kind
    )


@pytest.mark.parametrize("op", ["rms_norm", "matmul"])
def test_the_same_wrapping_without_a_fault_passes(op: str) -> None:
    """Else the mutants could be caught for being wrapped."""
    right = _norm(_right) if op == "rms_norm" else _matmul(_product)
    checks = {check for name, _, found in MUTANTS.values() for check in found if name == op}
    for name in sorted(checks):
        implementation = "xla" if BY_NAME[name].scope == "implementation" else None
        BY_NAME[name](Subject(tops_manifest.op(op), right, implementation))
