"""rms_norm and add_rms_norm on NVIDIA GPUs, by Triton. Rows are flattened to [N, D]; what needs no kernel is answered here.

A program holds a block of rows in registers, columns padded to a power of two and masked. Rows wider than a block are read
twice: for the statistics, then for the outputs. The backward pass sums scale's gradient over the rows of a program; XLA adds the programs'.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from tops_kernels.ops.rms_norm._pallas_gpu_config import RmsNormGpuConfig, default_config, steps
from tops_kernels.runtime.manual import shape_like


def rms_norm_fwd(
    x: jax.Array, scale: jax.Array | None, *, eps: float, scale_offset: float, config: Any, interpret: Any
) -> jax.Array:
    """x [..., D], scale [D] or None -> y [..., D] in x's dtype."""
    if x.size == 0:
        return jnp.zeros_like(x)
    return _forward(x, None, scale, eps, scale_offset, config, interpret)[0]


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
    return y, h


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


def _forward(
    x: jax.Array,
    residual: jax.Array | None,
    scale: jax.Array | None,
    eps: float,
    scale_offset: float,
    config: RmsNormGpuConfig | None,
    interpret: Any,
) -> list[jax.Array]:
    rows = _rows(x)
    n, d = rows.shape
    config = config or default_config(n=n, d=d)
    block = pl.BlockSpec((config.block_n, d), lambda i: (i, 0))  # x, residual, y, h: GMEM; a program's rows
    weight = pl.BlockSpec((1, d), lambda i: (0, 0))  # factor: GMEM; from the caches after the first program
    given = {
        "x": (rows, block),
        "residual": (None if residual is None else _rows(residual), block),
        "factor": (_factor(scale, scale_offset), weight),
    }
    operands = {name: pair for name, pair in given.items() if pair[0] is not None}
    outputs = 1 if residual is None else 2
    out: list[jax.Array] = pl.pallas_call(
        functools.partial(_forward_body, names=tuple(operands), eps=eps, n=n, d=d, config=config),
        name="rms_norm_fwd" if residual is None else "add_rms_norm_fwd",
        grid=(pl.cdiv(n, config.block_n),),
        in_specs=[spec for _, spec in operands.values()],
        out_specs=[block] * outputs,
        out_shape=[shape_like((n, d), x.dtype, rows)] * outputs,
        compiler_params=plgpu.CompilerParams(num_warps=config.num_warps),
        interpret=interpret,
    )(*(array for array, _ in operands.values()))
    return [array.reshape(x.shape) for array in out]


def _forward_body(*refs: Any, names: tuple[str, ...], eps: float, n: int, d: int, config: RmsNormGpuConfig) -> None:
    # in: x_ref, residual_ref [block_n, D], factor_ref [1, D], as far as given. out: y_ref, and h_ref with a residual [block_n, D].
    given, outputs = dict(zip(names, refs, strict=False)), refs[len(names) :]
    tiles = _Tiles(n, d, config.block_n, config.block_d, pl.program_id(0) * config.block_n)

    def finish(tile: "_Tile", h: jax.Array, rstd: jax.Array) -> None:
        y = h * rstd
        tile.store(outputs[0], y * tile.columns_of(given["factor"]) if "factor" in given else y)
        if "residual" in given:
            tile.store(outputs[1], h)

    if tiles.count == 1:
        tile = tiles.at(0)
        h = tile.sum_of(given)
        finish(tile, h, lax.rsqrt(jnp.sum(h * h, axis=1, keepdims=True) / d + eps))
        return

    def square(j: Any, total: jax.Array) -> jax.Array:
        h = tiles.at(j).sum_of(given)
        return total + jnp.sum(h * h, axis=1, keepdims=True)

    total = lax.fori_loop(0, tiles.count, square, jnp.zeros((config.block_n, 1), jnp.float32))
    rstd = lax.rsqrt(total / d + eps)

    def write(j: Any, _: None) -> None:
        tile = tiles.at(j)
        finish(tile, tile.sum_of(given), rstd)

    lax.fori_loop(0, tiles.count, write, None)


