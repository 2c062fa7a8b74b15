"""The chip that a kernel is traced for, as far as tracing knows it. For block sizes alone: results never depend on it."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

INTERPRETER = "interpreter"  # stands for a chip where a kernel runs in Pallas' interpreter

# How jax names the TPUs, and the cores of one device.
_KINDS: Mapping[str, tuple[str, int]] = {
    "v4": ("TPU v4", 2),
    "v5e": ("TPU v5 lite", 1),
    "v5p": ("TPU v5", 2),
    "v6e": ("TPU v6 lite", 1),
    "tpu7x": ("TPU7x", 1),
}
TPU_TARGETS = tuple(_KINDS)
GPU_TARGETS = ("sm_80", "sm_90", "sm_100")


@dataclasses.dataclass(frozen=True, slots=True)
class Chip:
    """One core of a TPU."""

    vmem_bytes: int
    flops_per_byte: float  # bfloat16 operations in the time that HBM moves a byte
    generation: int = 0  # 7: tpu7x; 0: not known
    cores: int = 1  # that share out a grid's parallel dimensions


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
    balance = info.bf16_ops_per_second / info.mem_bw_bytes_per_second
    return Chip(int(info.vmem_capacity_bytes), balance, int(info.generation), int(info.num_cores))


def chip_name(implementation: str) -> str:
    """The chip that a kernel of this implementation is traced for, as `support` calls it; "" where that is not known."""
    from jax.sharding import get_abstract_mesh

    try:
        device = get_abstract_mesh().abstract_device or _default_device()
    except RuntimeError:  # no backend at all
        return ""
    if implementation == "pallas_gpu":
        capability = str(getattr(device, "compute_capability", ""))
        return f"sm_{capability.replace('.', '')}" if capability and device.platform == "gpu" else ""
    if implementation != "pallas_tpu" or device.platform != "tpu":
        return ""
    aliases = {"TPU v5e": "v5e", "TPU v5p": "v5p", "TPU v6e": "v6e"}  # what older and newer jax call the same chips
    return aliases.get(device.device_kind) or next(
        (name for name, (kind, _) in _KINDS.items() if kind == device.device_kind), ""
    )


def _default_device() -> Any:
    """The device that jax would run on: the first of the default backend where none is set."""
    import jax

    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]  # jax makes its settings attributes at run time
    if isinstance(chosen, str):
        return jax.devices(chosen)[0]
    return jax.devices()[0] if chosen is None else chosen


def tracing_for(target: str) -> contextlib.AbstractContextManager[object]:
    """Within it, kernels are traced for a TPU by its name ("v5e"), wherever this runs; any other target changes nothing."""
    if target not in _KINDS:
        return contextlib.nullcontext()
    from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

    kind, cores = _KINDS[target]
    return use_abstract_mesh(
        AbstractMesh((1,), ("x",), (AxisType.Auto,), abstract_device=AbstractDevice(kind, cores, "tpu"))
    )
