"""Block sizes of the gla_step family on TPU. They change speed, never results."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tops_kernels.runtime.chip import chip

_LANES = 128
_SUBLANES = 8
_STATE_BYTES = (
    2 << 20
)  # of a block of states: two buffers each of what comes in and what goes out are half of the smallest chip's VMEM
_LONG_BYTES = 512 << 10  # of a transfer that keeps memory busy
_MOST_HEADS = 16  # heads are unrolled: more is code, not speed


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GlaStepTpuConfig:
    """How many heads a grid step holds."""

    block_h: int  # key/value heads of a grid step; a divisor of H

    def __post_init__(self) -> None:
        if self.block_h < 1:
            raise ValueError(f"gla_step: block_h is {self.block_h}; expected at least 1")

    def misfit(self, which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> str:
        """Why this must not be used for a call; "" where it may. Arguments as `search_space` has them, which holds what may."""
        return "" if self in search_space(which, inputs, params) else "it is not in the search space of this call"


def default_config(*, h: int, k: int, v: int, has_index: bool, cores: int) -> GlaStepTpuConfig:
    """h key/value heads, widths k and v: as many heads as fit, the transfer of a block being what must be long.

    Rows that are picked by an index come in order, so blocks of heads are all that a chip of several `cores` can share out: two at least, where
    that leaves them long enough.
    """
    choices = _choices(h, k, v)
    halves = [n for n in choices if n < h and n * _state(k, v) >= _LONG_BYTES]
    return GlaStepTpuConfig(block_h=halves[0] if has_index and cores > 1 and halves else choices[0])


def search_space(which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[GlaStepTpuConfig, ...]:
    """The heuristic's choice first, then others worth compiling. `inputs`: name -> anything with shape and dtype."""
    if which != "fwd":
        return ()  # XLA's
    _, h, k = inputs["k"].shape
    v = inputs["v"].shape[2]
    first = default_config(h=h, k=k, v=v, has_index="index" in inputs, cores=chip().cores)
    return tuple(dict.fromkeys([first, *(GlaStepTpuConfig(block_h=n) for n in _choices(h, k, v))]))


def _choices(h: int, k: int, v: int) -> list[int]:
    """Numbers of heads that fit, the largest first."""
    most = max(1, _STATE_BYTES // _state(k, v))
    return [n for n in range(min(h, _MOST_HEADS, most), 0, -1) if h % n == 0]


def _state(k: int, v: int) -> int:
    """Bytes of a head's state in VMEM."""
    sizes = [_round_up(rows, _SUBLANES) * _round_up(lanes, _LANES) for rows, lanes in ((k, v), (v, k))]
    return 4 * min(sizes)  # the kernel takes the order of the two that is smaller


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