def _backward(
    x: jax.Array,
    residual: jax.Array | None,
    scale: jax.Array | None,
    dy: jax.Array,
    dh: jax.Array | None,
    eps: float,
    scale_offset: float,
    config: RmsNormGpuConfig | None,
    interpret: Any,
) -> tuple[jax.Array, jax.Array | None]:
    if x.size == 0:
        return jnp.zeros_like(x), None if scale is None else jnp.zeros_like(scale)
    rows = _rows(x)
    n, d = rows.shape
    config = config or default_config(n=n, d=d)
    turns = (
        steps(n, config) if config.block_d >= d else 1
    )  # a wide row's partial sums fit no registers: they leave each block
    programs = pl.cdiv(n, turns * config.block_n)
    block = pl.BlockSpec(
        (turns * config.block_n, d), lambda i: (i, 0)
    )  # x, residual, dy, dh, grad: GMEM; a program's rows
    weight = pl.BlockSpec((1, d), lambda i: (0, 0))  # factor: GMEM; from the caches after the first program
    part = pl.BlockSpec((None, 1, d), lambda i: (i, 0, 0))  # dscale: GMEM; a program's partial sum
    given = {
        "x": (rows, block),
        "residual": (None if residual is None else _rows(residual), block),
        "dy": (_rows(dy), block),
        "dh": (None if dh is None else _rows(dh), block),
        "factor": (_factor(scale, scale_offset), weight),
    }
    operands = {name: pair for name, pair in given.items() if pair[0] is not None}
    sums = [] if scale is None else [shape_like((programs, 1, d), jnp.float32, rows)]
    out = pl.pallas_call(
        functools.partial(_backward_body, names=tuple(operands), eps=eps, n=n, d=d, turns=turns, config=config),
        name="rms_norm_bwd" if residual is None else "add_rms_norm_bwd",
        grid=(programs,),
        in_specs=[spec for _, spec in operands.values()],
        out_specs=[block, part][: 1 + len(sums)],
        out_shape=[shape_like((n, d), x.dtype, rows), *sums],
        compiler_params=plgpu.CompilerParams(num_warps=config.num_warps),
        interpret=interpret,
    )(*(array for array, _ in operands.values()))
    dscale = None if scale is None else jnp.sum(out[1], axis=(0, 1)).astype(scale.dtype)
    return out[0].reshape(x.shape), dscale


