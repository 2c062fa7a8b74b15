"""The one place in tops-bench that names jax.experimental.pallas: the chips' numbers, and jax's own kernels as baselines.

jax's kernels ship with jax, are compiled as they are, and stand in the table as what a user would have without tops.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tops_bench.aot.avals import aval

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def chip_info() -> Any:
    """jax's TpuInfo of the generation that the surrounding abstract mesh names."""
    return pltpu.get_tpu_info()


def _matmul(config: str) -> Callable[..., Any]:
    """pallas.ops' matmul under the signature of tops' op; `config`: "1024x1024x512", its blocks of M, N and K."""
    block_m, block_n, block_k = (int(size) for size in config.split("x"))

    def function(
        a: jax.Array,
        b: jax.Array,
        bias: jax.Array | None = None,
        *,
        activation: str = "none",
        out_dtype: str | None = None,
    ) -> jax.Array:
        from jax.experimental.pallas.ops.tpu.matmul import matmul

        from tops_bench.baselines.matmul import _finish

        if b.ndim != 2:
            raise NotImplementedError("jax.experimental.pallas.ops.tpu.matmul takes no batch of right operands")
        flat = a.reshape(-1, a.shape[-1])
        dtype = out_dtype or (jnp.float32 if bias is not None or activation != "none" else a.dtype)
        y = matmul(flat, b, block_shape=(block_m, block_n), block_k=block_k, out_dtype=jnp.dtype(dtype))
        return _finish(a, y.reshape(*a.shape[:-1], b.shape[-1]), bias, activation, out_dtype)

    return function


# (op, kernel) -> configuration -> a function of the op's signature
CONTENDERS: Mapping[tuple[str, str], Callable[[str], Callable[..., Any]]] = {("matmul", "matmul"): _matmul}
# which configurations stand in the matrix; the best of them is jax's best
CONFIGURATIONS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("matmul", "matmul"): ("512x512x512", "1024x1024x512", "1024x1024x1024", "512x1024x2048")
}


def _bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return aval(shape, jnp.bfloat16)


def _flash(B: int, H: int, T: int, D: int, causal: bool) -> Program:
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    return functools.partial(flash_attention, causal=causal), (_bf16(B, H, T, D),) * 3


def _splash(B: int, H: int, T: int, D: int, causal: bool, block_q: int, block_kv: int, compute: int) -> Program:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    mask = masks.CausalMask((T, T)) if causal else masks.FullMask((T, T))
    sizes = kernel.BlockSizes(block_q=block_q, block_kv=block_kv, block_kv_compute=compute)
    attend = kernel.make_splash_mha(masks.MultiHeadMask([mask] * H), block_sizes=sizes, head_shards=1, q_seq_shards=1)
    return jax.vmap(attend), (_bf16(B, H, T, D),) * 3


def _gmm(M: int, K: int, N: int, groups: int, tiling: tuple[int, int, int]) -> Program:
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    sizes = aval((groups,), jnp.int32)
    return functools.partial(gmm, tiling=tuple(tiling)), (_bf16(M, K), _bf16(groups, K, N), sizes)


def _ragged_dot(M: int, K: int, N: int, groups: int) -> Program:
    return jax.lax.ragged_dot, (_bf16(M, K), _bf16(groups, K, N), aval((groups,), jnp.int32))


def _paged(B: int, H: int, KV: int, D: int, pages: int, page: int, longest: int) -> Program:
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    lengths = aval((B,), jnp.int32)
    table = aval((B, longest // page), jnp.int32)
    cache = _bf16(KV, pages, page, D)
    function = functools.partial(paged_attention, pages_per_compute_block=8)
    return function, (_bf16(B, H, D), cache, cache, lengths, table)


def _small_matmul(rows: int) -> Program:
    """One dot with everything in VMEM already: what published cycle counts are of."""

    def body(a_ref: Any, b_ref: Any, y_ref: Any) -> None:
        y_ref[...] = jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

    function = pl.pallas_call(body, out_shape=aval((rows, 128), jnp.float32), name="small_matmul")
    return function, (_bf16(rows, 128), _bf16(128, 128))


# Kernels of jax's for which tops has no op yet: what a later op has to beat. name -> (**options) -> program
REFERENCES: Mapping[str, Callable[..., Program]] = {
    "flash_attention": _flash,
    "splash_attention": _splash,
    "megablox_gmm": _gmm,
    "ragged_dot": _ragged_dot,
    "paged_attention": _paged,
    "small_matmul": _small_matmul,
}
REFERENCE_ROWS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("flash_attention", "B2-H16-T2048-D128-causal", {"B": 2, "H": 16, "T": 2048, "D": 128, "causal": True}),
    (
        "splash_attention",
        "B2-H16-T2048-D128-causal",
        {"B": 2, "H": 16, "T": 2048, "D": 128, "causal": True, "block_q": 512, "block_kv": 1024, "compute": 512},
    ),
    ("megablox_gmm", "8192x4096x14336-8", {"M": 8192, "K": 4096, "N": 14336, "groups": 8, "tiling": (512, 1024, 1024)}),
    ("ragged_dot", "8192x4096x14336-8", {"M": 8192, "K": 4096, "N": 14336, "groups": 8}),
    (
        "paged_attention",
        "B32-H32-KV8-D128-T2048",
        {"B": 32, "H": 32, "KV": 8, "D": 128, "pages": 4096, "page": 16, "longest": 2048},
    ),
)
