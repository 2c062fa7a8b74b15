"""Whether a kernel left alone what it is judged with: attributes of NumPy, JAX and this package, before and after it ran.

The check of imports cannot see what a kernel does while it is traced, in the process that judges it.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from tops_tests.compare import ConformanceError

_OWNERS = ("numpy", "numpy.linalg", "numpy.random", "jax", "jax.numpy", "jax.random", "jax.lax", "jax.tree", "math")


def _state() -> Mapping[str, int]:
    modules = [name for name in sys.modules if name.split(".")[0] in ("tops_tests", "tops_workloads", "tops_manifest")]
    owners = {name: vars(sys.modules[name]) for name in (*_OWNERS, *modules) if name in sys.modules}
    # Methods of a class of ours may be replaced too; those of NumPy's are fixed in C.
    classes = [
        (f"{name}.{key}", value) for name in modules for key, value in owners[name].items() if isinstance(value, type)
    ]
    owners |= {name: dict(vars(value)) for name, value in classes if value.__module__.split(".")[0].startswith("tops_")}
    return {f"{name}.{key}": id(value) for name, found in owners.items() for key, value in found.items()}


@contextlib.contextmanager
def untouched(what: str) -> Iterator[None]:
    """Raises ConformanceError, naming the attribute, where the block replaced one or took one away.

    An attribute that was not there before is no fault: modules are imported, and names looked up, for the first time.
    """
    before = _state()
    yield
    after = _state()
    changed = sorted(
        name for name, value in before.items() if after.get(name) != value and not name.startswith("jax.config")
    )
    if changed:
        raise ConformanceError(
            f"{what}: while it ran, {changed[0]} was replaced; a kernel may not touch what judges it"
        )


_ = jax, jnp, np  # loaded, so that their attributes are compared
