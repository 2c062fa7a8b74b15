"""Holds a call against its contract: binds dimensions and dtype variables, or says which argument is wrong and how.

Pure arithmetic on shapes and names, so the kernels check their callers with it and the tests check the kernels with it.
"""

import dataclasses
import math
import numbers
from collections.abc import Container, Mapping

from tops_manifest.errors import ContractTypeError, ContractValueError
from tops_manifest.expr import Expr, ExpressionError, Value
from tops_manifest.model import DTYPES, Condition, Input, Op, Param, Shape, shape_sizes, shape_text


@dataclasses.dataclass(frozen=True, slots=True)
class ArraySpec:
    """What a contract sees of an array."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """What a call's letters stand for."""

    op: Op
    dims: Mapping[str, int | tuple[int, ...]]  # a variadic dimension is a tuple
    dtypes: Mapping[str, str]
    params: Mapping[str, Value]
    present: frozenset[str]  # inputs that were given

    def environment(self) -> dict[str, Value]:
        """Names for expressions: dimensions (a variadic one counts as its product), dtype variables, params, has_<input>."""
        env: dict[str, Value] = {}
        for name, size in self.dims.items():
            env[name] = math.prod(size) if isinstance(size, tuple) else size
        env |= self.dtypes
        env |= self.params
        env |= {f"has_{spec.name}": int(spec.name in self.present) for spec in self.op.inputs if spec.optional}
        return env

    def shape(self, shape: Shape) -> tuple[int, ...]:
        """The sizes that a contract's shape has in this call."""
        return shape_sizes(shape, self.dims)

    def dtype(self, name: str) -> str:
        """What a dtype variable stands for; a dtype stands for itself."""
        return self.dtypes.get(name, name)

    def outputs(self) -> dict[str, ArraySpec]:
        """What the contract says comes out, by name, in order."""
        result = {}
        for spec in self.op.outputs:
            chosen = self.params[spec.dtype_param] if spec.dtype_param is not None else None
            result[spec.name] = ArraySpec(
                self.shape(spec.shape_for(self.present)), self.dtype(spec.dtype) if chosen is None else str(chosen)
            )
        return result


