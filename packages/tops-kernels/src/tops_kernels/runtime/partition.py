"""Whether what is being lowered is for XLA to divide among devices: known then, and not while a call is traced."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Private: jax.extend.core, the public place, brings a part of Pallas. Both lines of the lock have it.
from jax._src.core import Primitive, ShapedArray
from jax.interpreters import mlir

_divided: Any = Primitive("tops_divided")  # Any: jax has no types for primitives


def divided() -> jax.Array:
    """bool []: True in a program for several devices, where XLA may cut any dimension of an array. A loop that takes slices along such a
    dimension makes every device gather all of it. False in a program for one device, and where jax.shard_map has every axis of its mesh. A constant
    by the time XLA sees it: a lax.cond on it costs nothing."""
    found: jax.Array = _divided.bind()
    return found


@_divided.def_abstract_eval  # type: ignore[untyped-decorator]  # a primitive has no types in jax
def _abstract() -> Any:
    return ShapedArray((), np.dtype(bool))


@_divided.def_impl  # type: ignore[untyped-decorator]  # a primitive has no types in jax
def _now() -> jax.Array:
    """Outside of any jit, as under jax.disable_jit."""
    return jnp.zeros((), bool)


def _lower(ctx: Any) -> Any:
    return mlir.lower_fun(lambda: [jnp.full((), _is_divided(ctx.module_context.axis_context), bool)])(ctx)


def _is_divided(context: Any) -> bool:
    """Of the three kinds of context that jax lowers in: jit's, with a number of devices; shard_map's, with a mesh and the axes that are its own;
    pmap's, which has neither: its devices each run the whole."""
    mesh = getattr(context, "mesh", None)
    if mesh is not None:
        return any(size > 1 for axis, size in mesh.shape.items() if axis not in context.manual_axes)
    return getattr(context, "num_devices", 1) > 1


mlir.register_lowering(_divided, _lower)
