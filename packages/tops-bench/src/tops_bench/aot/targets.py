"""The chips that can be compiled for without one in the room, and their numbers."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A chip by the name users know it by.

    `topology` is what `jax.experimental.topologies` calls it; `delay_slots` are the bundles that still run after a branch is
    taken, in cycles, `packs_idle` whether one empty bundle stands for several idle ones, and `granule` the bytes of a DMA granule: all
    as read off the schedules of libtpu 0.0.42 (docs/aot.md).
    """

    name: str
    platform: str  # "tpu" | "cuda"
    topology: str
    delay_slots: int = 4
    granule: int = 32
    packs_idle: bool = False


TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target("v4", "tpu", "v4:2x2x1", delay_slots=1, granule=512),
        Target("v5e", "tpu", "v5e:2x2"),
        Target("v5p", "tpu", "v5p:2x2x1"),
        Target("v6e", "tpu", "v6e:2x2"),
        Target("tpu7x", "tpu", "tpu7x:2x2x1", packs_idle=True),
        Target("sm_80", "cuda", "1x1x1"),
        Target("sm_90", "cuda", "1x1x1"),
        Target("sm_100", "cuda", "1x1x1"),
    )
}
TPU_TARGETS = tuple(name for name, target in TARGETS.items() if target.platform == "tpu")
GPU_TARGETS = tuple(name for name, target in TARGETS.items() if target.platform == "cuda")


def target(name: str) -> Target:
    """Raises ValueError naming the known targets."""
    if name not in TARGETS:
        raise ValueError(f"target: got {name!r}; expected one of {', '.join(TARGETS)}")
    return TARGETS[name]


@dataclasses.dataclass(frozen=True, slots=True)
class Chip:
    """A TPU's numbers, per device (both TensorCores where the two are one device), from jax's own TpuInfo.

    clock: Hz, not in TpuInfo: its bf16 rate over what its MXUs do a cycle. From the sixth generation on an MXU takes two rows a cycle.
    """

    kind: str
    generation: int
    cores: int
    mxus: int  # a core
    mxu_size: int
    vmem_bytes: int  # a core
    smem_bytes: int
    hbm_bytes_per_second: float
    bf16_per_second: float
    int8_per_second: float

    @property
    def rows_per_cycle(self) -> int:
        """Rows of a 16-bit left operand that one MXU takes in a cycle."""
        return 2 if self.generation >= 6 else 1

    @property
    def clock(self) -> float:
        return self.bf16_per_second / self.cores / (2 * self.mxus * self.mxu_size**2 * self.rows_per_cycle)

    def matmul_cycles(self, bits: int) -> float:
        """Cycles that one vmatmul op of this operand width keeps its MXU busy, at the peak rate.

        An op takes one register of the left operand: 8 sublanes of 32 bits, so 8 rows of float32, 16 of bfloat16, 32 of int8.
        """
        rows = 8 * 32 // bits
        rate = self.rows_per_cycle
        if bits == 8 and self.int8_per_second > self.bf16_per_second:
            rate *= 2
        return rows / rate


def chip_from_info(kind: str, info: Any) -> Chip:
    """`info`: a TpuInfo; its figures are for one core."""
    return Chip(
        kind=kind,
        generation=info.generation,
        cores=info.num_cores,
        mxus=info.num_mxus,
        mxu_size=info.mxu_column_size,
        vmem_bytes=info.vmem_capacity_bytes,
        smem_bytes=info.smem_capacity_bytes,
        hbm_bytes_per_second=float(info.mem_bw_bytes_per_second) * info.num_cores,
        bf16_per_second=float(info.bf16_ops_per_second) * info.num_cores,
        int8_per_second=float(info.int8_ops_per_second) * info.num_cores,
    )
