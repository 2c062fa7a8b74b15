"""Block sizes of matmul on TPU. They change speed, never results."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

_VMEM_BYTES = 13 << 20  # of the 16 MiB a kernel may use by default: both buffers of every block, and the sum


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MatmulTpuConfig:
    """The block of the result a grid step works on, and how much of the sum it adds."""

    block_m: int  # rows; a multiple of 32, the int8 sublane tile, or all of M
    block_n: int  # columns; a multiple of 128, or all of N
    block_k: int  # terms of the sum; a multiple of 128, or all of K

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"matmul: {name} is {getattr(self, name)}; expected at least 1")


def vmem_bytes(config: MatmulTpuConfig, itemsize: int, out_itemsize: int) -> int:
    """Two buffers of each block, and the float32 sum."""
    m, n, k = config.block_m, config.block_n, config.block_k
    return 2 * (m * k + k * n) * itemsize + 2 * m * n * out_itemsize + 4 * m * n


def default_config(*, m: int, n: int, k: int, itemsize: int, out_itemsize: int) -> MatmulTpuConfig:
    """Large square blocks of the result, so that each operand is read few times; what is left of VMEM goes to K."""
    block_m, block_n = _block(m, 1024, 32), _block(n, 1024, 128)
    block_k = _block(k, 4096 // itemsize, 128)
    config = MatmulTpuConfig(block_m=block_m, block_n=block_n, block_k=block_k)
    while vmem_bytes(config, itemsize, out_itemsize) > _VMEM_BYTES:
        config = _smaller(config)
    return config


def _smaller(config: MatmulTpuConfig) -> MatmulTpuConfig:
    if config.block_k > 512:
        return dataclasses.replace(config, block_k=_halved(config.block_k))
    if config.block_n >= config.block_m:
        return dataclasses.replace(config, block_n=_halved(config.block_n))
    return dataclasses.replace(config, block_m=_halved(config.block_m))


def _halved(block: int) -> int:
    return max(block // 2 // 128, 1) * 128


def _block(size: int, most: int, tile: int) -> int:
    """All of a short dimension, else a block of at most `most` that wastes little of the last one."""
    if size <= most:
        return max(size, 1)
    count = math.ceil(size / most)
    return math.ceil(size / count / max(tile, 128)) * max(tile, 128)


def search_space(which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[MatmulTpuConfig, ...]:
    """The heuristic's choice first, then others that fit. `inputs`: name -> anything with shape and dtype.

    For "vjp" the blocks are those of the larger product, da = dz b^T.
    """
    a, b = inputs["a"], inputs["b"]
    m, k, n = math.prod(a.shape[:-1]) if len(b.shape) == 2 else a.shape[-2], a.shape[-1], b.shape[-1]
    if which == "vjp":
        k, n = n, k
    itemsize = {"float32": 4, "bfloat16": 2, "int8": 1}[str(a.dtype)]
    out_itemsize = 2 if str(a.dtype) == "bfloat16" and params.get("out_dtype") in (None, "bfloat16") else 4
    first = default_config(m=m, n=n, k=k, itemsize=itemsize, out_itemsize=out_itemsize)
    sizes = [
        MatmulTpuConfig(block_m=_block(m, bm, 32), block_n=_block(n, bn, 128), block_k=_block(k, bk, 128))
        for bm in (256, 512, 1024, 2048)
        for bn in (256, 512, 1024, 2048)
        for bk in (512, 1024, 2048)
    ]
    fitting = [config for config in sizes if vmem_bytes(config, itemsize, out_itemsize) <= _VMEM_BYTES]
    return tuple(dict.fromkeys([first, *fitting]))
