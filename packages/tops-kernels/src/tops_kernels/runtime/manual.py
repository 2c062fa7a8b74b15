"""Inside jax.shard_map: which mesh axes arrays vary over, brought into line before a kernel sees them."""

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax

from tops_manifest import ContractValueError


def alike(*arrays: Any) -> tuple[Any, ...]:
    """The arrays, each varying over every mesh axis that any of them varies over; None stays None.

    Called before the custom_vjp: the transpose of the cast is the sum over the axis, so a replicated weight's gradient is summed
    once, by JAX. Outside of shard_map, or with check_vma=False, this does nothing.
    """
    axes = frozenset[Any]().union(*(varying(array) for array in arrays if array is not None))
    return tuple(cast(array, axes) for array in arrays)


def cast(array: Any, axes: frozenset[Any]) -> Any:
    """The array, varying over these axes too; None stays None."""
    if array is None or not (axes - varying(array)):
        return array
    return lax.pcast(array, tuple(axes - varying(array)), to="varying")


def check_axis(op: str, axis_name: str, shared: Mapping[str, Any]) -> None:
    """Raises ContractValueError for an axis that is not bound here, or an array that must be the same all along it and is known to vary.

    shared: argument name -> array or None.
    """
    try:
        lax.axis_size(axis_name)
    except NameError as error:
        raise ContractValueError(
            op, "axis_name", f"is {axis_name!r}", "a mesh axis that a jax.shard_map around the call splits T over",
            "Outside of shard_map leave it None",
        ) from error  # fmt: skip
    for name, array in shared.items():
        if array is not None and axis_name in varying(array):
            raise ContractValueError(
                op, name, f"varies over mesh axis {axis_name!r}", "the same array on every shard",
                "Leave the axis out of its in_specs",
            )  # fmt: skip


def shape_like(shape: tuple[int, ...], dtype: Any, *arrays: jax.Array) -> jax.ShapeDtypeStruct:
    """What pallas_call needs as an out_shape: varying as `arrays` do, which must be `alike`."""
    kind = jax.typeof(arrays[0]).manual_axis_type
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=kind)  # type: ignore[no-untyped-call]  # jax has no types for it


def varying(array: Any) -> frozenset[Any]:
    """The mesh axes it varies over."""
    return jax.typeof(array).manual_axis_type.varying  # type: ignore[no-any-return]  # a set of axis names
