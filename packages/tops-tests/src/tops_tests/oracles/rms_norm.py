"""Root mean square norm (arXiv:1910.07467 eq. 4), alone and after a residual sum."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def rms_norm(
    x: npt.ArrayLike, scale: npt.ArrayLike | None = None, *, eps: float = 1e-6, scale_offset: float = 0.0
) -> Array:
    """y = x / sqrt(mean(x^2) + eps) * (scale + scale_offset) along the last axis; without a scale the last factor is 1."""
    x = _f64(x)
    return x / _rms(x, eps) * _factor(scale, scale_offset)


def rms_norm_vjp(
    cotangents: tuple[npt.ArrayLike, ...],
    x: npt.ArrayLike,
    scale: npt.ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    scale_offset: float = 0.0,
) -> dict[str, Array]:
    """With r = sqrt(mean(x^2) + eps) and u = dy * (scale + scale_offset):

    dx = u / r - x * sum(u x) / (D r^3);   dscale = sum over rows of dy x / r
    """
    x, dy = _f64(x), _f64(cotangents[0])
    r = _rms(x, eps)
    u = dy * _factor(scale, scale_offset)
    gradients = {"x": u / r - x * np.sum(u * x, axis=-1, keepdims=True) / (x.shape[-1] * r**3)}
    if scale is not None:
        gradients["scale"] = np.sum(dy * x / r, axis=tuple(range(x.ndim - 1)))
    return gradients


def add_rms_norm(
    x: npt.ArrayLike,
    residual: npt.ArrayLike,
    scale: npt.ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    scale_offset: float = 0.0,
) -> tuple[Array, Array]:
    """h = x + residual;  y = rms_norm(h), from h before it is rounded;  new_residual = h."""
    h = _f64(x) + _f64(residual)
    return rms_norm(h, scale, eps=eps, scale_offset=scale_offset), h


def add_rms_norm_vjp(
    cotangents: tuple[npt.ArrayLike, ...],
    x: npt.ArrayLike,
    residual: npt.ArrayLike,
    scale: npt.ArrayLike | None = None,
    *,
    eps: float = 1e-6,
    scale_offset: float = 0.0,
) -> dict[str, Array]:
    """dx = dresidual = d new_residual + what the norm sends back to h."""
    dy, dh = cotangents
    h = _f64(x) + _f64(residual)
    through_norm = rms_norm_vjp((dy,), h, scale, eps=eps, scale_offset=scale_offset)
    total = _f64(dh) + through_norm.pop("x")
    return {"x": total, "residual": total, **through_norm}


def _f64(array: npt.ArrayLike) -> Array:
    return np.asarray(array).astype(np.float64)


def _rms(x: Array, eps: float) -> Array:
    return np.asarray(np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps))


def _factor(scale: npt.ArrayLike | None, scale_offset: float) -> Array:
    return np.ones(()) if scale is None else _f64(scale) + scale_offset
