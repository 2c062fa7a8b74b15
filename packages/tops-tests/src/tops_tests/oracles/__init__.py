"""The oracles: each op's literal definition in NumPy float64, written without sight of any kernel.

One module a family of the manifest, named after it. In it, for an op `f`:

    f(*inputs, **params) -> float64 array, or a tuple of them in the order of the contract's outputs
    f_vjp(cotangents, *inputs, **params) -> {input: float64 gradient} for the given inputs the contract differentiates

There is no registry: the manifest's `family` and the op's name say where to look.
"""

import importlib
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from tops_manifest import Op

Array = npt.NDArray[np.float64]
Forward = Callable[..., "Array | tuple[Array, ...]"]
Backward = Callable[..., Mapping[str, Array]]


class OracleError(LookupError):
    """An op of the manifest has no oracle, or one that breaks the rules above."""


def forward(op: Op) -> Callable[..., tuple[Array, ...]]:
    """The op's definition; always a tuple, one array an output."""
    function = cast(Forward, _function(op, op.name))

    def call(*inputs: npt.ArrayLike | None, **params: object) -> tuple[Array, ...]:
        result = function(*inputs, **params)
        return result if isinstance(result, tuple) else (result,)

    return call


def backward(
    op: Op,
) -> Callable[[Sequence[npt.ArrayLike], Sequence[npt.ArrayLike | None], Mapping[str, object]], dict[str, Array]]:
    """The op's hand-derived vector-Jacobian product: (cotangents, inputs, params) -> gradients by input name."""
    function = cast(Backward, _function(op, f"{op.name}_vjp"))

    def call(
        cotangents: Sequence[npt.ArrayLike], inputs: Sequence[npt.ArrayLike | None], params: Mapping[str, object]
    ) -> dict[str, Array]:
        return dict(function(tuple(cotangents), *inputs, **params))

    return call


def module_path(op: Op) -> Path:
    """The file of the op's family."""
    return Path(__file__).with_name(f"{op.family}.py")


def _function(op: Op, name: str) -> object:
    found = getattr(_module(op), name, None)
    if not callable(found):
        raise OracleError(f"{op.name}: oracles/{op.family}.py has no function {name}; write it from {op.ref!r}")
    return found


def _module(op: Op) -> types.ModuleType:
    if not op.family.isidentifier() or not module_path(op).is_file():
        raise OracleError(f"{op.name}: no oracles/{op.family}.py for its family {op.family!r}")
    return importlib.import_module(f"{__name__}.{op.family}")
