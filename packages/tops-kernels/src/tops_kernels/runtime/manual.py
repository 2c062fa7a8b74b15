"""Inside jax.shard_map: which mesh axes arrays vary over, brought into line before a kernel sees them."""

from typing import Any

import jax
from jax import lax


def alike(*arrays: Any) -> tuple[Any, ...]:
    """The arrays, each varying over every mesh axis that any of them varies over; None stays None.

    Called before the custom_vjp: the transpose of the cast is the sum over the axis, so a replicated weight's gradient is summed
    once, by JAX. Outside of shard_map, or with check_vma=False, this does nothing.
    """
    axes = frozenset[Any]().union(*(_varying(array) for array in arrays if array is not None))
    return tuple(
        array
        if array is None or not (axes - _varying(array))
        else lax.pcast(array, tuple(axes - _varying(array)), to="varying")
        for array in arrays
    )


def shape_like(shape: tuple[int, ...], dtype: Any, *arrays: jax.Array) -> jax.ShapeDtypeStruct:
    """What pallas_call needs as an out_shape: varying as `arrays` do, which must be `alike`."""
    kind = jax.typeof(arrays[0]).manual_axis_type
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=kind)  # type: ignore[no-untyped-call]  # jax has no types for it


def _varying(array: Any) -> frozenset[Any]:
    return jax.typeof(array).manual_axis_type.varying  # type: ignore[no-any-return]  # a set of axis names
