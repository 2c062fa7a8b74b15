"""Block sizes of the rms_norm family on TPU. They change speed, never results."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tops_kernels.runtime.chip import Chip, chip

MAX_WHOLE_ROW = 16384  # widest row kept whole in VMEM: 16 rows of it in float32 are 1 MiB
_BLOCK_BYTES = 1 << 20  # of float32 for one block of rows: six such live at once in the backward pass, of 16 MiB
_SUBLANES = 16  # rows of a bfloat16 tile
_MOST_ROWS = 2048  # narrow rows: with fewer to a step the start of each step shows (tpu7x, D = 128: 1.34 of the HBM time at 1024, 1.09)
_VECTOR_BOUND = 7  # from this generation on HBM is faster than the vector unit in the backward pass of bfloat16 rows


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RmsNormTpuConfig:
    """Rows and columns that a grid step holds."""

    block_n: int  # rows; a multiple of 16, the bfloat16 sublane tile
    block_d: int  # columns; a multiple of 128, or the whole row
    mxu_squares: bool = False  # backward pass, whole bfloat16 rows, no residual: the MXU adds up a row's squares

    def __post_init__(self) -> None:
        if self.block_n < _SUBLANES or self.block_n % _SUBLANES:
            raise ValueError(f"rms_norm: block_n is {self.block_n}; expected a multiple of {_SUBLANES}")
        if self.block_d < 1:
            raise ValueError(f"rms_norm: block_d is {self.block_d}; expected at least 1")

    def misfit(self, which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> str:
        """Why this must not be used for a call on the chip that is traced for; "" where it may. Arguments as `search_space` has them."""
        whole = dataclasses.replace(self, block_d=min(self.block_d, inputs["x"].shape[-1]))  # of a wider row: the whole
        space = search_space(which, inputs, params)
        return "" if whole in space else f"with rows of {whole.block_d} it is not in the search space of this call"


def default_config(*, n: int, d: int) -> RmsNormTpuConfig:
    """n rows of d columns. A row is kept whole where it can be; else it is read twice, a block of columns at a time."""
    block_d = d if d <= MAX_WHOLE_ROW else 4096
    lanes = -(-block_d // 128) * 128
    rows = max(_BLOCK_BYTES // (4 * lanes) // _SUBLANES, 1) * _SUBLANES
    return RmsNormTpuConfig(block_n=min(rows, _round_up(max(n, 1), _SUBLANES), _MOST_ROWS), block_d=block_d)


def backward_config(*, n: int, d: int, dtype: str, is_scaled: bool, is_added: bool, on: Chip) -> RmsNormTpuConfig:
    """As `default_config`, for the backward pass on a chip. is_scaled: there is a scale; is_added: there is a residual.

    Where the vector unit is what a step waits for, the MXU takes a row's squares from it. It does all pairs of a block's rows, so
    a block has enough rows to hide that behind (tpu7x, D = 4096: 1.47 of the HBM time before, 1.28 with blocks of 256 rows).
    """
    config = default_config(n=n, d=d)
    if on.generation < _VECTOR_BOUND or dtype != "bfloat16" or is_added or config.block_d < d:
        return config
    rows = min(4 * config.block_n, 256)
    if is_scaled and config.block_n < rows <= n and rows >= 128:
        return RmsNormTpuConfig(block_n=rows, block_d=d, mxu_squares=True)
    if config.block_n == _MOST_ROWS and n >= 2 * _MOST_ROWS:  # D = 128: 1.97 of the HBM time before, 1.71
        return RmsNormTpuConfig(block_n=2 * _MOST_ROWS, block_d=d)
    return config


def search_space(which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[RmsNormTpuConfig, ...]:
    """The heuristic's choice first, then others worth compiling. `inputs`: name -> anything with a shape."""
    *leading, d = inputs["x"].shape
    n = math.prod(leading)
    first, most = default_config(n=n, d=d), 2 * _BLOCK_BYTES
    is_added, dtype = "residual" in inputs, str(inputs["x"].dtype)
    on_mxu = [False]
    if which == "vjp":
        first = backward_config(n=n, d=d, dtype=dtype, is_scaled="scale" in inputs, is_added=is_added, on=chip())
        if dtype == "bfloat16" and not is_added and first.block_d == d:
            on_mxu, most = [False, True], 4 * _BLOCK_BYTES
    others = [
        RmsNormTpuConfig(block_n=rows, block_d=first.block_d, mxu_squares=mxu)
        for mxu in on_mxu
        for rows in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
        if rows <= _round_up(max(n, 1), _SUBLANES)
        and rows * first.block_d * 4 <= most
        and (not mxu or 64 <= rows <= 256)
    ]
    return tuple(dict.fromkeys([first, *others]))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