def _backward_body(
    *refs: Any, names: tuple[str, ...], eps: float, n: int, d: int, turns: int, config: RmsNormGpuConfig
) -> None:
    # in: x_ref, residual_ref, dy_ref, dh_ref [turns * block_n, D], factor_ref [1, D], as far as given.
    # out: grad_ref [turns * block_n, D], and sums_ref [1, D] with a factor.
    given, (grad_ref, *sums_ref) = dict(zip(names, refs, strict=False)), refs[len(names) :]
    tiles = _Tiles(n, d, config.block_n, config.block_d, pl.program_id(0) * (turns * config.block_n))

    def loaded(tile: "_Tile") -> tuple[jax.Array, jax.Array, jax.Array]:
        """h, dy, and u = dy * factor."""
        dy = tile.load(given["dy"])
        return tile.sum_of(given), dy, dy * tile.columns_of(given["factor"]) if "factor" in given else dy

    def finish(tile: "_Tile", rstd: jax.Array, mean: jax.Array, h: jax.Array, dy: jax.Array, u: jax.Array) -> jax.Array:
        """Writes the gradient; the block's share of scale's, [1, block_d]. `mean`: of u * x_hat. Masked rows have dy 0."""
        x_hat = h * rstd
        grad = rstd * (u - x_hat * mean)
        tile.store(grad_ref, grad + tile.load(given["dh"]) if "dh" in given else grad)
        return jnp.sum(dy * x_hat, axis=0, keepdims=True)

    if tiles.count == 1:

        def turn(s: Any, share: jax.Array) -> jax.Array:
            tile = tiles.at(0, s * config.block_n)
            h, dy, u = loaded(tile)
            rstd = lax.rsqrt(jnp.sum(h * h, axis=1, keepdims=True) / d + eps)
            mean = jnp.sum(u * (h * rstd), axis=1, keepdims=True) / d  # in this order: u * h may overflow
            return share + finish(tile, rstd, mean, h, dy, u)

        share = lax.fori_loop(0, turns, turn, jnp.zeros((1, config.block_d), jnp.float32))
        if sums_ref:
            tiles.at(0).store_columns(sums_ref[0], share)
        return

    def statistics(j: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        h, _, u = loaded(tiles.at(j))
        return carry[0] + jnp.sum(h * h, axis=1, keepdims=True), carry[1] + jnp.sum(u * h, axis=1, keepdims=True)

    zeros = jnp.zeros((config.block_n, 1), jnp.float32)
    squares, products = lax.fori_loop(0, tiles.count, statistics, (zeros, zeros))
    rstd = lax.rsqrt(squares / d + eps)
    mean = products * rstd / d

    def write(j: Any, _: None) -> None:
        tile = tiles.at(j)
        share = finish(tile, rstd, mean, *loaded(tile))
        if sums_ref:
            tile.store_columns(sums_ref[0], share)

    lax.fori_loop(0, tiles.count, write, None)


class _Tiles:
    """A program's rows in blocks of columns, the last one masked."""

    def __init__(self, n: int, d: int, block_n: int, block_d: int, first: Any) -> None:
        self.n, self.d, self.block_n, self.block_d, self.first = n, d, block_n, block_d, first
        self.count = pl.cdiv(d, block_d)

    def at(self, j: Any, row: Any = 0) -> "_Tile":
        """Block j of columns, of the rows from `row` on."""
        rows = row + lax.broadcasted_iota(jnp.int32, (self.block_n, 1), 0)
        columns = j * self.block_d + lax.broadcasted_iota(jnp.int32, (1, self.block_d), 1)
        return _Tile(rows, columns, (self.first + rows < self.n) & (columns < self.d), columns < self.d)


class _Tile:
    """One block: where it lies, and which of it is there."""

    def __init__(self, rows: jax.Array, columns: jax.Array, mask: jax.Array, column_mask: jax.Array) -> None:
        self.rows, self.columns, self.mask, self.column_mask = rows, columns, mask, column_mask

    def load(self, ref: Any) -> jax.Array:
        """[block_n, block_d] float32, 0 where there is nothing."""
        shape = self.mask.shape
        place = ref.at[jnp.broadcast_to(self.rows, shape), jnp.broadcast_to(self.columns, shape)]
        return plgpu.load(place, mask=self.mask, other=0.0).astype(jnp.float32)

    def sum_of(self, given: dict[str, Any]) -> jax.Array:
        """x, or x + residual."""
        x = self.load(given["x"])
        return x + self.load(given["residual"]) if "residual" in given else x

    def store(self, ref: Any, value: jax.Array) -> None:
        shape = self.mask.shape
        place = ref.at[jnp.broadcast_to(self.rows, shape), jnp.broadcast_to(self.columns, shape)]
        plgpu.store(place, value.astype(ref.dtype), mask=self.mask)

    def columns_of(self, ref: Any) -> jax.Array:
        """[1, block_d] of a [1, D] row."""
        return plgpu.load(ref.at[jnp.zeros_like(self.columns), self.columns], mask=self.column_mask, other=0.0)

    def store_columns(self, ref: Any, value: jax.Array) -> None:
        plgpu.store(ref.at[jnp.zeros_like(self.columns), self.columns], value, mask=self.column_mask)


def _rows(x: jax.Array) -> jax.Array:
    """[..., D] -> [N, D]."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _factor(scale: jax.Array | None, scale_offset: float) -> jax.Array | None:
    """[1, D] float32: D numbers, so XLA's work outside of the kernel is nothing beside it."""
    return None if scale is None else scale.astype(jnp.float32)[None, :] + scale_offset
