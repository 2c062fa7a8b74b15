"""One call of an op as a program that can be compiled, fed, and compared: what both the child and the tuner do with a candidate."""

import contextlib
import dataclasses
import importlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

import tops_manifest
from tops_kernels.runtime import search
from tops_kernels.runtime.overrides import use_config
from tops_kernels.runtime.signature import Signature
from tops_kernels.runtime.tuned import tuned
from tops_kernels.runtime.tuning.row import signature_of
from tops_manifest import ArraySpec
from tops_manifest.model import Input, Interval

# Largest difference to the xla path, over the largest value. To throw out what is wrong: that a kernel is right is for tops-tests to say.
_TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2, "float16": 4e-3}


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A call, a pass of it, and the kernel that is asked for."""

    call: Signature
    which: str
    implementation: str
    interpret: bool

    def job(self) -> dict[str, Any]:
        """As JSON, for a child."""
        return {
            "op": self.call.op,
            "inputs": {name: [list(spec.shape), spec.dtype] for name, spec in self.call.inputs},
            "params": dict(self.call.params),
            "pass": self.which,
            "implementation": self.implementation,
            "interpret": self.interpret,
        }


def from_job(job: Mapping[str, Any]) -> Case:
    inputs = {name: ArraySpec(tuple(shape), dtype) for name, (shape, dtype) in job["inputs"].items()}
    call = signature_of(job["op"], inputs, job["params"])
    return Case(call, job["pass"], job["implementation"], bool(job["interpret"]))


def configurations(case: Case, target: str) -> tuple[Any, ...]:
    """The op's search space for this case, the heuristic's choice first."""
    call = case.call
    inputs, params = dict(call.inputs), dict(call.params)
    return search.configurations(call.op, case.implementation, case.which, inputs, params, target)


def program(case: Case, implementation: str) -> Callable[..., Any]:
    """A function of `avals(case)`: the op's outputs, or for "vjp" the gradients of what it is differentiable in."""
    public = _function(case.call.op)
    names = [name for name, _ in case.call.inputs]
    where: dict[str, Any] = {"backend": implementation}
    if case.interpret and implementation != "xla":
        where["interpret"] = True

    def forward(*arrays: Any) -> Any:
        return public(**dict(zip(names, arrays, strict=True)), **dict(case.call.params), **where)

    if case.which == "fwd":
        return forward
    differentiable = [at for at, name in enumerate(names) if name in tops_manifest.op(case.call.op).vjp]

    def backward(cotangents: Any, *arrays: Any) -> Any:
        def of(*chosen: Any) -> Any:
            given = list(arrays)
            for at, array in zip(differentiable, chosen, strict=True):
                given[at] = array
            return forward(*given)

        return jax.vjp(of, *(arrays[at] for at in differentiable))[1](cotangents)

    return backward


def _function(op: str) -> Callable[..., Any]:
    """An op's public function."""
    module = importlib.import_module(f"tops_kernels.ops.{tops_manifest.op(op).family}.op")
    found: Callable[..., Any] = getattr(module, op)
    return found


def avals(case: Case) -> tuple[Any, ...]:
    """What the program takes: shapes and dtypes of the inputs, the outputs' first for "vjp"."""
    shapes = tuple(jax.ShapeDtypeStruct(spec.shape, spec.dtype) for _, spec in case.call.inputs)  # type: ignore[no-untyped-call]  # jax has no types for it
    if case.which == "fwd":
        return shapes
    forward = program(dataclasses.replace(case, which="fwd"), "xla")
    return (jax.eval_shape(forward, *shapes), *shapes)


@contextlib.contextmanager
def configured(case: Case, config: Any) -> Iterator[None]:
    """To trace within: one configuration, or for None the heuristics alone."""
    with tuned(None), use_config(case.call.op, case.which, config) if config is not None else contextlib.nullcontext():
        yield


def drawn(case: Case, seed: int = 0) -> tuple[Any, ...]:
    """Values for `avals(case)`, each within its input's domain."""
    keys = iter(jax.random.split(jax.random.key(seed), 64))
    contract = tops_manifest.op(case.call.op)
    dims = dict(case.call.dims)
    inputs = [_values(contract.input(name), spec, dims, next(keys)) for name, spec in case.call.inputs]
    if case.which == "fwd":
        return tuple(inputs)
    cotangents = jax.tree.map(lambda aval: _normal(next(keys), aval.shape, aval.dtype), avals(case)[0])
    return (cotangents, *inputs)


def _values(spec: Input, array: ArraySpec, dims: Mapping[str, int], key: Any) -> Any:
    dtype = jnp.dtype(array.dtype)
    if spec.rises is not None:  # ends of packed sequences, of like lengths
        count, size = array.shape[0], dims[spec.rises]
        return jnp.asarray([size * at // max(count - 1, 1) for at in range(count)], dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return jax.random.randint(key, array.shape, -8, 8, dtype=dtype)
    values = _normal(key, array.shape, dtype)
    if spec.domain is None:
        return values
    domain = Interval.read(spec.domain)
    if math.isinf(domain.low) and not math.isinf(domain.high):
        return domain.high - jnp.abs(values)
    if math.isinf(domain.high) and not math.isinf(domain.low):
        return domain.low + jnp.abs(values)
    if math.isinf(domain.low):
        return values
    return (domain.low + (domain.high - domain.low) * jax.nn.sigmoid(values)).astype(dtype)


def _normal(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.random.normal(key, shape, jnp.float32).astype(dtype)


def disagreement(found: Any, reference: Any, given: Any = ()) -> str:
    """How far outputs are from those of the xla path; "" where they agree.

    given: what the program took. A float32 output of bfloat16 inputs (a state, say) may hang on products that were rounded as those are.
    """
    inputs = max((_TOLERANCE.get(str(one.dtype), 0.0) for one in jax.tree.leaves(given)), default=0.0)
    if str(jax.tree.structure(found)) != str(jax.tree.structure(reference)):
        return "its outputs are not those of the xla path"
    for at, (one, other) in enumerate(zip(jax.tree.leaves(found), jax.tree.leaves(reference), strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"output {at} is {one.dtype}{one.shape}; expected {other.dtype}{other.shape}"
        if one.size == 0 or one.dtype == jax.dtypes.float0:
            continue
        a, b = one.astype(jnp.float32), other.astype(jnp.float32)
        if not bool(jnp.array_equal(jnp.isfinite(a), jnp.isfinite(b))):
            return f"output {at} is infinite or NaN where the xla path's is not, or the other way round"
        finite = jnp.isfinite(b)
        error = float(jnp.max(jnp.where(finite, jnp.abs(a - b), 0.0)))
        scale = float(jnp.max(jnp.where(finite, jnp.abs(b), 0.0)))
        most = 0.0 if jnp.issubdtype(one.dtype, jnp.integer) else max(_TOLERANCE.get(str(one.dtype), 0.0), inputs)
        if not error <= most * scale:
            return f"output {at} differs from the xla path by {error:.3g}, with values up to {scale:.3g}; expected at most {most * scale:.3g}"
    return ""


def fields(config: Any) -> dict[str, Any]:
    """A configuration's fields by name, as JSON has them."""
    return dict(json.loads(json.dumps(dataclasses.asdict(config))))
