"""What besides the program decides which code a compiler makes: versions, machine, flags, jax's options. As names and texts, for keys."""

import functools
import hashlib
import importlib.metadata
import os
import platform
from importlib import resources
from pathlib import Path

from tops_kernels.runtime.support import GPU_TARGETS, TPU_TARGETS
from tops_kernels.runtime.variables import TUNED

Facts = tuple[tuple[str, str], ...]  # (name, value), sorted by name

# target -> the packages whose compiler makes its native code, beside jax and jaxlib
_COMPILERS = dict.fromkeys(TPU_TARGETS, ("libtpu",)) | dict.fromkeys(
    GPU_TARGETS, ("jax-cuda12-plugin", "jax-cuda13-plugin")
)
# Of jax's options those that may change what an op of ours lowers to. What only changes messages, caching or checks is not here.
_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_softmax_custom_jvp",
    "jax_use_direct_linearize",
    "jax_use_simplified_jaxpr_constants",
    "jax_use_shardy_partitioner",
    "jax_allow_f16_reductions",
    "jax_explicit_x64_dtypes",
    "jax_pallas_enable_debug_checks",
    "jax_pallas_use_mosaic_gpu",
    "jax_threefry_partitionable",
)
_COMPILER_OPTIONS = (  # these reach the compiler alone
    "jax_optimization_level",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_xla_profile_version",
    "jax_disable_most_optimizations",
)
# What tells a compiler where to write, and how many devices a host plays, is not in the code it makes.
_SILENT = (
    "--xla_dump_",
    "--xla_jf_dump_",
    "--xla_mosaic_dump_",
    "--xla_force_host_platform_device_count",
    "--xla_gpu_cuda_data_dir",
)


def version(package: str) -> str:
    """A package's version; "absent" where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def versions(target: str, kind: str) -> Facts:
    """The toolchain of a unit: jax and jaxlib, and for native code the target's compiler; for the CPU what it is."""
    found = {name: version(name) for name in ("jax", "jaxlib")}
    if kind == "native":
        found |= {name: version(name) for name in _COMPILERS.get(target, ())}
        if target == "cpu":
            found |= {"cpu": cpu()}
    return tuple(sorted(found.items()))


def flags(target: str, kind: str) -> Facts:
    """Flags and options of this process and thread that change code for the target; those at their defaults count too."""
    import jax  # here: `tops-kernels env` works without

    values = jax.config.values
    found = {name: str(values[name]) for name in _OPTIONS if name in values}
    found[TUNED.name] = tuned_data() if TUNED.value() else "0"  # tuned blocks or heuristic ones
    if kind == "native":
        found |= {name: str(values[name]) for name in _COMPILER_OPTIONS if name in values}
        found["XLA_FLAGS"] = _loud("XLA_FLAGS")
        if target in TPU_TARGETS:
            found["LIBTPU_INIT_ARGS"] = _loud("LIBTPU_INIT_ARGS")
    return tuple(sorted(found.items()))


@functools.cache
def tuned_data() -> str:
    """A digest of the package's own tuned configurations, for all chips."""
    sha = hashlib.sha256()
    folder = resources.files("tops_kernels").joinpath("tuned")
    chips = sorted(folder.iterdir(), key=lambda one: one.name) if folder.is_dir() else []
    for file in (file for chip in chips for file in sorted(chip.iterdir(), key=lambda one: one.name)):
        content = file.read_bytes()
        sha.update(f"{file.name}\n{len(content)}\n".encode())
        sha.update(content)
    return sha.hexdigest()[:16]


def _loud(variable: str) -> str:
    """In their order: of two settings of one flag the last holds."""
    return " ".join(flag for flag in os.environ.get(variable, "").split() if not flag.startswith(_SILENT))


@functools.cache
def cpu() -> str:
    """The instruction set, the model and the number of cores XLA compiles for here: code for one may be illegal on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = [platform.processor()]
    told = sorted({line for line in lines if line.startswith(("flags", "Features", "model name", "CPU part"))} or lines)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    digest = hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
    return f"{platform.system()} {platform.machine()} {cores} cores {digest}"
