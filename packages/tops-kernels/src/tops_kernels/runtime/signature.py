"""A call as tuning sees it: shapes, dtypes and parameters, with nothing of its values."""

import dataclasses
import math
from collections.abc import Hashable, Mapping
from typing import Any

from tops_kernels.runtime.tables import Key, bucketed
from tops_manifest import ArraySpec, Binding


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """Hashable, so that it may stand among what a call fixes at trace time."""

    op: str
    inputs: tuple[tuple[str, ArraySpec], ...]  # those that are given, in the contract's order
    params: tuple[tuple[str, Hashable], ...]
    dims: tuple[tuple[str, int], ...]  # by the contract's letters; leading ones as one number

    @property
    def dtype(self) -> str:
        """Of the first input."""
        return self.inputs[0][1].dtype

    def key(self, implementation: str, which: str, chip: str) -> Key:
        """Of the rows that are for this call."""
        return (self.op, implementation, which, chip, self.dtype, bucketed(dict(self.dims)))

    def __str__(self) -> str:
        given = [f"{name}={spec}" for name, spec in self.inputs] + [f"{name}={value!r}" for name, value in self.params]
        return f"{self.op}({', '.join(given)})"


def signature(bound: Binding, arrays: Mapping[str, Any]) -> Signature | None:
    """Of a call that is bound to its contract; None where a size is symbolic. arrays: input name -> array or None."""
    inputs = tuple(
        (name, ArraySpec(tuple(array.shape), str(array.dtype))) for name, array in arrays.items() if array is not None
    )
    if not all(isinstance(size, int) for _, spec in inputs for size in spec.shape):
        return None
    dims = tuple(
        sorted((name, math.prod(size) if isinstance(size, tuple) else size) for name, size in bound.dims.items())
    )
    return Signature(bound.op.name, inputs, tuple(bound.params.items()), dims)
