"""y = activation(a @ b + bias): BLAS level 3 gemm with an epilogue (gelu in its tanh form, arXiv:1606.08415 section 2)."""

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def matmul(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    activation: str = "none",
    out_dtype: str | None = None,
) -> Array:
    """a [*B, M, K], b [K, N] or [*B, K, N], bias [N] -> y [*B, M, N], not rounded (so out_dtype decides nothing here).

    Integers are exact in float64 while K * 127^2 < 2^53.
    """
    return _activated(_linear(_f64(a), _f64(b), bias), activation)


def matmul_vjp(
    cotangents: tuple[npt.ArrayLike, ...],
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    activation: str = "none",
    out_dtype: str | None = None,
) -> dict[str, Array]:
    """dz = dy * activation'(z);  da = dz b^T;  db = a^T dz and dbias = dz, each summed over what it was broadcast along."""
    a, b = _f64(a), _f64(b)
    dz = _f64(cotangents[0]) * _slope(_linear(a, b, bias), activation)
    db = np.swapaxes(a, -1, -2) @ dz  # [*B, K, N]
    gradients = {
        "a": dz @ np.swapaxes(b, -1, -2),
        "b": db if b.ndim == db.ndim else db.sum(axis=tuple(range(db.ndim - 2))),
    }
    if bias is not None:
        gradients["bias"] = dz.sum(axis=tuple(range(dz.ndim - 1)))
    return gradients


def _f64(array: npt.ArrayLike) -> Array:
    return np.asarray(array).astype(np.float64)


def _linear(a: Array, b: Array, bias: npt.ArrayLike | None) -> Array:
    z = a @ b
    return z if bias is None else z + _f64(bias)


def _activated(z: Array, activation: str) -> Array:
    match activation:
        case "none":
            return z
        case "relu":
            return np.where(z > 0, z, 0.0)
        case "gelu":
            return 0.5 * z * (1.0 + np.tanh(_SQRT_2_OVER_PI * (z + 0.044715 * z**3)))
        case "silu":
            return z * _sigmoid(z)
    raise ValueError(f"matmul: activation is {activation!r}; expected none, relu, gelu or silu")


def _slope(z: Array, activation: str) -> Array:
    """The activation's derivative; relu's at 0 is 0."""
    match activation:
        case "none":
            return np.ones_like(z)
        case "relu":
            return np.where(z > 0, 1.0, 0.0)
        case "gelu":
            t = np.tanh(_SQRT_2_OVER_PI * (z + 0.044715 * z**3))
            return 0.5 * (1.0 + t) + 0.5 * z * (1.0 - t * t) * _SQRT_2_OVER_PI * (1.0 + 3 * 0.044715 * z**2)
        case "silu":
            s = _sigmoid(z)
            return s * (1.0 + z * (1.0 - s))
    raise ValueError(f"matmul: activation is {activation!r}; expected none, relu, gelu or silu")


def _sigmoid(z: Array) -> Array:
    e = np.exp(-np.abs(z))  # <= 1: no overflow however large |z|
    return np.where(z >= 0, 1.0, e) / (1.0 + e)
