"""One call with a body a platform, each traced when a program is lowered for its platform, and not before.

As lax.platform_dependent, which traces every body at once: with a kernel for TPUs among them, a process on a CPU would import
Pallas and trace the kernel for nothing, for longer than all the rest of its first call takes.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Private: jax.extend.core, the public place, brings a part of Pallas. Both lines of the lock have it.
from jax._src.core import Primitive
from jax.interpreters import batching, mlir


def choose(*arrays: Any, default: Callable[..., Any], **bodies: Callable[..., Any]) -> Any:
    """What the body of the platform lowered for gives.

    Args:
      arrays: pytrees of arrays.
      default: the body for every other platform. It is traced here; neither it nor a body may close over traced arrays.
      bodies: platform, "tpu" or "cuda" -> body. All give the default's shapes and dtypes.
    Raises: TypeError, when lowered, for a body that gives other shapes or dtypes than the default.
    """
    leaves, tree = jax.tree.flatten(arrays)
    traced, shapes = jax.make_jaxpr(default, return_shape=True)(*arrays)
    late = tuple((platform, _Late.of(body, tree)) for platform, body in bodies.items())
    return jax.tree.unflatten(jax.tree.structure(shapes), _choose.bind(*leaves, default=traced, bodies=late))


class _Late:
    """A body on flat arrays that is not traced yet. What of jax's settings a trace hangs on is kept from where it was called."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._x64: bool = jax.config.jax_enable_x64  # type: ignore[attr-defined]  # jax makes its settings attributes at run time
        self._precision: Any = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]  # likewise

    @classmethod
    def of(cls, body: Callable[..., Any], tree: Any) -> "_Late":
        return cls(lambda *leaves: jax.tree.leaves(body(*jax.tree.unflatten(tree, leaves))))

    def through(self, transform: Callable[[Any], Any]) -> "_Late":
        late = copy.copy(self)
        late._run = transform(self._run)
        return late

    def __call__(self, *leaves: Any) -> Any:
        with jax.enable_x64(self._x64), jax.default_matmul_precision(self._precision):
            return self._run(*leaves)


_choose: Any = Primitive("tops_choose")  # Any: jax has no types for primitives
_choose.multiple_results = True
# jax 0.12 asks whether a call holds what must be made plainer before it is lowered. The default may (jnp.searchsorted is such), but it is traced
# again when it is lowered, and comes out plain then.
_choose.is_high = lambda *_, **__: False
_batching: Any = batching


@_choose.def_abstract_eval  # type: ignore[untyped-decorator]  # a primitive has no types in jax
def _abstract(*_: Any, default: Any, bodies: Any) -> Any:
    return default.out_avals


@_choose.def_impl  # type: ignore[untyped-decorator]  # a primitive has no types in jax
def _now(*leaves: Any, default: Any, bodies: Mapping[str, _Late]) -> Any:
    """Outside of any jit, as under jax.disable_jit."""
    return lax.platform_dependent(*leaves, default=_function(default), **dict(bodies))


def _batched(axis: Any, args: Any, dims: Any, *, default: Any, bodies: Any) -> Any:
    if all(dim is None for dim in dims):  # within a vmap over something else
        outs = _choose.bind(*args, default=default, bodies=bodies)
        return outs, [None] * len(outs)

    def mapped(body: Any) -> Any:
        return jax.vmap(body, in_axes=dims, spmd_axis_name=axis.spmd_name)

    def mapped_in_front(body: Any) -> Any:
        """A kernel's blocks get the axis where the operand has it, and Mosaic refuses one among their last two."""

        def run(*leaves: Any) -> Any:
            moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(leaves, dims, strict=True)]
            front = [None if d is None else 0 for d in dims]
            return jax.vmap(body, in_axes=front, spmd_axis_name=axis.spmd_name)(*moved)

        return run

    traced = jax.make_jaxpr(mapped(_function(default)))(*args)
    late = tuple((platform, body.through(mapped_in_front)) for platform, body in bodies)
    outs = _choose.bind(*args, default=traced, bodies=late)
    return outs, [0] * len(outs)


_batching.fancy_primitive_batchers[_choose] = _batched


def _function(closed: Any) -> Callable[..., Any]:
    return functools.partial(jax.core.eval_jaxpr, closed.jaxpr, closed.consts)


def _lower(ctx: Any, *args: Any, default: Any, bodies: Any, platform: str | None = None) -> Any:
    body = dict(bodies).get(platform)
    if body is None:
        return mlir.lower_fun(_function(default))(ctx, *args)

    def checked(*leaves: Any) -> Any:
        outs = body(*leaves)
        found, expected = ([f"{x.dtype}{list(x.shape)}" for x in group] for group in (outs, ctx.avals_out))
        if found != expected:
            raise TypeError(f"the kernel for {platform} gives {found}; expected {expected}, what the XLA path gives")
        return outs

    return mlir.lower_fun(checked)(ctx, *args)


mlir.register_lowering(_choose, _lower)
for _platform in ("tpu", "cuda"):
    mlir.register_lowering(_choose, functools.partial(_lower, platform=_platform), platform=_platform)
