"""matmul on TPU: one kernel for the product, its two gradients, and the epilogue.

Grid (batch, row blocks, column blocks, blocks of the sum). The sum of a block of the result stays in VMEM, float32 (int8: int32), while
the last axis runs; then bias and activation are applied to it and it is rounded once. VMEM a step: two buffers of one block of each
operand and result, and the sum: bounded by the configuration, whatever M, N and K are.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_kernels.ops.matmul.config import Product, default_config, vmem_limit
from tops_kernels.ops.matmul.epilogue import activated
from tops_kernels.runtime.chip import chip
from tops_kernels.runtime.manual import shape_like

_STRAIGHT = (
    7  # from this generation on a product that lies in VMEM before it is added costs time (K in blocks of 512: 10 %)
)


def matmul_fwd(
    a: jax.Array,
    b: jax.Array,
    bias: jax.Array | None,
    *,
    activation: str,
    out_dtype: Any,
    keep: bool,
    config: Any,
    interpret: Any,
) -> tuple[jax.Array, ...]:
    """a [*B, M, K], b [K, N] or [*B, K, N], bias [N] -> (y,), or (y, z) with `keep`: z [*B, M, N] float32, before the activation."""
    batch, (m, n) = a.shape[:-2], (a.shape[-2], b.shape[-1])
    form = _Form(activation=activation, keep=keep, name="matmul_fwd")
    shared = b.ndim == 2
    a, b = _grouped(a, shared), _grouped(b, False)
    out = _launch(a, b, bias, form=form, out_dtype=out_dtype, config=config, interpret=interpret)
    return tuple(x.reshape(*batch, m, n) for x in out)


def matmul_da(dz: jax.Array, b: jax.Array, *, out_dtype: Any, config: Any, interpret: Any) -> jax.Array:
    """dz [*B, M, N], b as in the forward pass -> da [*B, M, K] = dz b^T. b is read as it lies: no transposed copy."""
    shape = (*dz.shape[:-1], b.shape[-2])
    dz, b = _grouped(dz, b.ndim == 2), _grouped(b, False)
    form = _Form(transpose_b=True, name="matmul_da")
    return _launch(dz, b, None, form=form, out_dtype=out_dtype, config=config, interpret=interpret)[0].reshape(shape)


def matmul_db(a: jax.Array, dz: jax.Array, *, shared: bool, out_dtype: Any, config: Any, interpret: Any) -> jax.Array:
    """a [*B, M, K], dz [*B, M, N] -> db = a^T dz: [K, N] summed over the batch where b was shared, else [*B, K, N]."""
    batch = () if shared else a.shape[:-2]
    shape = (*batch, a.shape[-1], dz.shape[-1])
    form = _Form(transpose_a=True, name="matmul_db")
    a, dz = _grouped(a, shared), _grouped(dz, shared)
    return _launch(a, dz, None, form=form, out_dtype=out_dtype, config=config, interpret=interpret)[0].reshape(shape)


def _grouped(x: jax.Array, shared: bool) -> jax.Array:
    """[*B, R, C] -> [G, R, C]; or [1, G * R, C] where the other operand is shared: the batch is more rows."""
    *batch, rows, columns = x.shape
    groups = math.prod(batch)
    return x.reshape((1, groups * rows, columns) if shared else (groups, rows, columns))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Form:
    """Which of the kernel's forms."""

    name: str
    transpose_a: bool = False  # a lies as [K, M]
    transpose_b: bool = False  # b lies as [N, K]
    activation: str = "none"
    keep: bool = False  # the second result: the sum as the activation was given it, float32
    straight: bool = False  # a step's product goes straight into the sum


