"""Lowering for a chip that is not here."""

import contextlib
from collections.abc import Callable

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType


@pytest.fixture(scope="session")
def on() -> Callable[[str], contextlib.AbstractContextManager[object]]:
    """on(platform): within it a program may be lowered for the platform. From jax 0.12 on, Triton asks which GPU it is for."""

    def enter(platform: str) -> contextlib.AbstractContextManager[object]:
        if platform != "cuda":
            return contextlib.nullcontext()
        device = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
        return jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), (AxisType.Auto,), abstract_device=device))

    return enter