def bind(op: Op, arrays: Mapping[str, ArraySpec | None], params: Mapping[str, object]) -> Binding:
    """Binds a call. `arrays` by input name (None or absent: not given); params left out take their defaults.

    Raises ContractValueError or ContractTypeError naming op, argument, got and expected.
    """
    dims: dict[str, int | tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    bound_by: dict[str, str] = {}  # dimension or dtype variable -> the input that bound it
    # Known before any shape is: an input's shape may follow one that stands behind it.
    present = frozenset(spec.name for spec in op.inputs if arrays.get(spec.name) is not None)
    for spec in op.inputs:
        array = arrays.get(spec.name)
        if array is None:
            if not spec.optional:
                raise ContractTypeError(op.name, spec.name, "is None", f"an array {_shapes_text(spec, present)}")
            continue
        _bind_shape(op, spec, array, present, dims, bound_by)
        _bind_dtype(op, spec, array, dtypes, bound_by)
    if len(arrays) > len(op.inputs) or arrays.keys() - {spec.name for spec in op.inputs}:
        unknown = sorted(arrays.keys() - {spec.name for spec in op.inputs})[0]
        known = ", ".join(spec.name for spec in op.inputs)
        raise ContractTypeError(op.name, unknown, "is not an input", f"one of {known}")
    for var in op.dtypes:
        if var.source is not None and var.source in dtypes:
            dtypes[var.name] = var.derive(dtypes[var.source])
    # What speaks of shapes alone is checked first: a default may have no value where it does not hold (K ** -0.5 for K = 0).
    shapes_only = Binding(op, dims, dtypes, {}, present)
    env = shapes_only.environment()
    param_names = {spec.name for spec in op.params}
    for condition in op.where:
        if not condition.expr.names & param_names:
            _check_condition(op, condition, arrays, bound_by, env)
    binding = Binding(op, dims, dtypes, _bind_params(op, params, env), present)
    env |= binding.params
    for condition in op.where:
        if condition.expr.names & param_names:
            _check_condition(op, condition, arrays, bound_by, env)
    return binding


def _shapes_text(spec: Input, present: Container[str]) -> str:
    return " or ".join(map(shape_text, spec.shapes_for(present))) + _presence(spec, present)


def _presence(spec: Input, present: Container[str]) -> str:
    """What an expected shape hangs on, where it hangs on another input."""
    if spec.with_ is None:
        return ""
    return f" where {spec.with_.input} is {'' if spec.with_.input in present else 'not '}given"


def _bind_shape(
    op: Op,
    spec: Input,
    array: ArraySpec,
    present: Container[str],
    dims: dict[str, int | tuple[int, ...]],
    bound_by: dict[str, str],
) -> None:
    def wrong(expected: str) -> ContractValueError:
        return ContractValueError(op.name, spec.name, f"has shape {array.shape}", expected + _presence(spec, present))

    shapes = spec.shapes_for(present)
    fitting = [shape for shape in shapes if _rank_fits(shape, array.shape, dims)]
    if not fitting:
        known = [shape for shape in shapes if all(dim.name in dims for dim in shape)]
        raise wrong(
            " or ".join(_expected(shape, dims, bound_by) if shape in known else shape_text(shape) for shape in shapes)
        )
    shape = fitting[0]
    sizes = array.shape
    own: dict[str, int | tuple[int, ...]] = {}
    if shape and shape[0].variadic:
        lead = len(sizes) - (len(shape) - 1)
        own[shape[0].name] = sizes[:lead]
        shape_rest, sizes = shape[1:], sizes[lead:]
    else:
        shape_rest = shape
    for dim, length in zip(shape_rest, sizes, strict=True):
        if length < dim.offset:
            raise wrong(_expected(shape, dims, bound_by) if dim.name in dims else shape_text(shape))
        if own.setdefault(dim.name, length - dim.offset) != length - dim.offset:
            raise wrong(f"{shape_text(shape)} with one {dim.name}")
    if any(dims.get(name, size) != size for name, size in own.items()):
        raise wrong(_expected(shape, dims, bound_by, own))
    for name, size in own.items():
        dims[name] = size
        bound_by.setdefault(name, spec.name)


def _rank_fits(shape: Shape, sizes: tuple[int, ...], dims: Mapping[str, int | tuple[int, ...]]) -> bool:
    if not (shape and shape[0].variadic):
        return len(sizes) == len(shape)
    bound = dims.get(shape[0].name)
    lead = len(sizes) - (len(shape) - 1)
    return lead == len(bound) if isinstance(bound, tuple) else lead >= 0


def _expected(
    shape: Shape,
    dims: Mapping[str, int | tuple[int, ...]],
    bound_by: Mapping[str, str],
    own: Mapping[str, int | tuple[int, ...]] | None = None,
) -> str:
    """[B, T, H, K] = (2, 128, 4, 64) from q; a dimension this argument is free to choose shows as it is."""
    sizes: list[str] = []
    for dim in shape:
        size = dims.get(dim.name, (own or {}).get(dim.name))
        if isinstance(size, tuple):
            sizes += map(str, size)
        else:
            sizes.append(str(dim) if size is None else str(size + dim.offset))
    sources = dict.fromkeys(bound_by[dim.name] for dim in shape if dim.name in bound_by)
    origin = f" from {' and '.join(sources)}" if sources else ""
    return f"{shape_text(shape)} = ({', '.join(sizes)}{',' if len(sizes) == 1 else ''}){origin}"


def _bind_dtype(op: Op, spec: Input, array: ArraySpec, dtypes: dict[str, str], bound_by: dict[str, str]) -> None:
    free = op.free_dtypes.get(spec.dtype)
    got = f"has dtype {array.dtype}"
    if free is None:
        derived = next((var for var in op.dtypes if var.name == spec.dtype), None)
        if derived is None:
            expected, because = spec.dtype, ""
        else:
            source = dtypes[derived.source or ""]
            expected, because = derived.derive(source), f" where {bound_by[derived.source or '']} is {source}"
        if array.dtype != expected:
            raise ContractValueError(op.name, spec.name, got, expected + because, _cast_hint(spec.name, expected))
        return
    if spec.dtype in dtypes:
        expected = dtypes[spec.dtype]
        if array.dtype != expected:
            source = bound_by[spec.dtype]
            raise ContractValueError(
                op.name, spec.name, got, f"{expected}, the dtype of {source}", _cast_hint(spec.name, expected)
            )
    elif array.dtype not in free:
        raise ContractValueError(op.name, spec.name, got, " or ".join(free), _cast_hint(spec.name, free[0]))
    dtypes[spec.dtype] = array.dtype
    bound_by.setdefault(spec.dtype, spec.name)


def _cast_hint(name: str, dtype: str) -> str:
    return f"Pass {name}.astype({dtype!r})"


def _bind_params(op: Op, params: Mapping[str, object], env: Mapping[str, Value]) -> dict[str, Value]:
    bound: dict[str, Value] = {}
    for spec in op.params:
        value = params.get(spec.name, spec.default)
        if value is None and spec.default_expr is not None:
            bound[spec.name] = _default(op, spec, spec.default_expr, env)
        else:
            bound[spec.name] = _param_value(op, spec, value)
    if len(params) > len(bound) or params.keys() - bound.keys():
        unknown = sorted(params.keys() - bound.keys())[0]
        known = f"one of {', '.join(bound)}" if bound else "no parameters at all"
        raise ContractTypeError(op.name, unknown, "is not a parameter", known)
    return bound


def _default(op: Op, spec: Param, expr: Expr, env: Mapping[str, Value]) -> Value:
    """The default as the parameter's type holds it."""
    try:
        value = expr.number(env)
    except ExpressionError as error:
        raise ContractValueError(
            op.name, spec.name, f"has no default here: {error}", _KINDS[spec.type], f"Pass {spec.name}="
        ) from error
    return value if spec.type == "int" else float(value)


_KINDS = {
    "float": "a Python float",
    "int": "a Python int",
    "bool": "True or False",
    "str": "a string",
    "dtype": 'the name of a dtype, like "float32"',
}
_STATIC = "(it is static: part of what is compiled)"


def _param_value(op: Op, spec: Param, value: object) -> Value:
    if value is None and spec.optional:
        return None
    checked: Value
    if spec.type == "bool" and isinstance(value, bool):
        checked = value
    elif isinstance(value, bool):  # before the numbers: True is an int to Python, not to a contract
        raise _wrong_type(op, spec, value)
    elif spec.type == "int" and isinstance(value, numbers.Integral):
        checked = int(value)
    elif spec.type == "float" and isinstance(value, numbers.Real):
        checked = _finite(op, spec, value)
    elif spec.type in ("str", "dtype") and isinstance(value, str):
        checked = str(value)
        if spec.type == "dtype" and checked not in DTYPES:
            raise ContractValueError(
                op.name, spec.name, f"is {_short(value)}", " or ".join(map(repr, spec.choices or DTYPES))
            )
    else:
        raise _wrong_type(op, spec, value)
    if spec.choices and checked not in spec.choices:
        raise ContractValueError(op.name, spec.name, f"is {_short(value)}", " or ".join(map(repr, spec.choices)))
    return checked


def _finite(op: Op, spec: Param, value: numbers.Real) -> float:
    try:
        number = float(value)
    except OverflowError:  # an integer beyond every float
        number = math.inf
    if not math.isfinite(number):
        raise ContractValueError(op.name, spec.name, f"is {_short(value)}", "a finite number")
    return number


def _wrong_type(op: Op, spec: Param, value: object) -> ContractTypeError:
    expected = f"{'None or ' if spec.optional else ''}{_KINDS[spec.type]} {_STATIC}"
    return ContractTypeError(op.name, spec.name, f"is {_short(value)}", expected)


def _short(value: object) -> str:
    """A value as an error shows it: never the repr of what may be an array, a tracer, or raise."""
    if value is None or type(value) in (bool, float) or (type(value) is int and abs(value) < 1 << 63):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, numbers.Real) and hasattr(value, "dtype"):  # a numpy scalar
        return f"{value} of type {type(value).__name__}"
    kind = type(value)  # numpy's bool has the name of Python's, and is another type
    return f"of type {f'{kind.__module__}.bool' if kind.__name__ == 'bool' else kind.__name__}"


