"""The one place in tops-bench that names jax.experimental.pallas: the chips' numbers, and jax's own kernels as baselines."""

from typing import Any

from jax.experimental.pallas import tpu as pltpu


def chip_info() -> Any:
    """jax's TpuInfo of the generation that the surrounding abstract mesh names."""
    return pltpu.get_tpu_info()
