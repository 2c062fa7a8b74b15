"""The call as the manifest declares it: signature, outputs, and what a wrong call is told."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tops_manifest import ArraySpec, Op
from tops_manifest.signature import signature
from tops_manifest.workloads import Case, cases
from tops_tests.compare import ConformanceError
from tops_tests.conformance import drawing
from tops_tests.conformance.registry import check
from tops_tests.optest import OpTest
from tops_tests.subject import Subject


@check("op")
def signature_is_the_manifests(subject: Subject) -> None:
    """Names, order, kinds and defaults of the parameters are those derived from the contract."""
    found = inspect.signature(subject.function)
    bare: list[inspect.Parameter] = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in found.parameters.values()
    ]
    want = list(signature(subject.op).parameters.values())
    if bare != want:
        raise ConformanceError(f"{subject.op.name}: signature is {found}; expected {signature(subject.op)}")


@check("op")
def docstring_says_what_a_caller_needs(subject: Subject) -> None:
    """Shapes, errors and source stand in the docstring, and every argument by name."""
    text = inspect.getdoc(subject.function) or ""
    names = [spec.name for spec in subject.op.inputs] + [spec.name for spec in subject.op.params]
    wanted = [*names, "Args:", "Returns:", "Raises:", "["]
    missing = [word for word in wanted if word not in text]
    if missing or subject.op.ref.split(",")[0].split(";")[0].split(" eq.")[0] not in text:
        raise ConformanceError(f"{subject.op.name}: docstring lacks {missing or subject.op.ref}")


@check("implementation")
def every_row_gives_the_declared_outputs(subject: Subject) -> None:
    """Abstractly, for every workload row, dtype and presence of optional inputs."""
    for row in cases(subject.op.name):
        for present in drawing.presences(subject.op):
            case = Case(
                row.op, row.row, row.dims, row.dtypes, row.params, present, row.alternatives, row.passes, row.scale
            )
            if drawing.allowed(case):
                _hold(case, jax.eval_shape(subject.call(case), *OpTest(case).avals().values()))


@check("implementation")
def every_form_gives_the_declared_outputs(subject: Subject) -> None:
    """Abstractly, for every dtype with each parameter, presence and alternative shape."""
    for dtypes in drawing.dtype_choices(subject.op):
        for case in drawing.every_form(subject.op, dtypes):
            _hold(case, jax.eval_shape(subject.call(case), *OpTest(case).avals().values()))


@check("implementation")
def empty_arrays_give_empty_results(subject: Subject) -> None:
    """A dimension of 0 that the contract allows is no error, and gives the declared shapes."""
    for name, size in drawing.dims(subject.op).items():
        none: int | tuple[int, ...] = (0,) if isinstance(size, tuple) else 0
        case = drawing.tiny(subject.op, dims={**drawing.tiny(subject.op).dims, name: none})
        if drawing.allowed(case):
            test = OpTest(case)
            arrays = [jnp.zeros(spec.shape, spec.dtype) for spec in case.inputs().values()]
            test.check(subject.call(case)(*arrays), dict(zip(case.inputs(), arrays, strict=True)))


@check("op")
def wrong_calls_are_refused_by_name(subject: Subject) -> None:
    """Each way to break the contract raises ValueError or TypeError naming op and argument, eager, in jit and in vmap."""
    for argument, change in _wrong_arrays(subject.op):
        for how in (_eager, _jitted, _mapped):
            _must_refuse(subject.op, argument, how, subject.function, change)
    for keywords in _wrong_params(subject.op):
        (argument,) = keywords
        _must_refuse(subject.op, argument, _eager, subject.function, _arrays(subject.op), keywords)


def _hold(case: Case, shapes: tuple[Any, ...]) -> None:
    got = {name: ArraySpec(aval.shape, str(aval.dtype)) for name, aval in zip(case.outputs(), shapes, strict=False)}
    if got != case.outputs() or len(shapes) != len(case.outputs()):
        raise ConformanceError(f"{OpTest(case).where}: gives {got}; the contract says {case.outputs()}")


Arrays = Mapping[str, Any]


def _arrays(op: Op) -> dict[str, Any]:
    return dict(OpTest(drawing.tiny(op)).gen_inputs(jax.random.key(0)))


def _wrong_arrays(op: Op) -> Iterator[tuple[str, Arrays]]:
    """(argument to be named, arrays of a call that breaks the contract there)."""
    good = _arrays(op)
    for spec in op.inputs:
        array = good[spec.name]
        yield spec.name, {**good, spec.name: array.astype("complex64")}
        yield spec.name, {**good, spec.name: array.astype("float16")}
        if not any(dim.variadic for shape in spec.all_shapes for dim in shape):
            yield spec.name, {**good, spec.name: array[None, None, None]}
        yield spec.name, {**good, spec.name: jnp.ones((), array.dtype)}
        if not spec.optional:
            yield spec.name, {**good, spec.name: None}
    case = drawing.tiny(op)
    bound: set[str] = set()
    for spec in op.inputs:  # an input binds its dimensions; a later one must agree with it
        shape, array = case.input_shapes()[spec.name], good[spec.name]
        known = [at - len(shape) for at, dim in enumerate(shape) if dim.name in bound and not dim.variadic]
        if known:
            yield spec.name, {**good, spec.name: jnp.concatenate([array, array], axis=known[0])}
        bound |= {dim.name for dim in shape}


def _wrong_params(op: Op) -> Iterator[dict[str, Any]]:
    for spec in op.params:
        yield {spec.name: object()}
        yield {spec.name: jnp.ones(())}
        if spec.choices or spec.type == "dtype":
            yield {spec.name: "no such choice"}
        if spec.type == "float":
            yield {spec.name: float("nan")}
            yield {spec.name: "1"}
    if any("eps" in condition.expr.names for condition in op.where):
        yield {"eps": -1e-6}
    yield {"backend": "no such backend"}
    yield {"backend": 3}
    yield {"interpret": "yes"}


How = Callable[[Callable[..., Any], Arrays, Mapping[str, Any]], object]


def _eager(function: Callable[..., Any], arrays: Arrays, keywords: Mapping[str, Any]) -> object:
    return function(*arrays.values(), **keywords)


def _jitted(function: Callable[..., Any], arrays: Arrays, keywords: Mapping[str, Any]) -> object:
    return jax.jit(lambda given: function(*given, **keywords))(tuple(arrays.values()))


def _mapped(function: Callable[..., Any], arrays: Arrays, keywords: Mapping[str, Any]) -> object:
    stacked = jax.tree.map(lambda array: jnp.stack([array, array]), tuple(arrays.values()))
    return jax.vmap(lambda given: function(*given, **keywords))(stacked)


def _must_refuse(
    op: Op,
    argument: str,
    how: How,
    function: Callable[..., Any],
    arrays: Arrays,
    keywords: Mapping[str, Any] | None = None,
) -> None:
    what = f"{op.name}: a wrong {argument} ({how.__name__[1:]}: {keywords or _shown(arrays[argument])})"
    try:
        how(function, arrays, keywords or {})
    except (ValueError, TypeError) as error:
        text = str(error)
        if not text.startswith(f"{op.name}: {argument} ") or "expected" not in text:
            raise ConformanceError(
                f"{what} is told: {text[:300]!r}; expected op, argument, got and expected"
            ) from error
        return
    raise ConformanceError(f"{what} is taken without a word")


def _shown(array: Any) -> str:
    return "None" if array is None else f"{array.dtype}{list(array.shape)}"
