"""matmul in plain JAX. Products accumulate in float32 (int8: int32), whatever the operands are."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tops_kernels.ops.matmul.epilogue import activated


def product(a: jax.Array, b: jax.Array, *, transpose_a: bool = False, transpose_b: bool = False) -> jax.Array:
    """a [*B, M, K] (or its transpose), b [K, N] or [*B, K, N] (or its transpose) -> [*B, M, N], not rounded: float32 or int32.

    float32 operands are multiplied as float32 on every platform (HIGHEST): a TPU would take them as bfloat16 otherwise.
    """
    shared = b.ndim < a.ndim
    batch: tuple[int, ...] = () if shared else tuple(range(a.ndim - 2))
    contract_a = a.ndim - (2 if transpose_a else 1)
    contract_b = b.ndim - (1 if transpose_b else 2)
    is_integer = jnp.issubdtype(a.dtype, jnp.integer)
    return lax.dot_general(
        a,
        b,
        (((contract_a,), (contract_b,)), (batch, batch)),
        precision=lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
        preferred_element_type=jnp.int32 if is_integer else jnp.float32,
    )


def matmul_fwd(
    a: jax.Array, b: jax.Array, bias: jax.Array | None, *, activation: str, out_dtype: Any, keep: bool
) -> tuple[jax.Array, ...]:
    """-> (y,), or (y, z) with `keep`: z [*B, M, N] float32 is what the activation was given."""
    z = product(a, b)
    if bias is not None:
        z = z + bias.astype(z.dtype)
    y = activated(z, activation).astype(out_dtype)
    return (y, z) if keep else (y,)


def matmul_da(dz: jax.Array, b: jax.Array, *, out_dtype: Any) -> jax.Array:
    """dz [*B, M, N], b [K, N]-shaped as in the forward pass -> da [*B, M, K]."""
    return product(dz, b, transpose_b=True).astype(out_dtype)


def matmul_db(a: jax.Array, dz: jax.Array, *, shared: bool, out_dtype: Any) -> jax.Array:
    """a [*B, M, K], dz [*B, M, N] -> db [K, N] summed over the batch where b was shared, else [*B, K, N]."""
    if shared:
        a, dz = a.reshape(-1, a.shape[-1]), dz.reshape(-1, dz.shape[-1])
    return product(a, dz, transpose_a=True).astype(out_dtype)
