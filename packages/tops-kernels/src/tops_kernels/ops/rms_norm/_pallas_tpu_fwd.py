"""Forward kernels. VMEM is bounded by the configuration: N does not enter, and D only as far as a row is kept whole.

whole_rows: grid (row blocks,), a row is read once, normed in float32, written once.
split_rows: grid (row blocks, 2, column blocks) for rows too wide to keep: the first sweep adds up squares, the second writes.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.rms_norm.config import RmsNormTpuConfig
from tops_kernels.runtime.manual import shape_like

_NARROW = 512  # columns of what head norms have: wider rows spill more so (v5p, D = 3584: 6 % more cycles)


def whole_rows(
    x: jax.Array,
    residual: jax.Array | None,
    factor: jax.Array | None,
    *,
    eps: float,
    config: RmsNormTpuConfig,
    interpret: Any,
) -> list[jax.Array]:
    """x, residual [N, D], factor [1, D] float32 -> [y], or [y, h] with a residual, each [N, D] in x's dtype."""
    n, d = x.shape
    rows = pl.BlockSpec(
        (config.block_n, d), lambda i: (i, 0)
    )  # x, residual, y, h: VMEM; whole rows, so one pass has the mean
    weight = pl.BlockSpec((1, d), lambda i: (0, 0))  # factor: VMEM; the same block each step, so fetched once
    # Narrow rows have length 1 in the kernel, so that it need not divide a sum by D: the factor makes up for it.
    is_unit = factor is not None and d <= _NARROW
    operands = {
        "x": (x, rows),
        "residual": (residual, rows),
        "factor": (factor * math.sqrt(d) if factor is not None and is_unit else factor, weight),
    }
    given = {name: pair for name, pair in operands.items() if pair[0] is not None}
    outputs = 1 if residual is None else 2
    out: list[jax.Array] = pl.pallas_call(
        functools.partial(_whole_body, names=tuple(given), eps=eps, is_unit=is_unit),
        name="rms_norm_fwd" if residual is None else "add_rms_norm_fwd",
        grid=(pl.cdiv(n, config.block_n),),
        in_specs=[spec for _, spec in given.values()],
        out_specs=[rows] * outputs,
        out_shape=[shape_like((n, d), x.dtype, x)] * outputs,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=interpret,
    )(*(array for array, _ in given.values()))
    return out


def _whole_body(*refs: Any, names: tuple[str, ...], eps: float, is_unit: bool) -> None:
    # in: x_ref, residual_ref [block_n, D], factor_ref [1, D], as far as given. out: y_ref, and h_ref with a residual.
    given, outputs = dict(zip(names, refs, strict=False)), refs[len(names) :]
    h = add_up(given["x"], given.get("residual"))  # [block_n, D]
    # The last block may reach past N. Those rows hold anything, meet no other row, and are not written back.
    if is_unit:
        y = h * lax.rsqrt(jnp.sum(h * h, axis=-1, keepdims=True) + h.shape[1] * eps)
    else:
        y = h * lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + eps)
    if "factor" in given:
        y = y * given["factor"][...]
    outputs[0][...] = y.astype(outputs[0].dtype)
    if "residual" in given:
        outputs[1][...] = h.astype(outputs[1].dtype)


def split_rows(
    x: jax.Array,
    residual: jax.Array | None,
    factor: jax.Array | None,
    *,
    eps: float,
    config: RmsNormTpuConfig,
    interpret: Any,
) -> list[jax.Array]:
    """As `whole_rows`, for any D."""
    n, d = x.shape
    tile = pl.BlockSpec(
        (config.block_n, config.block_d), lambda i, sweep, j: (i, j)
    )  # x, residual: VMEM; read in both sweeps
    weight = pl.BlockSpec(
        (1, config.block_d), lambda i, sweep, j: (0, j * sweep)
    )  # factor: VMEM; waits at 0 in the first sweep
    # y, h: VMEM; stays on column block 0 in the first sweep, which does not write it, and goes out only in the second
    late = pl.BlockSpec((config.block_n, config.block_d), lambda i, sweep, j: (i, j * sweep))
    operands = {"x": (x, tile), "residual": (residual, tile), "factor": (factor, weight)}
    given = {name: pair for name, pair in operands.items() if pair[0] is not None}
    outputs = 1 if residual is None else 2
    out: list[jax.Array] = pl.pallas_call(
        functools.partial(_split_body, names=tuple(given), eps=eps, d=d),
        name="rms_norm_fwd_split" if residual is None else "add_rms_norm_fwd_split",
        grid=(pl.cdiv(n, config.block_n), 2, pl.cdiv(d, config.block_d)),
        in_specs=[spec for _, spec in given.values()],
        out_specs=[late] * outputs,
        out_shape=[shape_like((n, d), x.dtype, x)] * outputs,
        scratch_shapes=[pltpu.VMEM((config.block_n, 1), jnp.float32)],  # a sum of squares a row, then its rstd
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary")),
        interpret=interpret,
    )(*(array for array, _ in given.values()))
    return out


def _split_body(*refs: Any, names: tuple[str, ...], eps: float, d: int) -> None:
    # in: as `_whole_body`, a column block each. out: y_ref, h_ref. scratch: stat_ref [block_n, 1], carried along sweeps and columns.
    given, outputs, stat_ref = dict(zip(names, refs, strict=False)), refs[len(names) : -1], refs[-1]
    sweep, j = pl.program_id(1), pl.program_id(2)
    h = add_up(given["x"], given.get("residual"))

    @pl.when((sweep == 0) & (j == 0))
    def _start_rows() -> None:
        stat_ref[...] = jnp.zeros_like(stat_ref)

    @pl.when(sweep == 0)
    def _add_squares() -> None:
        stat_ref[...] += jnp.sum(keep_columns(h * h, j, d), axis=-1, keepdims=True)

    @pl.when((sweep == 1) & (j == 0))
    def _finish_statistic() -> None:
        stat_ref[...] = lax.rsqrt(stat_ref[...] / d + eps)

    @pl.when(sweep == 1)
    def _write() -> None:
        y = h * stat_ref[...]
        if "factor" in given:
            y = y * given["factor"][...]
        outputs[0][...] = y.astype(outputs[0].dtype)
        if "residual" in given:
            outputs[1][...] = h.astype(outputs[1].dtype)


def keep_columns(tile: jax.Array, j: jax.Array, d: int) -> jax.Array:
    """Zeros for the columns of the last block that reach past D, which hold anything."""
    if d % tile.shape[1] == 0:
        return tile
    column = j * tile.shape[1] + lax.broadcasted_iota(jnp.int32, tile.shape, 1)
    return jnp.where(column < d, tile, 0.0)


def add_up(x_ref: Any, residual_ref: Any) -> jax.Array:
    h: jax.Array = x_ref[...].astype(jnp.float32)
    return h if residual_ref is None else h + residual_ref[...].astype(jnp.float32)
