"""Backward kernels: gradients of the rows, and partial sums of the scale's gradient. VMEM is bounded by the configuration.

With r = rstd, x_hat = h * r, u = dy * factor:  dh = r * (u - x_hat * mean(u * x_hat)) [+ dh of the sum],  dfactor = sum over rows of dy * x_hat.
The statistic is computed again from x, which is read anyway: a float32 column [N, 1] would cost 128 lanes a row in HBM.

whole_rows: grid (2 halves of the row blocks, blocks of a half). The scale's gradient stays in VMEM over a half; two halves, so that a
    chip with two cores has one for each. split_rows: grid (row blocks, 2 sweeps, column blocks), a partial sum a row block.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.rms_norm._pallas_tpu_fwd import add_up, keep_columns
from tops_kernels.ops.rms_norm.config import RmsNormTpuConfig
from tops_kernels.runtime.manual import shape_like

_PARTS = 8  # rows of a float32 tile: sums over rows stop at whole tiles, and XLA adds the last eight
_NARROW = 512  # columns of what head norms have
_PART_ROWS = 2048  # a longer block is done in parts of as many rows: fewer values wait at a time (tpu7x, D = 128: 1.32 of the HBM time, 1.27)


def whole_rows(
    x: jax.Array,
    residual: jax.Array | None,
    factor: jax.Array | None,
    dy: jax.Array,
    dh: jax.Array | None,
    *,
    eps: float,
    config: RmsNormTpuConfig,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """x, residual, dy, dh [N, D], factor [1, D] float32 -> gradient [N, D] in x's dtype, partial sums [parts, D] float32 (none: [0, D])."""
    n, d = x.shape
    blocks = pl.cdiv(n, config.block_n)
    half = pl.cdiv(blocks, 2) if blocks > 1 else 1

    def block(
        s: Any, i: Any
    ) -> Any:  # the second half of an odd number of blocks ends on a repeat, which writes the same rows again
        return jnp.minimum(s * half + i, blocks - 1)

    rows = pl.BlockSpec(
        (config.block_n, d), lambda s, i: (block(s, i), 0)
    )  # x, residual, dy, dh, grad: VMEM; whole rows
    weight = pl.BlockSpec((1, d), lambda s, i: (0, 0))  # factor: VMEM; fetched once
    parts = pl.BlockSpec((_PARTS, d), lambda s, i: (s, 0))  # dscale: VMEM; stays for a half, so it is summed there
    operands = {
        "x": (x, rows),
        "residual": (residual, rows),
        "dy": (dy, rows),
        "dh": (dh, rows),
        "factor": (None if factor is None else factor * math.sqrt(d), weight),
    }
    given = {name: pair for name, pair in operands.items() if pair[0] is not None}
    halves = pl.cdiv(blocks, half)
    sums = [] if factor is None else [shape_like((halves * _PARTS, d), jnp.float32, x)]
    out = pl.pallas_call(
        functools.partial(
            _whole_body,
            names=tuple(given),
            eps=eps,
            n=n,
            half=half,
            full=halves * half * config.block_n == n,
            mxu_squares=config.mxu_squares,
        ),
        name="rms_norm_bwd" if residual is None else "add_rms_norm_bwd",
        grid=(halves, half),
        in_specs=[spec for _, spec in given.values()],
        out_specs=[rows, parts][: 1 + len(sums)],
        out_shape=[shape_like((n, d), x.dtype, x), *sums],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )(*(array for array, _ in given.values()))
    return out[0], out[1] * math.sqrt(d) if sums else jnp.zeros((0, d), jnp.float32)


def _whole_body(
    *refs: Any, names: tuple[str, ...], eps: float, n: int, half: int, full: bool, mxu_squares: bool
) -> None:
    # in: x_ref, residual_ref, dy_ref, dh_ref [block_n, D], factor_ref [1, D], as far as given. out: grad_ref [block_n, D], sums_ref [8, D].
    given, outputs = dict(zip(names, refs, strict=False)), refs[len(names) :]
    block_n = given["x"].shape[0]
    step = pl.program_id(0) * half + pl.program_id(1)
    on_mxu = mxu_squares and "residual" not in given and given["x"].dtype == jnp.bfloat16

    def start_half() -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start_half() -> None:
            outputs[1][...] = jnp.zeros_like(outputs[1])

    # Ahead of all, as what is live across a region is spilled; but bodies of wide rows schedule better in two halves.
    ahead = given["x"].shape[1] <= _NARROW
    if "factor" in given and ahead:
        start_half()
    rows = _PART_ROWS if block_n % _PART_ROWS == 0 else block_n
    shares = []
    for first in range(0, block_n, rows):
        part = pl.ds(first, rows)
        grad, dy, unit = _gradient(
            {name: ref if name == "factor" else ref.at[part] for name, ref in given.items()}, eps=eps, on_mxu=on_mxu
        )
        outputs[0][part, :] = grad.astype(outputs[0].dtype)
        if "factor" not in given:
            continue
        if not ahead:  # a block of one part
            start_half()
        share = dy * unit
        if not full:
            # Rows past N, and those of a repeated block, must not be counted twice or at all.
            row = step * block_n + first + lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
            share = jnp.where(row < n, share, 0.0)
        shares.append(_fold(share))
    if shares:
        outputs[1][...] += sum(shares[1:], start=shares[0])


