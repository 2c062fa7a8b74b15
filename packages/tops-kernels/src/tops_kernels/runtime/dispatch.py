"""Which implementation a call takes: chosen while it is lowered, for the platform it is lowered for.

A function traced on a CPU and exported for a TPU carries the TPU kernel. Nothing here asks which devices this machine has.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
from jax import lax

from tops_kernels.runtime.blocklist import blocked_where_traced
from tops_kernels.runtime.choice import choose

Implementation: TypeAlias = Callable[..., Any]

# kernel_map key -> the platforms, as lowering names them, that it has code for. "xla" has code for all.
PLATFORMS: Mapping[str, tuple[str, ...]] = {"pallas_tpu": ("tpu",), "pallas_gpu": ("cuda",)}


def dispatch(
    op: str,
    backend: str | None,
    interpret: object,
    implementations: Mapping[str, Implementation],
    *arrays: Any,
) -> Any:
    """Calls the implementation for the platform this is lowered for.

    Args:
      op: for messages.
      backend: None to choose; a key of `implementations` to insist, refused at lowering where it has no code.
      interpret: run a kernel in Pallas' interpreter, on any platform; with backend None, the TPU kernel.
      implementations: kernel_map key -> function of `arrays`; all give the same shapes and dtypes. "xla" must be there.
      arrays: pytrees of arrays.
    """
    if interpret is not False:
        return implementations[backend or "pallas_tpu"](*arrays)
    if backend == "xla":
        return implementations["xla"](*arrays)
    xla = implementations["xla"]
    if any(not isinstance(size, int) for array in jax.tree.leaves(arrays) for size in array.shape):
        if backend is not None:
            raise ValueError(
                f"{op}: backend={backend!r} with a symbolic shape; expected sizes that are known, as a kernel's blocks hang on them. "
                'Use backend=None or "xla", or export for each size'
            )
        return xla(*arrays)
    if backend is None:
        kernels = {
            name: run
            for key, run in implementations.items()
            if key != "xla" and not blocked_where_traced(op, key)
            for name in PLATFORMS[key]
        }
        return choose(*arrays, default=xla, **kernels) if kernels else xla(*arrays)
    row = blocked_where_traced(op, backend, insisted=True)
    if row is not None:
        raise ValueError(f'{op}: backend={backend!r} is on the blocklist: {row}. Use backend=None or "xla"')
    platforms = PLATFORMS[backend]

    from tops_kernels.runtime.refusal import refusal  # lazily: jax.extend brings a part of Pallas, 30 ms

    refuse = refusal(op, backend, platforms)

    def refused(*arrays: Any) -> Any:
        leaves, tree = jax.tree.flatten(xla(*arrays))
        return jax.tree.unflatten(tree, [refuse(leaf) for leaf in leaves])

    return lax.platform_dependent(*arrays, default=refused, **dict.fromkeys(platforms, implementations[backend]))
