"""Block sizes of matmul on GPU. They change speed, never results."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MatmulGpuConfig:
    """The block of the result a program works on, how much of the sum it adds at a time, and how. Sizes are powers of two from 16."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int  # blocks of the sum in flight
    group_m: int = 8  # row blocks that run together, so that the column blocks they share are still in the L2 cache

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            value = getattr(self, name)
            if value < 16 or value & (value - 1):
                raise ValueError(
                    f"matmul: {name} is {value}; expected a power of two, at least 16 (a tensor core's tile)"
                )
        for name in ("num_warps", "num_stages", "group_m"):
            if getattr(self, name) < 1:
                raise ValueError(f"matmul: {name} is {getattr(self, name)}; expected at least 1")

    def misfit(self, which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> str:
        """Why this must not be used for a call; "" where it may. Arguments as `search_space` has them, which holds what may."""
        return "" if self in search_space(which, inputs, params) else "it is not in the search space of this call"


def default_config(*, m: int, n: int, k: int, itemsize: int) -> MatmulGpuConfig:
    """[m, k] times [k, n]: blocks of 128 x 128, smaller where the result is, and 128 octets of each row in flight thrice."""
    block_m, block_n = (min(max(_power(size), 16), 128) for size in (m, n))
    block_k = min(max(_power(k), 32), max(128 // itemsize, 32))
    return MatmulGpuConfig(
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        num_warps=8 if block_m * block_n >= 128 * 128 else 4,
        num_stages=3 if k > block_k else 1,
    )


def shared_bytes(config: MatmulGpuConfig, itemsize: int) -> int:
    """Of shared memory, for the operands' blocks in flight."""
    return (config.block_m + config.block_n) * config.block_k * itemsize * config.num_stages


def search_space(which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[MatmulGpuConfig, ...]:
    """The heuristic's choice first, then others that fit 99 KiB of shared memory. `inputs`: name -> anything with shape and dtype.

    For "vjp" the blocks are those of the larger product, da = dz b^T.
    """
    a, b = inputs["a"], inputs["b"]
    m, k, n = math.prod(a.shape[:-1]) if len(b.shape) == 2 else a.shape[-2], a.shape[-1], b.shape[-1]
    if which == "vjp":
        k, n = n, k
    itemsize = {"float32": 4, "bfloat16": 2, "int8": 1}[str(a.dtype)]
    others = [
        MatmulGpuConfig(block_m=bm, block_n=bn, block_k=bk, num_warps=warps, num_stages=stages)
        for bm in (32, 64, 128, 256)
        for bn in (32, 64, 128, 256)
        for bk in (32, 64, 128)
        for warps in (4, 8)
        for stages in (2, 3, 4)
        if bm <= max(_power(m), 16)
        and bn <= max(_power(n), 16)
        and bk <= max(_power(k), 32)
        and 32 <= bm * bn // (32 * warps) <= 128
    ]
    fitting = [config for config in others if shared_bytes(config, itemsize) <= 99 << 10]
    return tuple(dict.fromkeys([default_config(m=m, n=n, k=k, itemsize=itemsize), *fitting]))


def _power(size: int) -> int:
    """The power of two at or above."""
    return 1 << max(size - 1, 0).bit_length()
