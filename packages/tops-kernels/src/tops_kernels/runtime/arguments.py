"""One checker for every op: holds a call against the manifest's contract and raises errors that name the argument.

The check runs while the call is traced, inside the jitted body, so a cached call does not pay for it. What never reaches tracing,
because jax.jit itself refuses the arguments, is explained afterwards by `explain`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import tops_manifest
from tops_manifest import ArraySpec, Binding, ContractTypeError, ContractValueError

BACKENDS = ("xla", "pallas_tpu", "pallas_gpu")


def check(op: str, arrays: Mapping[str, Any], params: Mapping[str, Any]) -> Binding:
    """Binds a call to its contract.

    Args:
      op: name of an op of the manifest.
      arrays: input name -> array, tracer, or None where an optional input is not given.
      params: parameter name -> static value.
    Raises: ContractValueError or ContractTypeError (a ValueError, a TypeError) naming op, argument, got and expected.
    """
    specs = {name: None if array is None else _spec(op, name, array) for name, array in arrays.items()}
    return tops_manifest.bind(tops_manifest.op(op), specs, params)


def declared(op: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a call, int64 as int32 where the contract says so: with jax_enable_x64 on, numpy's integers are int64. Saturated and not wrapped,
    so that what is out of range stays out of range."""
    narrow = {spec.name for spec in tops_manifest.op(op).inputs if spec.dtype == "int32"}
    return {
        name: _saturated(array) if name in narrow and str(getattr(array, "dtype", "")) == "int64" else array
        for name, array in arrays.items()
    }


def _saturated(array: Any) -> jax.Array:
    most = np.iinfo(np.int32)
    return jax.numpy.clip(array, most.min, most.max).astype(jax.numpy.int32)


def check_backend(op: str, backend: object, interpret: object, arrays: Mapping[str, Any] | None = None) -> None:
    """Raises for a backend the op does not have, an `interpret` that goes with no kernel, or a kernel that lacks one of the arrays given.

    arrays: input name -> array or None; wanted where the contract has inputs that only some implementations take.
    """
    known = [key for key in BACKENDS if key in tops_manifest.op(op).kernel_map]
    if backend is not None and not isinstance(backend, str):
        raise ContractTypeError(op, "backend", f"is of type {type(backend).__name__}", f"None or one of {known}")
    if backend is not None and backend not in known:
        raise ContractValueError(op, "backend", f"is {backend!r}", f"None or one of {known}")
    if interpret is None or not (isinstance(interpret, bool) or type(interpret).__name__ == "InterpretParams"):
        raise ContractTypeError(
            op, "interpret", f"is of type {type(interpret).__name__}", "False, True or a pltpu.InterpretParams"
        )
    if interpret is not False and backend == "xla":
        raise ContractValueError(
            op, "interpret", 'is given with backend="xla"', "a Pallas backend", "XLA code is compiled, not interpreted"
        )
    asked = backend or ("pallas_tpu" if interpret is not False else None)  # what `dispatch` interprets
    lacked = () if asked is None or arrays is None else tops_manifest.op(op).lacks(asked)
    for name in sorted(lacked):
        if arrays is not None and arrays[name] is not None:
            argument, got = ("backend", f"is {backend!r}") if backend else ("interpret", "is given")
            raise ContractValueError(
                op,
                argument,
                f"{got} with {name}",
                'backend None or "xla"',
                f"{asked} has no {name}: leave {name} out, or {argument}",
            )


def explain(op: str, arrays: Mapping[str, Any], params: Mapping[str, Any], backend: object, interpret: object) -> None:
    """Raises the named error for arguments that jax.jit refused; returns where the fault is not in the arguments."""
    check_backend(op, backend, interpret, arrays)
    check(op, declared(op, arrays), params)


def _spec(op: str, name: str, array: Any) -> ArraySpec:
    """An array's shape and dtype. Python numbers count as arrays of rank 0; lists and the like do not."""
    if isinstance(array, bool | int | float | complex):
        array = jax.numpy.asarray(array)
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None or isinstance(array, jax.ShapeDtypeStruct):
        got = f"is of type {type(array).__name__}"
        raise ContractTypeError(op, name, got, "an array", f"Pass jnp.asarray({name})")
    return ArraySpec(shape, str(dtype))
