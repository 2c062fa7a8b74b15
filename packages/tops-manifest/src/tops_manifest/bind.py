"""Holds a call against its contract: binds dimensions and dtype variables, or says which argument is wrong and how.

Pure arithmetic on shapes and names, so the kernels check their callers with it and the tests check the kernels with it.
"""

import dataclasses
import math
import numbers
from collections.abc import Mapping

from tops_manifest.errors import ContractTypeError, ContractValueError
from tops_manifest.expr import Expr, Value
from tops_manifest.model import Input, Op, Param, Shape, shape_text


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
        sizes: list[int] = []
        for dim in shape:
            size = self.dims[dim.name]
            sizes += size if isinstance(size, tuple) else (size,)
        return tuple(sizes)

    def dtype(self, name: str) -> str:
        return self.dtypes.get(name, name)

    def outputs(self) -> dict[str, ArraySpec]:
        """What the contract says comes out, by name, in order."""
        result = {}
        for spec in self.op.outputs:
            chosen = self.params[spec.dtype_param] if spec.dtype_param is not None else None
            result[spec.name] = ArraySpec(
                self.shape(spec.shape), self.dtype(spec.dtype) if chosen is None else str(chosen)
            )
        return result


def bind(op: Op, arrays: Mapping[str, ArraySpec | None], params: Mapping[str, object]) -> Binding:
    """Binds a call. `arrays` by input name (None or absent: not given); params left out take their defaults.

    Raises ContractValueError or ContractTypeError naming op, argument, got and expected.
    """
    dims: dict[str, int | tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    bound_by: dict[str, str] = {}  # dimension or dtype variable -> the input that bound it
    for spec in op.inputs:
        array = arrays.get(spec.name)
        if array is None:
            if not spec.optional:
                raise ContractTypeError(op.name, spec.name, "is None", f"an array {_shapes_text(spec)}")
            continue
        _bind_shape(op, spec, array, dims, bound_by)
        _bind_dtype(op, spec, array, dtypes, bound_by)
    for var in op.dtypes:
        if var.source is not None and var.source in dtypes:
            dtypes[var.name] = var.derive(dtypes[var.source])
    present = frozenset(name for name, array in arrays.items() if array is not None)
    binding = Binding(op, dims, dtypes, {}, present)
    binding = dataclasses.replace(binding, params=_bind_params(op, params, binding.environment()))
    _check_conditions(op, binding, arrays, bound_by)
    return binding


def _shapes_text(spec: Input) -> str:
    return " or ".join(shape_text(shape) for shape in spec.shapes)


def _bind_shape(
    op: Op, spec: Input, array: ArraySpec, dims: dict[str, int | tuple[int, ...]], bound_by: dict[str, str]
) -> None:
    fitting = [shape for shape in spec.shapes if _rank_fits(shape, array.shape, dims)]
    if not fitting:
        known = [shape for shape in spec.shapes if all(dim.name in dims for dim in shape)]
        text = " or ".join(
            _expected(shape, dims, bound_by) if shape in known else shape_text(shape) for shape in spec.shapes
        )
        raise ContractValueError(op.name, spec.name, f"has shape {array.shape}", text)
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
        if own.setdefault(dim.name, length) != length:
            raise ContractValueError(
                op.name, spec.name, f"has shape {array.shape}", f"{shape_text(shape)} with one {dim.name}"
            )
    if any(dims.get(name, size) != size for name, size in own.items()):
        raise ContractValueError(op.name, spec.name, f"has shape {array.shape}", _expected(shape, dims, bound_by, own))
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
            sizes.append(dim.name if size is None else str(size))
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
    unknown = sorted(params.keys() - {spec.name for spec in op.params})
    if unknown:
        known = ", ".join(spec.name for spec in op.params) or "no parameters"
        raise ContractTypeError(op.name, unknown[0], "is not a parameter", known)
    bound: dict[str, Value] = {}
    for spec in op.params:
        value = params.get(spec.name, spec.default)
        if value is None and spec.default_expr is not None:
            bound[spec.name] = spec.default_expr.evaluate({**env, **bound})
        else:
            bound[spec.name] = _param_value(op, spec, value)
    return bound


def _param_value(op: Op, spec: Param, value: object) -> Value:
    got = f"is {value!r}"
    if value is None and (spec.optional or spec.default is None):
        return None
    checked: Value
    if isinstance(value, bool):  # before the numbers: True is an int to Python, not to a contract
        if spec.type != "bool":
            raise ContractTypeError(op.name, spec.name, got, _kind(spec))
        checked = value
    elif spec.type == "int" and isinstance(value, numbers.Integral):
        checked = int(value)
    elif spec.type == "float" and isinstance(value, numbers.Real):
        checked = float(value)
        if not math.isfinite(checked):
            raise ContractValueError(op.name, spec.name, got, "a finite number")
    elif spec.type in ("str", "dtype") and isinstance(value, str):
        checked = value
    else:
        kind = {"float": "a Python float", "int": "a Python int", "bool": "True or False"}.get(
            spec.type, f"a {spec.type}"
        )
        raise ContractTypeError(
            op.name, spec.name, f"is {_short(value)}", f"{kind} (it is static: part of what is compiled)"
        )
    if spec.choices and checked not in spec.choices:
        raise ContractValueError(op.name, spec.name, got, " or ".join(repr(choice) for choice in spec.choices))
    return checked


def _kind(spec: Param) -> str:
    kind = {"float": "a Python float", "int": "a Python int", "bool": "True or False"}.get(spec.type, f"a {spec.type}")
    return f"{kind} (it is static: part of what is compiled)"


def _short(value: object) -> str:
    return f"of type {type(value).__name__}"  # never its repr: it may be an array, a tracer, or raise


def _check_conditions(
    op: Op, binding: Binding, arrays: Mapping[str, ArraySpec | None], bound_by: Mapping[str, str]
) -> None:
    env = binding.environment()
    for condition in op.where:
        if not condition.expr.names <= env.keys():
            continue  # it speaks of an optional input that was not given
        if not condition.expr.evaluate(env):
            argument, got = _culprit(op, condition.expr, binding, arrays, bound_by, env)
            raise ContractValueError(op.name, argument, got, condition.expr.text, condition.hint)


def _culprit(
    op: Op,
    expr: Expr,
    binding: Binding,
    arrays: Mapping[str, ArraySpec | None],
    bound_by: Mapping[str, str],
    env: Mapping[str, Value],
) -> tuple[str, str]:
    """The argument to name when a condition fails: a param before an array, and what it has."""
    values = ", ".join(f"{name} = {env[name]!r}" for name in sorted(expr.names))
    for spec in op.params:
        if spec.name in expr.names:
            others = ", ".join(f"{name} = {env[name]!r}" for name in sorted(expr.names - {spec.name}))
            return spec.name, f"is {binding.params[spec.name]!r}" + (f" with {others}" if others else "")
    for name in sorted(expr.names):
        array = arrays.get(bound_by.get(name, ""))
        if array is not None:
            return bound_by[name], f"has shape {array.shape}, so {values}"
    return "arguments", f"give {values}"
