"""Shapes and dtypes as jax takes them."""

from collections.abc import Sequence
from typing import Any

import jax


def aval(shape: Sequence[int], dtype: Any, **keywords: Any) -> jax.ShapeDtypeStruct:
    """A jax.ShapeDtypeStruct; keywords as it takes them (sharding)."""
    return jax.ShapeDtypeStruct(tuple(shape), dtype, **keywords)  # type: ignore[no-untyped-call]  # jax has no types for it
