"""The block configurations worth trying for a call: what tuning and schedule analysis ask for."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import tops_manifest
from tops_kernels.ops.gla import config as gla_tpu
from tops_kernels.ops.matmul import _pallas_gpu_config as matmul_gpu
from tops_kernels.ops.matmul import config as matmul_tpu
from tops_kernels.ops.rms_norm import _pallas_gpu_config as rms_norm_gpu
from tops_kernels.ops.rms_norm import config as rms_norm_tpu

# (family, implementation) -> its search space, the heuristic's choice first. What has no entry has nothing to choose.
_SPACES: Mapping[tuple[str, str], Callable[[str, Mapping[str, Any], Mapping[str, Any]], tuple[Hashable, ...]]] = {
    ("gla", "pallas_tpu"): gla_tpu.search_space,
    ("matmul", "pallas_tpu"): matmul_tpu.search_space,
    ("matmul", "pallas_gpu"): matmul_gpu.search_space,
    ("rms_norm", "pallas_tpu"): rms_norm_tpu.search_space,
    ("rms_norm", "pallas_gpu"): rms_norm_gpu.search_space,
}


def configurations(
    op: str, implementation: str, which: str, inputs: Mapping[str, Any], params: Mapping[str, Any], target: str
) -> tuple[Hashable, ...]:
    """Configurations of one implementation for one call, the heuristic's choice first; empty where it has none.

    Args:
      op: an op's name. implementation: a kernel_map key. which: "fwd" or "vjp".
      inputs: input name -> anything with shape and dtype. params: static parameters of the call.
      target: the chip, as `support` takes it.
    Returns: values for `use_config(op, which, config)`.
    Raises: KeyError for an op the manifest does not have.
    """
    space = _SPACES.get((tops_manifest.op(op).family, implementation))
    return () if space is None else space(which, inputs, params)
