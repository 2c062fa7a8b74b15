"""Pallas kernels for JAX that you can check: TPU first, GPU second, plain XLA everywhere.

    import jax, tops_kernels
    x = jax.random.normal(jax.random.key(0), (4, 1000, 512))
    y = tops_kernels.rms_norm(x)

One function an op. `support` says what runs where. The rest serves the test and benchmark stages.
"""

from tops_kernels.ops.gla.op import gla
from tops_kernels.ops.matmul.op import matmul
from tops_kernels.ops.rms_norm.op import add_rms_norm, rms_norm
from tops_kernels.runtime.interpreter import checking_interpreter, races_found
from tops_kernels.runtime.overrides import use_config
from tops_kernels.runtime.search import configurations
from tops_kernels.runtime.sources import source_digest, source_mtime
from tops_kernels.runtime.support import Support, support
from tops_kernels.runtime.workspace import workspace_dir

__all__ = [
    "Support",
    "add_rms_norm",
    "checking_interpreter",
    "configurations",
    "gla",
    "matmul",
    "races_found",
    "rms_norm",
    "source_digest",
    "source_mtime",
    "support",
    "use_config",
    "workspace_dir",
]
