"""rms_norm and add_rms_norm on TPU: the door to the kernels. Rows are flattened to [N, D]; what needs no kernel is answered here."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from tops_kernels.ops.rms_norm import _pallas_tpu_bwd as bwd
from tops_kernels.ops.rms_norm import _pallas_tpu_fwd as fwd
from tops_kernels.ops.rms_norm.config import backward_config, default_config
from tops_kernels.runtime.chip import chip


def rms_norm_fwd(
    x: jax.Array, scale: jax.Array | None, *, eps: float, scale_offset: float, config: Any, interpret: Any
) -> jax.Array:
    """x [..., D], scale [D] or None -> y [..., D] in x's dtype."""
    if x.size == 0:
        return jnp.zeros_like(x)
    return _forward(x, None, scale, eps, scale_offset, config, interpret)[0].reshape(x.shape)


def add_rms_norm_fwd(
    x: jax.Array,
    residual: jax.Array,
    scale: jax.Array | None,
    *,
    eps: float,
    scale_offset: float,
    config: Any,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """x, residual [..., D] -> y, new_residual [..., D] in their dtype."""
    if x.size == 0:
        return jnp.zeros_like(x), jnp.zeros_like(x)
    y, h = _forward(x, residual, scale, eps, scale_offset, config, interpret)
    return y.reshape(x.shape), h.reshape(x.shape)


def _forward(
    x: jax.Array,
    residual: jax.Array | None,
    scale: jax.Array | None,
    eps: float,
    scale_offset: float,
    config: Any,
    interpret: Any,
) -> list[jax.Array]:
    rows = _rows(x)
    config = config or default_config(n=rows.shape[0], d=rows.shape[1])
    launch = fwd.whole_rows if config.block_d >= rows.shape[1] else fwd.split_rows
    return launch(
        rows,
        None if residual is None else _rows(residual),
        _factor(scale, scale_offset),
        eps=eps,
        config=config,
        interpret=interpret,
    )


def rms_norm_bwd(
    x: jax.Array,
    scale: jax.Array | None,
    dy: jax.Array,
    *,
    eps: float,
    scale_offset: float,
    config: Any,
    interpret: Any,
) -> tuple[jax.Array, jax.Array | None]:
    """x [..., D], dy [..., D] the cotangent of y -> gradients of x and scale, in their dtypes."""
    return _backward(x, None, scale, dy, None, eps, scale_offset, config, interpret)


def add_rms_norm_bwd(
    x: jax.Array,
    residual: jax.Array,
    scale: jax.Array | None,
    dy: jax.Array,
    dh: jax.Array,
    *,
    eps: float,
    scale_offset: float,
    config: Any,
    interpret: Any,
) -> tuple[jax.Array, jax.Array | None]:
    """x, residual [..., D], dy and dh the cotangents of y and new_residual -> gradients of the sum and of scale, in their dtypes."""
    return _backward(x, residual, scale, dy, dh, eps, scale_offset, config, interpret)


def _backward(
    x: jax.Array,
    residual: jax.Array | None,
    scale: jax.Array | None,
    dy: jax.Array,
    dh: jax.Array | None,
    eps: float,
    scale_offset: float,
    config: Any,
    interpret: Any,
) -> tuple[jax.Array, jax.Array | None]:
    if x.size == 0:
        return jnp.zeros_like(x), None if scale is None else jnp.zeros_like(scale)
    rows = _rows(x)
    config = config or backward_config(
        n=rows.shape[0],
        d=rows.shape[1],
        dtype=str(x.dtype),
        is_scaled=scale is not None,
        is_added=residual is not None,
        on=chip(),
    )
    launch = bwd.whole_rows if config.block_d >= rows.shape[1] else bwd.split_rows
    grad, dscale = launch(
        rows,
        None if residual is None else _rows(residual),
        _factor(scale, scale_offset),
        _rows(dy),
        None if dh is None else _rows(dh),
        eps=eps,
        config=config,
        interpret=interpret,
    )
    # Partial sums of the row blocks: [parts, D] float32, few rows; XLA adds them and rounds once.
    return grad.reshape(x.shape), None if scale is None else jnp.sum(dscale, axis=0).astype(scale.dtype)


def _rows(x: jax.Array) -> jax.Array:
    """[..., D] -> [N, D]."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _factor(scale: jax.Array | None, scale_offset: float) -> jax.Array | None:
    """[1, D] float32: D numbers, so XLA's work outside of the kernel is nothing beside it."""
    return None if scale is None else scale.astype(jnp.float32)[None, :] + scale_offset
