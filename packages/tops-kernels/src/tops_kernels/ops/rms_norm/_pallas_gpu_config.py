"""Block sizes of the rms_norm family on GPU. They change speed, never results."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

MAX_WHOLE_ROW = 8192  # widest row that a program keeps in registers: 32 numbers an array and thread, with 8 warps
_BLOCK = 4096  # numbers of one block of short rows
_PROGRAMS = (
    256  # of the backward pass, whose partial sums of scale's gradient go through memory: two for each of 132 SMs
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RmsNormGpuConfig:
    """Rows and columns that a program holds at a time. Powers of two, as Triton has it."""

    block_n: int
    block_d: int
    num_warps: int

    def __post_init__(self) -> None:
        for name in ("block_n", "block_d", "num_warps"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise ValueError(f"rms_norm: {name} is {value}; expected a power of two")

    def misfit(self, which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> str:
        """Why this must not be used for a call; "" where it may. Arguments as `search_space` has them, which holds what may."""
        return "" if self in search_space(which, inputs, params) else "it is not in the search space of this call"


def default_config(*, n: int, d: int) -> RmsNormGpuConfig:
    """n rows of d columns. A row is kept whole up to MAX_WHOLE_ROW; a wider one is read twice, a block of columns at a time."""
    block_d = min(_power(d), MAX_WHOLE_ROW if d <= MAX_WHOLE_ROW else 4096)
    block_n = max(min(_BLOCK // block_d, _power(n)), 1)
    return RmsNormGpuConfig(block_n=block_n, block_d=block_d, num_warps=_warps(block_n * block_d))


def steps(n: int, config: RmsNormGpuConfig) -> int:
    """Blocks of rows that a program of the backward pass goes through, so that there are about _PROGRAMS."""
    return max(math.ceil(n / config.block_n / _PROGRAMS), 1)


def search_space(which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[RmsNormGpuConfig, ...]:
    """The heuristic's choice first, then others worth trying. `inputs`: name -> anything with a shape."""
    *leading, d = inputs["x"].shape
    n = math.prod(leading)
    first = default_config(n=n, d=d)
    others = [
        RmsNormGpuConfig(block_n=rows, block_d=first.block_d, num_warps=warps)
        for rows in (1, 2, 4, 8, 16)
        for warps in (1, 2, 4, 8, 16)
        if rows <= _power(n)
        and 1024 <= rows * first.block_d <= 4 * _BLOCK
        and 4 <= rows * first.block_d // (32 * warps) <= 64
    ]
    return tuple(dict.fromkeys([first, *others]))


def _power(size: int) -> int:
    """The power of two at or above."""
    return 1 << max(size - 1, 0).bit_length()


def _warps(numbers: int) -> int:
    """16 numbers a thread: four loads of 16 bytes of float32."""
    return min(max(numbers // (32 * 16), 1), 16)
