"""Compiles one program for an NVIDIA GPU that is not here, through the CUDA plugin's compile-only topology.

What comes of it is what XLA says of its own output: registers, shared memory, spills and the size of the PTX. There is no schedule to
estimate a time from.
"""

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, SingleDeviceSharding, use_abstract_mesh

from tops_bench.aot import files
from tops_bench.aot.avals import aval
from tops_bench.aot.targets import Target

# GpuTargetConfigProto as text, from NVIDIA's published figures: compute capability, SMs, shared memory a block may opt into,
# registers, clock, memory rate and size, L2.
_TEMPLATE = """gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_core}
  threads_per_core_limit: 2048
  core_count: {cores}
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {l2}
  clock_rate_ghz: {clock}
  device_memory_size: {memory}
  shared_memory_per_block_optin: {shared_optin}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{name}"
"""
_CARDS: Mapping[str, Mapping[str, Any]] = {
    "sm_80": {"name": "NVIDIA A100-SXM4-80GB", "major": 8, "minor": 0, "cores": 108, "shared_core": 167936, "shared_optin": 166912,
              "bandwidth": 2039000000000, "l2": 41943040, "clock": 1.41, "memory": 85899345920},
    "sm_90": {"name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "cores": 132, "shared_core": 233472, "shared_optin": 232448,
              "bandwidth": 3352000000000, "l2": 52428800, "clock": 1.98, "memory": 85899345920},
    "sm_100": {"name": "NVIDIA B200", "major": 10, "minor": 0, "cores": 148, "shared_core": 233472, "shared_optin": 232448,
               "bandwidth": 8000000000000, "l2": 132644864, "clock": 1.965, "memory": 193273528320},
}  # fmt: skip
_TARGET = re.compile(r"^\.target (\w+)", re.MULTILINE)
_PTXAS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_SHARED = re.compile(r"(\d+) bytes smem")


def target_config(target: Target) -> str:
    """The card's description for XLA."""
    return _TEMPLATE.format(**_CARDS[target.name])


def compile_cuda(function: Callable[..., Any], avals: Sequence[Any], target: Target, folder: Path) -> dict[str, Any]:
    """Figures of one program. Raises what tracing, lowering or the compiler raises."""
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="1x1x1", topology="1x1x1", target_config=target_config(target)
    )
    device = topology.devices[0]
    here = SingleDeviceSharding(device)
    placed = jax.tree.map(lambda one: aval(one.shape, one.dtype, sharding=here), tuple(avals))
    with use_abstract_mesh(Mesh(np.array([device]), ("x",)).abstract_mesh):
        compiled = jax.jit(function, out_shardings=here).trace(*placed).lower(lowering_platforms=("cuda",)).compile()
    memory = compiled.memory_analysis()
    texts = [files.read(folder / name) for name in files.names(folder) if name.endswith(".ptx")]
    figures: dict[str, Any] = {
        "seconds": None,
        "registers": 0,
        "spills": 0,
        "shared_bytes": 0,
        "ptx_bytes": sum(len(text) for text in texts),
        "kernels": sum(text.count(".entry") for text in texts),
        "code_bytes": memory.generated_code_size_in_bytes if memory is not None else 0,
        "temp_bytes": memory.temp_size_in_bytes if memory is not None else 0,
        "assembler": "none: registers and spills unknown",
    }
    for at, text in enumerate(texts):
        _assemble(text, folder / f"assembled-{at}.ptx", target, figures)
    return figures


def _arch(text: str, target: Target) -> str:
    """What the PTX itself asks for: sm_90a where it uses what only that has."""
    match = _TARGET.search(text)
    return match.group(1) if match else target.name


def _assemble(text: str, path: Path, target: Target, figures: dict[str, Any]) -> None:
    """Registers and spills by this machine's ptxas, where there is one."""
    files.write(path, text)
    try:
        done = subprocess.run(
            ["ptxas", "-v", f"-arch={_arch(text, target)}", "-o", str(path.with_suffix(".cubin")), str(path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode:  # XLA dumps some pieces that only link together: the others' figures stand
        if figures["assembler"] != "ptxas":
            figures["assembler"] = f"ptxas: {(done.stderr.strip().splitlines() or [str(done.returncode)])[-1]}"
        return
    figures["assembler"] = "ptxas"
    figures["registers"] = max([figures["registers"], *(int(count) for count in _PTXAS.findall(done.stderr))])
    figures["shared_bytes"] = max([figures["shared_bytes"], *(int(size) for size in _SHARED.findall(done.stderr))])
    figures["spills"] += sum(int(stores) // 4 for stores, _ in _SPILLS.findall(done.stderr))
