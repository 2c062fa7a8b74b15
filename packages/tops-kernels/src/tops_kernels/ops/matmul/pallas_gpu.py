"""matmul on NVIDIA GPUs, by Triton: one kernel for the product, its two gradients, and the epilogue.

Grid (batch, blocks of the result). A program sums one block over K in registers, float32 (int8: int32); then bias and activation are
applied to it and it is rounded once. Blocks that reach past an edge are masked, where an edge does not fit.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from tops_kernels.ops.matmul._pallas_gpu_config import MatmulGpuConfig, default_config
from tops_kernels.ops.matmul.epilogue import activated
from tops_kernels.runtime.manual import shape_like


def matmul_fwd(
    a: jax.Array,
    b: jax.Array,
    bias: jax.Array | None,
    *,
    activation: str,
    out_dtype: Any,
    keep: bool,
    config: MatmulGpuConfig | None,
    interpret: Any,
) -> tuple[jax.Array, ...]:
    """a [*B, M, K], b [K, N] or [*B, K, N], bias [N] -> (y,), or (y, z) with `keep`: z [*B, M, N] float32, before the activation."""
    shape = (*a.shape[:-1], b.shape[-1])
    shared = b.ndim == 2
    form = _Form(activation=activation, keep=keep, name="matmul_fwd")
    out = _launch(_grouped(a, shared), _grouped(b, False), bias, form, out_dtype, config, interpret)
    return tuple(x.reshape(shape) for x in out)


def matmul_da(dz: jax.Array, b: jax.Array, *, out_dtype: Any, config: Any, interpret: Any) -> jax.Array:
    """dz [*B, M, N], b as in the forward pass -> da [*B, M, K] = dz b^T. b is read as it lies: no transposed copy."""
    form = _Form(transpose_b=True, name="matmul_da")
    out = _launch(_grouped(dz, b.ndim == 2), _grouped(b, False), None, form, out_dtype, config, interpret)
    return out[0].reshape(*dz.shape[:-1], b.shape[-2])


def matmul_db(a: jax.Array, dz: jax.Array, *, shared: bool, out_dtype: Any, config: Any, interpret: Any) -> jax.Array:
    """a [*B, M, K], dz [*B, M, N] -> db = a^T dz: [K, N] summed over the batch where b was shared, else [*B, K, N]."""
    form = _Form(transpose_a=True, name="matmul_db")
    out = _launch(_grouped(a, shared), _grouped(dz, shared), None, form, out_dtype, config, interpret)
    return out[0].reshape(*(() if shared else a.shape[:-2]), a.shape[-1], dz.shape[-1])


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


@dataclasses.dataclass(frozen=True, slots=True)
class _Sizes:
    m: int
    n: int
    k: int


def _launch(
    a: jax.Array,
    b: jax.Array,
    bias: jax.Array | None,
    form: _Form,
    out_dtype: Any,
    config: MatmulGpuConfig | None,
    interpret: Any,
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
    sizes = _Sizes(m, n, k)
    config = config or default_config(m=m, n=n, k=k, itemsize=a.dtype.itemsize)
    bm, bn = config.block_m, config.block_n
    place = functools.partial(_place, rows=pl.cdiv(m, bm), columns=pl.cdiv(n, bn), group=config.group_m)
    # GMEM, all four: what a program needs of each operand and result; it loads block_k of K at a time.
    if form.transpose_a:
        a_spec = pl.BlockSpec((None, k, bm), lambda g, p: (g, 0, place(p)[0]))
    else:
        a_spec = pl.BlockSpec((None, bm, k), lambda g, p: (g, place(p)[0], 0))
    if form.transpose_b:
        b_spec = pl.BlockSpec((None, bn, k), lambda g, p: (g, place(p)[1], 0))
    else:
        b_spec = pl.BlockSpec((None, k, bn), lambda g, p: (g, 0, place(p)[1]))
    bias_spec = pl.BlockSpec((1, bn), lambda g, p: (0, place(p)[1]))
    out_spec = pl.BlockSpec((None, bm, bn), lambda g, p: (g, *place(p)))
    biases = [] if bias is None else [bias[None, :]]
    out: list[jax.Array] = pl.pallas_call(
        functools.partial(
            _body, form=form, has_bias=bias is not None, sizes=sizes, config=config, place=place, sum_type=sum_type
        ),
        name=form.name,
        grid=(groups, pl.cdiv(m, bm) * pl.cdiv(n, bn)),
        in_specs=[a_spec, b_spec, *([bias_spec] * len(biases))],
        out_specs=[out_spec] * len(out_types),
        out_shape=[shape_like((groups, m, n), dtype, a) for dtype in out_types],
        compiler_params=plgpu.CompilerParams(num_warps=config.num_warps, num_stages=config.num_stages),
        interpret=interpret,
    )(a, b, *biases)
    return out


def _place(program: Any, *, rows: int, columns: int, group: int) -> tuple[Any, Any]:
    """(row block, column block) of a program: `group` row blocks go through the columns together."""
    group = min(group, rows)
    first = program // (group * columns) * group
    height = jnp.minimum(rows - first, group)
    return first + program % (group * columns) % height, program % (group * columns) // height


def _body(
    a_ref: Any,
    b_ref: Any,
    *refs: Any,
    form: _Form,
    has_bias: bool,
    sizes: _Sizes,
    config: MatmulGpuConfig,
    place: Any,
    sum_type: Any,
) -> None:
    # in: a_ref [block_m, K] or [K, block_m], b_ref [K, block_n] or [block_n, K], bias_ref [1, block_n] where given.
    # out: y_ref, and z_ref with keep [block_m, block_n].
    bias_ref, outputs = (refs[0], refs[1:]) if has_bias else (None, refs)
    bm, bn, bk = config.block_m, config.block_n, config.block_k
    i, j = place(pl.program_id(1))
    rows, columns = _Extent(0, i * bm, bm, sizes.m), _Extent(0, j * bn, bn, sizes.n)

    def add(s: Any, total: jax.Array) -> jax.Array:
        terms = _Extent(s * bk, s * bk, bk, sizes.k)
        a = _load(a_ref, *((terms, rows) if form.transpose_a else (rows, terms)))
        b = _load(b_ref, *((columns, terms) if form.transpose_b else (terms, columns)))
        dims = (((0,) if form.transpose_a else (1,), (1,) if form.transpose_b else (0,)), ((), ()))
        # float32 means float32: no tf32.
        precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
        return total + lax.dot_general(a, b, dims, precision=precision, preferred_element_type=sum_type)

    z = lax.fori_loop(0, pl.cdiv(sizes.k, bk), add, jnp.zeros((bm, bn), sum_type))
    if bias_ref is not None:
        z = z + _load(bias_ref, _Extent(0, 0, 1, 1), columns).astype(sum_type)
    for ref, value in zip(outputs, (activated(z, form.activation), z), strict=False):
        at, mask = _where(ref, rows, columns)
        plgpu.store(at, value.astype(ref.dtype), mask=mask)


@dataclasses.dataclass(frozen=True, slots=True)
class _Extent:
    """A block along one axis: where it starts in the ref, and in the array; its size, and the array's."""

    start: Any
    first: Any
    size: int
    total: int


def _where(ref: Any, rows: _Extent, columns: _Extent) -> tuple[Any, jax.Array | None]:
    """The block's place in a ref, and the mask of what is there; None where every block is whole."""
    shape = (rows.size, columns.size)
    places, masks = [], []
    for axis, extent in enumerate((rows, columns)):
        index = lax.broadcasted_iota(jnp.int32, shape, axis)
        places.append(extent.start + index)
        if extent.total % extent.size:
            masks.append(extent.first + index < extent.total)
    return ref.at[places[0], places[1]], functools.reduce(jnp.logical_and, masks) if masks else None


def _load(ref: Any, rows: _Extent, columns: _Extent) -> jax.Array:
    """[rows, columns], 0 where there is nothing."""
    at, mask = _where(ref, rows, columns)
    return plgpu.load(at) if mask is None else plgpu.load(at, mask=mask, other=jnp.zeros((), ref.dtype))
