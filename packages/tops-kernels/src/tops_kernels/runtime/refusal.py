"""The identity, which cannot be lowered: it stands in the branch of a forced backend for every platform that has no code of it.

Tracing, shape inference and vmap pass through; the branch for the right platform drops it.
"""

import functools
from collections.abc import Callable
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import batching, mlir


def refusal(op: str, backend: str, platforms: tuple[str, ...]) -> Callable[[Any], Any]:
    """A function of one array that gives it back while traced, and raises ValueError when lowered. The arguments are for its message."""
    return functools.partial(_refuse.bind, op=op, backend=backend, platforms=platforms)


_refuse: Any = Primitive("tops_refuse")  # Any: jax has no types for primitives
_refuse.def_abstract_eval(lambda aval, **_: aval)
_batching: Any = batching
_batching.defvectorized(_refuse)


def _no_lowering(ctx: mlir.LoweringRuleContext, *_: Any, op: str, backend: str, platforms: tuple[str, ...]) -> Any:
    wanted = " or ".join(platforms)
    found = " and ".join(ctx.platforms or ctx.module_context.platforms)
    raise ValueError(
        f"{op}: backend={backend!r} has no kernel for {found}; expected a program lowered for {wanted}. "
        f"Use backend=None, lower for {wanted}, or pass interpret=True to run the kernel in the interpreter"
    )


mlir.register_lowering(_refuse, _no_lowering)