def _check_condition(
    op: Op,
    condition: Condition,
    arrays: Mapping[str, ArraySpec | None],
    bound_by: Mapping[str, str],
    env: Mapping[str, Value],
) -> None:
    if not condition.expr.names <= env.keys():
        return  # it speaks of an optional input that was not given
    why = ""
    try:
        if condition.expr.evaluate(env):
            return
    except ExpressionError as error:  # "M % N == 0" where N is 0
        why = f" ({error})"
    argument, got = _culprit(op, condition.expr, arrays, bound_by, env)
    raise ContractValueError(op.name, argument, got + why, condition.expr.text, condition.hint)


def _culprit(
    op: Op,
    expr: Expr,
    arrays: Mapping[str, ArraySpec | None],
    bound_by: Mapping[str, str],
    env: Mapping[str, Value],
) -> tuple[str, str]:
    """The argument to name when a condition fails: a param before an array, and what it has."""
    for spec in op.params:
        if spec.name in expr.names:
            others = ", ".join(f"{name} = {env[name]!r}" for name in sorted(expr.names - {spec.name}))
            return spec.name, f"is {env[spec.name]!r}" + (f" with {others}" if others else "")
    values = ", ".join(f"{name} = {env[name]!r}" for name in sorted(expr.names))
    for name in sorted(expr.names):
        array = arrays.get(bound_by.get(name, ""))
        if array is not None:
            has = f"dtype {array.dtype}" if name in op.free_dtypes else f"shape {array.shape}"
            return bound_by[name], f"has {has}, so {values}"
    return "arguments", f"give {values}"
