"""A pass as a function of arrays alone: the forward call, or gradients from inputs and cotangents."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tops_manifest.model import Pass
from tops_manifest.workloads import Case

_aval: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct  # jax does not annotate it


def program(case: Case, which: Pass, function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """`function` (an op's signature) under one pass, to be timed.

    fwd: (*present inputs) -> outputs. vjp: (cotangents, *present inputs) -> gradients of the inputs it is differentiable
    in, forward included as far as the gradient needs it, by jax.vjp: so a custom_vjp and plain autodiff are asked alike.
    """
    given = tuple(case.inputs())
    bound = functools.partial(function, **case.params, **options)

    def forward(*arrays: Any) -> Any:
        by_name = dict(zip(given, arrays, strict=True))
        return bound(*(by_name.get(spec.name) for spec in case.op.inputs))

    if which == "fwd":
        return forward
    wanted = tuple(given.index(name) for name in differentiable(case))

    def backward(cotangents: Any, *arrays: Any) -> Any:
        def of_wanted(*parts: Any) -> Any:
            full = list(arrays)
            for index, part in zip(wanted, parts, strict=True):
                full[index] = part
            return forward(*full)

        return jax.vjp(of_wanted, *(arrays[index] for index in wanted))[1](cotangents)

    return backward


def differentiable(case: Case) -> tuple[str, ...]:
    """The given inputs that have a gradient: named by the contract, and of a floating dtype."""
    specs = case.inputs()
    return tuple(name for name in case.op.vjp if name in specs and jnp.issubdtype(specs[name].dtype, jnp.floating))


def cotangents(case: Case, seed: int) -> Any:
    """A standard normal one for every output, as jax.vjp takes them: a tuple, or one array where the op has one output.
    Drawn by NumPy: nothing is compiled for it."""
    draw = np.random.default_rng(seed)
    return _as_result(
        [
            jnp.asarray(draw.standard_normal(spec.shape, np.float32).astype(jnp.dtype(spec.dtype)))
            for spec in case.outputs().values()
        ]
    )


def cotangent_avals(case: Case) -> Any:
    """Their shapes and dtypes."""
    return _as_result([_aval(spec.shape, jnp.dtype(spec.dtype)) for spec in case.outputs().values()])


def _as_result(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def arrays(case: Case, which: Pass, inputs: Mapping[str, jax.Array], seed: int) -> Sequence[Any]:
    """What `program` takes, in order."""
    values = [inputs[name] for name in case.inputs()]
    return values if which == "fwd" else [cotangents(case, seed), *values]
