"""What can be said of a call's arguments: shapes, dtypes, shardings, parameters, devices, statistics. Values never."""

import math
import numbers
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tops_manifest

_TEXT = 60  # characters of a string parameter that are shown

Json = Any  # what json.dumps takes


def concrete(arrays: Mapping[str, Any]) -> bool:
    """Whether no argument is being traced."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(dict(arrays)))


def split(op: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call's arguments by name, apart: inputs (None where not given), and parameters of the contract."""
    contract = tops_manifest.op(op)
    arrays = {spec.name: arguments.get(spec.name) for spec in contract.inputs}
    return arrays, {spec.name: arguments[spec.name] for spec in contract.params if spec.name in arguments}


def spec(value: Any) -> tops_manifest.ArraySpec:
    """Shape and dtype as an op gets them: JAX takes float64 for float32 unless x64 is on.

    Raises: AttributeError for what is no array, TypeError for symbolic sizes.
    """
    if not all(isinstance(size, int) for size in value.shape):
        raise TypeError("a symbolic shape")
    return tops_manifest.ArraySpec(tuple(value.shape), str(jax.dtypes.canonicalize_dtype(value.dtype)))


def array(value: Any) -> Json:
    """Shape, dtype and sharding; of what is no array its type alone."""
    if value is None:
        return None
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None:
        return {"type": type(value).__name__}
    told: dict[str, Json] = {
        "shape": [size if isinstance(size, int) else str(size) for size in shape],
        "dtype": str(dtype),
    }
    sharding = _sharding(value)
    if sharding:
        told["sharding"] = sharding
    return told


def _sharding(value: Any) -> str:
    if isinstance(value, jax.core.Tracer):
        sharding = getattr(jax.typeof(value), "sharding", None)
        mesh = getattr(sharding, "mesh", None)
        return str(sharding) if mesh is not None and not mesh.empty else ""
    return str(value.sharding) if isinstance(value, jax.Array) else "host"


def param(value: Any) -> Json:
    """A static parameter, as JSON. Of what a contract has no place for, its type: it may be an array, or anything."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if len(value) <= _TEXT else value[: _TEXT - 3] + "..."
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) and abs(int(value)) < 1 << 63 else number(float(value))
    return {"type": type(value).__name__}


def number(value: float) -> float | str:
    """A float as JSON has it; "nan", "inf" and "-inf" it has not."""
    return value if math.isfinite(value) else str(value)


def interpret(value: Any) -> bool | str:
    """False, True, or the name of the type of a Pallas InterpretParams."""
    return value if isinstance(value, bool) else type(value).__name__


def device(arrays: Mapping[str, Any]) -> Json:
    """Platform and kind of the devices that hold a call's arrays; of traced ones nothing is known, nor asked."""
    found = {
        (one.platform, one.device_kind)
        for value in arrays.values()
        if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
        for one in value.devices()
    }
    if not found and not concrete(arrays):
        return None
    if not found:
        one = jax.devices()[0]
        found = {(one.platform, one.device_kind)}
    return [{"platform": platform, "kind": kind} for platform, kind in sorted(found)]


_NAMES = ("min", "max", "mean", "nan", "inf")


def statistics(value: Any) -> Json:
    """min, max and mean of the finite values, and how many are NaN and infinite. Of an array that is not all here: why not."""
    try:
        wide = np.asarray(value).astype(np.float64)
    except Exception as error:  # not addressable from this process, donated, or no array of numbers
        return {"unavailable": type(error).__name__}
    finite = wide[np.isfinite(wide)]
    some = finite.size > 0
    return named(
        (
            finite.min() if some else math.nan,
            finite.max() if some else math.nan,
            finite.mean() if some else math.nan,
            np.isnan(wide).sum(),
            np.isinf(wide).sum(),
        )
    )


def traced_statistics(value: Any) -> tuple[Any, ...]:
    """The same of a traced array, as five scalars; `named` makes them what `statistics` gives. In float32."""
    wide = jax.lax.stop_gradient(jnp.asarray(value).astype(jnp.float32))
    if wide.size == 0:
        return (math.nan, math.nan, math.nan, 0, 0)
    finite = jnp.isfinite(wide)
    count = finite.sum()
    low = jnp.where(count > 0, jnp.min(wide, where=finite, initial=jnp.inf), jnp.nan)
    high = jnp.where(count > 0, jnp.max(wide, where=finite, initial=-jnp.inf), jnp.nan)
    # the mean of shares, so that a sum of large values is no infinity
    mean = jnp.where(count > 0, jnp.sum(jnp.where(finite, wide, 0) / jnp.maximum(count, 1)), jnp.nan)
    return low, high, mean, jnp.isnan(wide).sum(), jnp.isinf(wide).sum()


def named(scalars: tuple[Any, ...]) -> Json:
    low, high, mean, nan, inf = scalars
    values = [*(None if math.isnan(float(x)) else number(float(x)) for x in (low, high, mean)), int(nan), int(inf)]
    return dict(zip(_NAMES, values, strict=True))
