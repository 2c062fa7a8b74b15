"""The block configurations worth trying for a call: what tuning and schedule analysis ask for."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import tops_manifest
from tops_kernels.ops.gla import config as gla_tpu
from tops_kernels.ops.gla_step import config as gla_step_tpu
from tops_kernels.ops.matmul import _pallas_gpu_config as matmul_gpu
from tops_kernels.ops.matmul import config as matmul_tpu
from tops_kernels.ops.rms_norm import _pallas_gpu_config as rms_norm_gpu
from tops_kernels.ops.rms_norm import config as rms_norm_tpu
from tops_kernels.ops.simple_gla import config as simple_gla_tpu
from tops_kernels.runtime.chip import tracing_for

# (family, implementation) -> its search space, the heuristic's choice first. What has no entry has nothing to choose.
_SPACES: Mapping[tuple[str, str], Callable[[str, Mapping[str, Any], Mapping[str, Any]], tuple[Hashable, ...]]] = {
    ("gla", "pallas_tpu"): gla_tpu.search_space,
    ("gla_step", "pallas_tpu"): gla_step_tpu.search_space,
    ("matmul", "pallas_tpu"): matmul_tpu.search_space,
    ("matmul", "pallas_gpu"): matmul_gpu.search_space,
    ("rms_norm", "pallas_tpu"): rms_norm_tpu.search_space,
    ("rms_norm", "pallas_gpu"): rms_norm_gpu.search_space,
    ("simple_gla", "pallas_tpu"): simple_gla_tpu.search_space,
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
    if space is None:
        return ()
    with tracing_for(target):  # what fits, and what is best, hangs on the chip
        return space(which, inputs, params)
