"""Compiling for a target, here or not: which device stands for it, what its compiler needs to be told before jax starts."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tops_kernels.runtime.support import GPU_TARGETS, TPU_TARGETS
from tops_kernels.runtime.toolchain import version

# What jax.experimental.topologies calls a chip, and what the chip's devices call themselves.
_TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
_KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}
_ANY_GPU = "NVIDIA H100 80GB HBM3"  # jax 0.12 asks which GPU Triton code is lowered for; StableHLO then runs on any


class TargetError(RuntimeError):
    """A target that cannot be compiled for, or run on, here; the message says what is missing."""


def platform_of(target: str) -> str:
    """The platform, as jax names it at lowering."""
    return "tpu" if target in TPU_TARGETS else "cuda" if target in GPU_TARGETS else target


def environment(target: str) -> Mapping[str, str]:
    """Variables for a process that compiles for a target without its device; they must stand before it imports jax."""
    if target in TPU_TARGETS:
        return {
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any will do: the topology asked for decides
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else parallel processes abort on libtpu's lock file
        }
    return {} if target in GPU_TARGETS else {"JAX_PLATFORMS": "cpu"}


def missing(target: str) -> str:
    """What native code for the target needs and is not installed, with the command that installs it; empty where all is there."""
    if target in TPU_TARGETS and version("libtpu") == "absent":
        return f"native code for {target} needs libtpu, the TPU's compiler (no TPU needed). Run: pip install 'jax[tpu]'"
    if target in GPU_TARGETS and all(version(f"jax-cuda{major}-plugin") == "absent" for major in (12, 13)):
        return f"native code for {target} needs jax's CUDA plugin and such a GPU. Run: pip install 'jax[cuda13]'"
    return ""


def here() -> str:
    """The target of jax's first device. Raises TargetError for one that has no name here."""
    import jax

    return _named(jax.devices()[0])


def devices(target: str) -> list[Any]:
    """The devices of a target in this process; empty without any."""
    import jax

    try:
        found = jax.devices(platform_of(target))
    except RuntimeError:
        return []
    return [device for device in found if target == platform_of(target) or _named(device) == target]


@contextlib.contextmanager
def lowering(target: str) -> Iterator[Any]:
    """Within the block, programs may be lowered for the target. Yields the device to compile for.

    Raises TargetError where the compiler is missing, or a GPU, which has to be there.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh

    why = missing(target)
    if why:
        raise TargetError(why)
    attached = devices(target)
    if not attached and target in TPU_TARGETS:
        from jax.experimental import topologies

        try:
            attached = list(topologies.get_topology_desc(platform="tpu", topology_name=_TOPOLOGIES[target]).devices)
        except Exception as error:  # whatever libtpu raises: it is not ours, and it is all there is to say
            raise TargetError(f"libtpu cannot compile for {target}: {error}") from error
    if not attached:
        raise TargetError(f"native code for {target} needs such a device here; build portable code, or build there")
    if target == "cpu":
        yield attached[0]
        return
    # Kernels with operands in SMEM ask for the chip's generation at lowering.
    with jax.sharding.use_abstract_mesh(Mesh(np.array(attached[:1]), ("x",)).abstract_mesh):
        yield attached[0]


@contextlib.contextmanager
def exporting(platform: str) -> Iterator[None]:
    """Within the block, programs may be exported for a platform that is not here."""
    if platform != "cuda":
        yield
        return
    import jax
    from jax.sharding import AbstractDevice, AbstractMesh, AxisType

    device = AbstractDevice(_ANY_GPU, None, "gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), (AxisType.Auto,), abstract_device=device)):
        yield


def _named(device: Any) -> str:
    if device.platform == "cpu":
        return "cpu"
    name = _KINDS.get(device.device_kind, "")
    if device.platform == "gpu":
        name = f"sm_{str(device.compute_capability).replace('.', '')}"
    if not name:
        raise TargetError(f"no target is called {device.device_kind!r}; known: cpu, {', '.join(_TOPOLOGIES)}, sm_..")
    return name
