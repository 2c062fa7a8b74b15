"""What must be in the environment before jax is imported, and which versions made a figure."""

import importlib.metadata
from pathlib import Path

from tops_bench.aot import dumps
from tops_bench.aot.targets import Target

INSTALL = {
    "tpu": "uv pip install 'tops-bench[tpu]' (that is jax[tpu]: libtpu, no TPU needed)",
    "cuda": "uv pip install 'tops-bench[cuda]' (jax-cuda13-pjrt and jax-cuda13-plugin, no GPU or driver needed)",
}
_NEEDS = {"tpu": ("libtpu",), "cuda": ("jax-cuda13-pjrt", "jax-cuda13-plugin")}


def missing(platform: str) -> str | None:
    """Why a platform cannot be compiled for here, with the install command; None where it can."""
    absent = [name for name in _NEEDS[platform] if _version(name) is None]
    if not absent:
        return None
    return f"compiling for {platform} needs {', '.join(absent)}, not installed here. Run: {INSTALL[platform]}"


def environment(platform: str, dump_folder: Path, *, located: bool = True) -> dict[str, str]:
    """Variables for a child that compiles; they must stand before it imports jax. located: see dumps.flags."""
    if platform == "cuda":
        return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_dump_to={dump_folder} --xla_dump_hlo_as_text"}
    return {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any will do: the topology asked for decides
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else parallel children abort on libtpu's lock file
        "LIBTPU_INIT_ARGS": dumps.flags(dump_folder, located=located),
    }


def versions(target: Target) -> dict[str, str]:
    """Versions a figure depends on."""
    names = ("jax", "jaxlib", *_NEEDS[target.platform])
    return {name: _version(name) or "absent" for name in names}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
