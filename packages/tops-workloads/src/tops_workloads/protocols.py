"""What a stage may ask of a workload: shapes, values, or both. A consumer names the least it needs."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax

from tops_manifest.model import ParamValue
from tops_manifest.workloads import Case


@runtime_checkable
class ShapeDtypeWorkload(Protocol):
    """Metadata alone: enough to trace, lower and compile."""

    @property
    def case(self) -> Case:
        """The manifest row, at one choice of dtypes."""
        ...

    @property
    def params(self) -> Mapping[str, ParamValue]:
        """The static parameters the row sets; others keep their defaults."""
        ...

    def avals(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape and dtype of each given input, in the signature's order."""
        ...

    def kwargs(self) -> dict[str, ParamValue]:
        """`params` as keyword arguments of the public function."""
        ...


@runtime_checkable
class InputGeneratingWorkload(Protocol):
    """Values alone."""

    def gen_inputs(self, key: jax.Array) -> dict[str, jax.Array]:
        """One array for each given input, in the signature's order. The same key gives the same values."""
        ...


@runtime_checkable
class BenchmarkWorkload(ShapeDtypeWorkload, InputGeneratingWorkload, Protocol):
    """Both: what can be compiled and then run."""
