"""The TPU that a kernel is traced for, as far as tracing knows it. For block sizes alone: results never depend on it."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Chip:
    """One core of a TPU."""

    vmem_bytes: int
    flops_per_byte: float  # bfloat16 operations in the time that HBM moves a byte


UNKNOWN = Chip(vmem_bytes=16 << 20, flops_per_byte=240.0)  # the least VMEM of all chips (v4's); the balance of v5e


def chip() -> Chip:
    """The chip that the mesh or the default device names; UNKNOWN where neither does.

    Traced on a CPU and exported, a program may go to any chip: it gets blocks that fit them all.
    """
    from jax.experimental.pallas import tpu as pltpu  # Pallas takes longer to import than all of this package

    try:
        info = pltpu.get_tpu_info()
    except (ValueError, RuntimeError, NotImplementedError):  # no TPU, no backend at all, or one newer than this jax
        return UNKNOWN
    return Chip(int(info.vmem_capacity_bytes), info.bf16_ops_per_second / info.mem_bw_bytes_per_second)