def _launch(
    a: jax.Array, b: jax.Array, bias: jax.Array | None, *, form: _Form, out_dtype: Any, config: Any, interpret: Any
) -> list[jax.Array]:
    """a [G, M, K] or [G, K, M], b [G, K, N] or [G, N, K], bias [N] -> [y] or [y, z], each [G, M, N]."""
    groups = a.shape[0]
    k, m = (a.shape[1], a.shape[2]) if form.transpose_a else (a.shape[2], a.shape[1])
    n = b.shape[1] if form.transpose_b else b.shape[2]
    out_types = [jnp.dtype(out_dtype), *([jnp.dtype(jnp.float32)] if form.keep else [])]
    sum_type = jnp.int32 if jnp.issubdtype(a.dtype, jnp.integer) else jnp.float32
    if 0 in (groups, m, n, k):  # nothing to multiply: the epilogue of zeros
        z = jnp.zeros((groups, m, n), sum_type)
        z = z if bias is None else z + bias.astype(sum_type)
        return [activated(z, form.activation).astype(out_types[0]), z][: len(out_types)]
    on = chip()
    out_itemsize = sum(dtype.itemsize for dtype in out_types)
    product = Product(
        groups=groups,
        m=m,
        n=n,
        k=k,
        itemsize=a.dtype.itemsize,
        out_itemsize=out_itemsize,
        transposed=form.transpose_a,
        activated=form.activation != "none",
    )
    config = config or default_config(product, on)
    bm, bn, bk = min(config.block_m, m), min(config.block_n, n), min(config.block_k, k)
    if form.transpose_a:
        a_spec = pl.BlockSpec((None, bk, bm), lambda g, i, j, s: (g, s, i))  # a: VMEM; the sum runs over its rows
    else:
        a_spec = pl.BlockSpec((None, bm, bk), lambda g, i, j, s: (g, i, s))  # a: VMEM; read once for each column block
    if form.transpose_b:
        b_spec = pl.BlockSpec((None, bn, bk), lambda g, i, j, s: (g, j, s))  # b: VMEM; contracted along its lanes
    else:
        b_spec = pl.BlockSpec((None, bk, bn), lambda g, i, j, s: (g, s, j))  # b: VMEM; read once for each row block
    bias_spec = pl.BlockSpec((1, bn), lambda g, i, j, s: (0, j))  # bias: VMEM; a row for the block's columns
    out_spec = pl.BlockSpec((None, bm, bn), lambda g, i, j, s: (g, i, j))  # y, z: VMEM; written at the end of a sum
    biases = [] if bias is None else [bias[None, :]]
    steps = pl.cdiv(k, bk)
    out: list[jax.Array] = pl.pallas_call(
        functools.partial(
            _body,
            form=dataclasses.replace(form, straight=on.generation >= _STRAIGHT),
            has_bias=bias is not None,
            k=k,
            steps=steps,
        ),
        name=form.name,
        grid=(groups, pl.cdiv(m, bm), pl.cdiv(n, bn), steps),
        in_specs=[a_spec, b_spec, *([bias_spec] * len(biases))],
        out_specs=[out_spec] * len(out_types),
        out_shape=[shape_like((groups, m, n), dtype, a) for dtype in out_types],
        # the sum, while it takes more than one step
        scratch_shapes=[pltpu.VMEM((bm, bn), sum_type)] if steps > 1 else [],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=vmem_limit(on),
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * groups * m * n * k,
            bytes_accessed=(
                a.size * a.dtype.itemsize + b.size * b.dtype.itemsize + groups * m * n * out_types[0].itemsize
            ),
            transcendentals=groups * m * n if form.activation in ("gelu", "silu") else 0,
        ),
        interpret=interpret,
    )(a, b, *biases)
    return out


def _body(a_ref: Any, b_ref: Any, *refs: Any, form: _Form, has_bias: bool, k: int, steps: int) -> None:
    # in: a_ref [block_m, block_k] or its transpose, b_ref likewise, bias_ref [1, block_n] where given.
    # out: y_ref, and z_ref with keep [block_m, block_n]. scratch: sum_ref [block_m, block_n], carried along the last grid axis.
    bias_ref, refs = (refs[0], refs[1:]) if has_bias else (None, refs)
    y_ref, z_ref = refs[0], refs[1] if form.keep else None
    step = pl.program_id(3)
    a, b = _within_k(a_ref, b_ref, form, k, step)

    def finish(total: jax.Array) -> None:
        z = total if bias_ref is None else total + bias_ref[...].astype(total.dtype)
        if z_ref is not None:
            z_ref[...] = z
        y_ref[...] = activated(z, form.activation).astype(y_ref.dtype)

    if steps == 1:
        finish(_dot(a, b, form))
        return
    sum_ref = refs[-1]
    if form.straight:

        @pl.when(step == 0)
        def _clear_sum() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += _dot(a, b, form)

        @pl.when(step == steps - 1)
        def _finish_sum() -> None:
            finish(sum_ref[...])

        return
    part = _dot(a, b, form)  # used in several regions, so it lies in VMEM in between

    @pl.when(step == 0)
    def _start_sum() -> None:
        sum_ref[...] = part

    @pl.when((step > 0) & (step < steps - 1))
    def _add() -> None:
        sum_ref[...] += part

    @pl.when(step == steps - 1)
    def _end_sum() -> None:
        finish(sum_ref[...] + part)


def _dot(a: jax.Array, b: jax.Array, form: _Form) -> jax.Array:
    """One block's share, float32 or int32."""
    dims = (((0,) if form.transpose_a else (1,), (1,) if form.transpose_b else (0,)), ((), ()))
    is_integer = jnp.issubdtype(a.dtype, jnp.integer)
    return lax.dot_general(
        a,
        b,
        dims,
        # float32 means float32: six bfloat16 passes. bfloat16 operands are exact in one, and Mosaic refuses a precision for them.
        precision=lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
        preferred_element_type=jnp.int32 if is_integer else jnp.float32,
    )


def _within_k(a_ref: Any, b_ref: Any, form: _Form, k: int, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The operands, with zeros where the last block reaches past K: what lies there may be NaN, and 0 * NaN is not 0."""
    a, b = a_ref[...], b_ref[...]
    along_a, along_b = (0 if form.transpose_a else 1), (1 if form.transpose_b else 0)
    block_k = a.shape[along_a]
    if k % block_k == 0:
        return a, b

    def masked(x: jax.Array, axis: int) -> jax.Array:
        # Selected as 32-bit numbers: chips before v6e compare and select no narrower ones.
        wide = x.astype(jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32)
        term = step * block_k + lax.broadcasted_iota(jnp.int32, x.shape, axis)
        return jnp.where(term < k, wide, jnp.zeros_like(wide)).astype(x.dtype)

    return masked(a, along_a), masked(b, along_b)
