"""Block sizes of the rms_norm family on TPU. They change speed, never results."""

import dataclasses
from collections.abc import Mapping
from typing import Any

MAX_WHOLE_ROW = 16384  # widest row kept whole in VMEM: 16 rows of it in float32 are 1 MiB
_BLOCK_BYTES = 1 << 20  # of float32 for one block of rows: six such live at once in the backward pass, of 16 MiB
_SUBLANES = 16  # rows of a bfloat16 tile


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RmsNormTpuConfig:
    """Rows and columns that a grid step holds."""

    block_n: int  # rows; a multiple of 16, the bfloat16 sublane tile
    block_d: int  # columns; a multiple of 128, or the whole row

    def __post_init__(self) -> None:
        if self.block_n < _SUBLANES or self.block_n % _SUBLANES:
            raise ValueError(f"rms_norm: block_n is {self.block_n}; expected a multiple of {_SUBLANES}")
        if self.block_d < 1:
            raise ValueError(f"rms_norm: block_d is {self.block_d}; expected at least 1")


def default_config(*, n: int, d: int) -> RmsNormTpuConfig:
    """n rows of d columns. A row is kept whole where it can be; else it is read twice, a block of columns at a time."""
    block_d = d if d <= MAX_WHOLE_ROW else 4096
    lanes = -(-block_d // 128) * 128
    rows = max(_BLOCK_BYTES // (4 * lanes) // _SUBLANES, 1) * _SUBLANES
    return RmsNormTpuConfig(block_n=min(rows, _round_up(max(n, 1), _SUBLANES), 1024), block_d=block_d)


def search_space(which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[RmsNormTpuConfig, ...]:
    """The heuristic's choice first, then others worth compiling. `inputs`: name -> anything with a shape."""
    *leading, d = inputs["x"].shape
    n = 1
    for size in leading:
        n *= size
    first = default_config(n=n, d=d)
    others = [
        RmsNormTpuConfig(block_n=rows, block_d=first.block_d)
        for rows in (16, 32, 64, 128, 256, 512, 1024)
        if rows <= _round_up(max(n, 1), _SUBLANES) and rows * first.block_d * 4 <= 2 * _BLOCK_BYTES
    ]
    return tuple(dict.fromkeys([first, *others]))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