def _gradient(given: dict[str, Any], *, eps: float, on_mxu: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """References to rows of a block -> their gradient, dy and h / |h|, [rows, D] float32.

    With rows of length 1 (h / |h|) where x_hat has a mean square of 1 no sum need be divided by D: sqrt(D) is in the factor.
    """
    h, dy = add_up(given["x"], given.get("residual")), given["dy"][...].astype(jnp.float32)
    d = h.shape[1]
    squares = _squares(given["x"]) if on_mxu else jnp.sum(h * h, axis=-1, keepdims=True)
    inverse = lax.rsqrt(squares + d * eps)
    unit = h * inverse  # before any product with dy: dy * h may overflow where dy * unit does not
    u = dy * given["factor"][...] if "factor" in given else dy * math.sqrt(d)
    grad = inverse * (u - unit * jnp.sum(u * unit, axis=-1, keepdims=True))
    if "dh" in given:
        grad = grad + given["dh"][...].astype(jnp.float32)
    return grad, dy, unit


def split_rows(
    x: jax.Array,
    residual: jax.Array | None,
    factor: jax.Array | None,
    dy: jax.Array,
    dh: jax.Array | None,
    *,
    eps: float,
    config: RmsNormTpuConfig,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """As `whole_rows`, for any D."""
    n, d = x.shape
    blocks, columns = pl.cdiv(n, config.block_n), pl.cdiv(d, config.block_d)
    tile = pl.BlockSpec(
        (config.block_n, config.block_d), lambda i, sweep, j: (i, j)
    )  # x, residual, dy: VMEM; read in both sweeps
    # dh, grad: VMEM; wait on column block 0 in the first sweep, which has no use for them
    late = pl.BlockSpec((config.block_n, config.block_d), lambda i, sweep, j: (i, j * sweep))
    weight = pl.BlockSpec((1, config.block_d), lambda i, sweep, j: (0, j))  # factor: VMEM
    parts = pl.BlockSpec(
        (_PARTS, config.block_d), lambda i, sweep, j: (i, j * sweep)
    )  # dscale: VMEM; a partial sum a row block
    operands = {
        "x": (x, tile),
        "residual": (residual, tile),
        "dy": (dy, tile),
        "dh": (dh, late),
        "factor": (factor, weight),
    }
    given = {name: pair for name, pair in operands.items() if pair[0] is not None}
    sums = [] if factor is None else [shape_like((blocks * _PARTS, d), jnp.float32, x)]
    out = pl.pallas_call(
        functools.partial(_split_body, names=tuple(given), eps=eps, n=n, d=d),
        name="rms_norm_bwd_split" if residual is None else "add_rms_norm_bwd_split",
        grid=(blocks, 2, columns),
        in_specs=[spec for _, spec in given.values()],
        out_specs=[late, parts][: 1 + len(sums)],
        out_shape=[shape_like((n, d), x.dtype, x), *sums],
        # two sums a row: of squares, then rstd; of u * h, then rstd^2 times its mean
        scratch_shapes=[pltpu.VMEM((config.block_n, 1), jnp.float32), pltpu.VMEM((config.block_n, 1), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary")),
        interpret=interpret,
    )(*(array for array, _ in given.values()))
    return out[0], out[1] if sums else jnp.zeros((0, d), jnp.float32)


def _split_body(*refs: Any, names: tuple[str, ...], eps: float, n: int, d: int) -> None:
    # in and out: as `_whole_body`, a column block each. scratch: rstd_ref, dot_ref [block_n, 1], carried along sweeps and columns.
    given, outputs, (rstd_ref, dot_ref) = dict(zip(names, refs, strict=False)), refs[len(names) : -2], refs[-2:]
    i, sweep, j = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    h, dy = add_up(given["x"], given.get("residual")), given["dy"][...].astype(jnp.float32)
    u = dy * given["factor"][...] if "factor" in given else dy

    @pl.when((sweep == 0) & (j == 0))
    def _start_rows() -> None:
        rstd_ref[...] = jnp.zeros_like(rstd_ref)
        dot_ref[...] = jnp.zeros_like(dot_ref)

    @pl.when(sweep == 0)
    def _add_up() -> None:
        rstd_ref[...] += jnp.sum(keep_columns(h * h, j, d), axis=-1, keepdims=True)
        dot_ref[...] += jnp.sum(keep_columns(u * h, j, d), axis=-1, keepdims=True)

    @pl.when((sweep == 1) & (j == 0))
    def _finish_statistics() -> None:
        rstd_ref[...] = lax.rsqrt(rstd_ref[...] / d + eps)
        dot_ref[...] = dot_ref[...] / d * rstd_ref[...] * rstd_ref[...]

    @pl.when(sweep == 1)
    def _write() -> None:
        rstd = rstd_ref[...]
        grad = rstd * (u - h * dot_ref[...])
        if "dh" in given:
            grad = grad + given["dh"][...].astype(jnp.float32)
        outputs[0][...] = grad.astype(outputs[0].dtype)
        if "factor" in given:
            row = i * h.shape[0] + lax.broadcasted_iota(jnp.int32, (h.shape[0], 1), 0)
            outputs[1][...] = _fold(jnp.where(row < n, dy * (h * rstd), 0.0))


def _squares(x_ref: Any) -> jax.Array:
    """[block_n, D] bfloat16 -> [block_n, 1] float32: each row's product with itself, on the MXU.

    Its products of bfloat16 are exact and its sums float32. It does all pairs of rows, of which the diagonal is kept; the vector
    unit is spared a product and a sum an element.
    """
    x = x_ref[...]
    pairs = lax.dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    row, column = (lax.broadcasted_iota(jnp.int32, pairs.shape, axis) for axis in (0, 1))
    # A choice, not a product: what other rows hold, NaN among it, stays theirs.
    return jnp.sum(jnp.where(row == column, pairs, 0.0), axis=-1, keepdims=True)


def _fold(tile: jax.Array) -> jax.Array:
    """[block_n, D] -> [8, D]: sums over whole tiles, no shuffle inside one."""
    return jnp.sum(tile.reshape(-1, _PARTS, tile.shape[1]), axis=0)
