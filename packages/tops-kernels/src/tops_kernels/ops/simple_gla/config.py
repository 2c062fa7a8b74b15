"""Block sizes of simple_gla on TPU. They change speed, never results."""

import dataclasses
from collections.abc import Mapping
from typing import Any

_LANES = 128
_HEADS_IN_PLACE = 8  # the sublane tile of an array [.., H, 128]
# Of VMEM for the blocks of one step: the smallest chip has 16 MiB, and states and spilled registers want the rest.
_BLOCK_BYTES = {"fwd": 10 << 20, "vjp": 9 << 20}
_STATE_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SimpleGlaTpuConfig:
    """How heads are read, and how many a grid step holds."""

    in_place: bool  # read [B, T, H, 128] as it is; else XLA copies the arrays into the kernel's order first
    block_h: int  # k/v heads of a grid step; 8 in place

    def __post_init__(self) -> None:
        if self.block_h < 1 or (self.in_place and self.block_h != _HEADS_IN_PLACE):
            raise ValueError(
                f"simple_gla: block_h is {self.block_h}; expected at least 1, and {_HEADS_IN_PLACE} in place"
            )

    def misfit(self, which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> str:
        """Why this must not be used for a call; "" where it may. Arguments as `search_space` has them, which holds what may."""
        space = search_space(which, inputs, params)
        if self not in space:
            return "it is not in the search space of this call"
        state = 4 * _round_up(inputs["k"].shape[3]) * _round_up(inputs["v"].shape[3])
        if self != space[0] and self.block_h > 1 and 6 * self.block_h * state > _STATE_BYTES:
            return f"the states of {self.block_h} heads take {6 * self.block_h * state} bytes; there is room for {_STATE_BYTES}"
        return ""


def default_config(*, hq: int, h: int, k: int, v: int, itemsize: int, which: str = "fwd") -> SimpleGlaTpuConfig:
    """hq query heads, h key/value heads, widths k and v, itemsize of q, k, v in bytes, `which` "fwd" or "vjp"."""
    if k == v == _LANES and h % _HEADS_IN_PLACE == 0:
        group = hq // h
        once = group * 2 * itemsize + 2 * itemsize  # q, o; k, v: bytes a step, head and lane
        again = group * 3 * itemsize + 4 * itemsize  # q, do, dq; k, v, dk, dv
        blocks = 2 * 120 * _HEADS_IN_PLACE * _LANES * (once if which == "fwd" else again)
        if blocks <= _BLOCK_BYTES[which]:
            return SimpleGlaTpuConfig(in_place=True, block_h=_HEADS_IN_PLACE)
    state = 4 * _round_up(k) * _round_up(v)
    fits = [n for n in (2, 1) if h % n == 0 and (n == 1 or (6 * n * state <= _STATE_BYTES and hq == h))]
    return SimpleGlaTpuConfig(in_place=False, block_h=fits[0])


def search_space(which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[SimpleGlaTpuConfig, ...]:
    """The heuristic's choice first, then others worth compiling. `inputs`: name -> anything with shape and dtype."""
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    h = k.shape[2]
    first = default_config(
        hq=q.shape[2], h=h, k=k.shape[3], v=v.shape[3], itemsize=2 if str(q.dtype) == "bfloat16" else 4, which=which
    )
    others = [SimpleGlaTpuConfig(in_place=False, block_h=n) for n in (1, 2, 4) if h % n == 0]
    return tuple(dict.fromkeys([first, *others]))


def _round_up(value: int) -> int:
    return -(-value // _LANES) * _LANES
