"""Reads [inputs] and [outputs]: shapes, the dtypes that go with them, and what an optional input changes about a shape."""

import re
from collections.abc import Iterable, Iterator

from tops_manifest import model
from tops_manifest._reader import MISSING, Reader
from tops_manifest.model import Dim, DtypeVar, Input, Interval, Output, Param, Shape, With

_DIM = re.compile(r"(\*?)([A-Z][A-Za-z0-9_]*)(?:\+([1-9][0-9]{0,5}))?\Z")
_INTEGERS = tuple(dtype for dtype in model.DTYPES if dtype.startswith(("int", "uint")))
_SIGNED = tuple(dtype for dtype in _INTEGERS if dtype.startswith("int"))  # -1 is no index


def inputs(at: Reader, dtypes: tuple[DtypeVar, ...], kernel_map: tuple[str, ...]) -> tuple[Input, ...]:
    """Reads [inputs] and notes every fault."""
    optional = [name for name, spec in at.table.items() if isinstance(spec, dict) and spec.get("optional") is True]
    result: list[Input] = []
    for name, spec in at.named_subs():
        spec.known(("shape", "dtype", "optional", "domain", "with", "rises", "indexes", "only", "doc"))
        texts = spec.table.get("shape", MISSING)
        shapes = tuple(_shape(spec, text) for text in (texts if isinstance(texts, list) and texts else [texts]))
        kinds = [(len(shape), bool(shape and shape[0].variadic)) for shape in shapes]
        if len(set(kinds)) != len(kinds):
            spec.fault("shape", texts, "shapes that their ranks tell apart")
        dtype = spec.choice("dtype", [*(var.name for var in dtypes), *model.DTYPES])
        source = next((var.source for var in dtypes if var.name == dtype), None)
        if source is not None and not any(one.dtype == source and not one.optional for one in result):
            spec.fault("dtype", dtype, f"an input of {source} above, always given: {dtype} follows it")
        result.append(
            Input(
                name=name,
                shapes=shapes,
                dtype=dtype,
                optional=spec.flag("optional", False),
                domain=_domain(spec),
                doc=spec.text("doc", ""),
                with_=_with(spec, [other for other in optional if other != name]),
                rises=spec.text("rises") if "rises" in spec.table else None,
                indexes=spec.text("indexes") if "indexes" in spec.table else None,
                only=_only(spec, kernel_map) if "only" in spec.table else (),
            )
        )
    variadic = {dim.name: dim.variadic for spec in result for shape in spec.all_shapes for dim in shape}
    for item in result:
        for key, shape in _keyed(item):
            for dim in shape:
                if variadic[dim.name] != dim.variadic:
                    at.fault(key, model.shape_text(shape), f"{dim.name} with * everywhere or nowhere")
        if item.rises is not None:
            _check_values(at.sub(item.name), "rises", item, result, dtypes)
        if item.indexes is not None:
            _check_values(at.sub(item.name), "indexes", item, result, dtypes)
    required = [item.optional for item in result]
    if required != sorted(required):
        at.fault("", [item.name for item in result], "optional inputs after all others")
    if not at.table:
        at.fault("", MISSING, "at least one input")
    return tuple(result)


def outputs(
    at: Reader, inputs: tuple[Input, ...], dtypes: tuple[DtypeVar, ...], params: tuple[Param, ...]
) -> tuple[Output, ...]:
    """Reads [outputs] and notes every fault."""
    result = []
    given = {spec.dtype for spec in inputs if not spec.optional}
    for name, spec in at.named_subs():
        spec.known(("shape", "dtype", "dtype_param", "with", "doc"))
        shape = _shape(spec, spec.table.get("shape", MISSING))
        with_ = _with(spec, [one.name for one in inputs if one.optional])
        absent = None if with_ is None else with_.input  # `shape` speaks of calls without it alone
        _check_bound(spec, "shape", shape, inputs, always_bound(inputs, absent=absent), "")
        if with_ is not None:
            bound = always_bound(inputs, given=with_.input)
            _check_bound(spec.sub("with"), with_.input, with_.shape, inputs, bound, f" where {with_.input} is")
        dtype = spec.choice("dtype", [*(var.name for var in dtypes), *model.DTYPES])
        for var in dtypes:
            if var.name == dtype and (var.source or var.name) not in given:
                spec.fault("dtype", dtype, f"{var.source or var.name} as the dtype of an input that is always given")
        param = None
        if "dtype_param" in spec.table:
            param = spec.choice("dtype_param", [one.name for one in params if one.type == "dtype"])
        result.append(Output(name, shape, dtype, param, spec.text("doc", ""), with_))
    if not at.table:
        at.fault("", MISSING, "at least one output")
    return tuple(result)


def always_bound(inputs: Iterable[Input], *, given: str | None = None, absent: str | None = None) -> set[str]:
    """The dimensions that every call binds: those of an input that must be given, in whichever of its shapes.

    `given`, `absent`: of every call in which this optional input is given, or is not.
    """
    result: set[str] = set()
    for spec in inputs:
        if spec.optional and spec.name != given:
            continue
        shapes = spec.all_shapes
        if spec.with_ is not None and spec.with_.input in (given, absent):
            shapes = spec.shapes_for(() if given is None else (given,))
        result |= set.intersection(*({dim.name for dim in shape} for shape in shapes))
    return result


def _shape(at: Reader, text: object, key: str = "shape") -> Shape:
    if not isinstance(text, str):
        at.fault(key, text, 'dimensions as a string, like "B T H K"')
        return ()
    result = []
    for position, word in enumerate(text.split()):
        match = _DIM.match(word)
        if match is None:
            expected = "dimension names (a capital first; a leading * for any number; +1 behind it for one more)"
            at.fault(key, text, f"{expected}, not {word!r}")
            result.append(Dim(word.lstrip("*"), word.startswith("*")))
            continue
        dim = Dim(match[2], bool(match[1]), int(match[3] or 0))
        if dim.variadic and position:
            at.fault(key, text, f"*{dim.name} in first place")
        if dim.variadic and dim.offset:
            at.fault(key, text, f"*{dim.name} with no number behind it: it is no single size")
        result.append(dim)
    return tuple(result)


def _with(at: Reader, optional: list[str]) -> With | None:
    """with = { cu_seqlens = "N H K V" }: the shape where that one of the `optional` inputs is given."""
    if "with" not in at.table:
        return None
    spec = at.sub("with")
    if isinstance(at.table["with"], dict) and len(spec.table) != 1:
        at.fault("with", at.table["with"], "one optional input, and the shape where it is given")
    spec.known(optional)
    found = [With(name, _shape(spec, text, name)) for name, text in spec.table.items() if name in optional]
    return found[0] if found else None


def _only(at: Reader, kernel_map: tuple[str, ...]) -> tuple[str, ...]:
    """only = ["xla"]: implementations that take the input. xla is what a call falls back to, so it takes every one."""
    found = at.texts("only", kernel_map, required=True)
    if at.table.get("optional") is not True:
        at.fault("only", at.table["only"], "an optional input: every implementation takes what each call gives")
    elif found and "xla" not in found:
        at.fault("only", at.table["only"], "xla among them: a call that no kernel takes falls back to it")
    elif found and set(found) == set(kernel_map):
        at.fault("only", at.table["only"], "fewer than all of op.kernel_map: without the key all take it")
    return found


def _keyed(spec: Input) -> Iterator[tuple[str, Shape]]:
    """Each shape of an input with the key it stands under."""
    yield from ((f"{spec.name}.shape", shape) for shape in spec.shapes)
    if spec.with_ is not None:
        yield f"{spec.name}.with.{spec.with_.input}", spec.with_.shape


def _check_bound(at: Reader, key: str, shape: Shape, inputs: tuple[Input, ...], bound: set[str], where: str) -> None:
    """Notes dimensions of an output that some call does not bind."""
    variadic = {dim.name: dim.variadic for spec in inputs for one in spec.all_shapes for dim in one}
    text = at.table.get(key, MISSING)
    for dim in shape:
        if dim.name not in variadic:
            at.fault(key, text, f"no input binds {dim.name} (known: {' '.join(sorted(variadic))})")
        elif dim.name not in bound:
            at.fault(key, text, f"{dim.name} in an input that is always given{where}, in each of its shapes")
        elif dim.variadic != variadic[dim.name]:
            at.fault(key, text, f"{dim.name} with * everywhere or nowhere")
        if dim.offset:
            at.fault(key, text, f"{dim.name} alone: the sizes of an output have no number added")


def _check_values(at: Reader, key: str, spec: Input, inputs: list[Input], dtypes: tuple[DtypeVar, ...]) -> None:
    """Notes what keeps the values of an input from going up to a dimension's size: `key` is "rises" or "indexes"."""
    variadic = {dim.name for one in inputs for shape in one.all_shapes for dim in shape if dim.variadic}
    given = (
        spec.name if key == "indexes" and spec.optional else None
    )  # what is indexed may be there with the index alone
    ends = sorted(always_bound((one for one in inputs if one is not spec), given=given) - variadic)
    text = at.table[key]
    if text not in ends and isinstance(text, str):  # else `text()` has noted it
        calls = "every call" if given is None else f"every call with {given}"
        expected = f"a dimension that other inputs bind in {calls} (known: {' '.join(ends) or 'none'})"
        at.fault(key, text, expected)
    choices = next((var.choices for var in dtypes if var.name == spec.dtype), (spec.dtype,))
    fit = _INTEGERS if key == "rises" else _SIGNED
    if spec.dtype and not set(choices) <= set(fit):
        kind = "an integer input" if key == "rises" else "an input of signed integers"
        at.fault(key, text, f"{kind}, not one of {spec.dtype}")
    if any(len(shape) != 1 or shape[0].variadic for shape in spec.all_shapes):
        at.fault(key, text, f"an input of one dimension{', along which it rises' if key == 'rises' else ''}")
    for other in ("domain", "rises"):
        if other in at.table and other != key:
            at.fault(other, at.table[other], f"no {other} beside {key} = {text!r}")


def _domain(at: Reader) -> str | None:
    text = at.table.get("domain")
    try:
        return None if text is None else str(Interval.read(at.text("domain")))
    except ValueError:
        if isinstance(text, str):  # else `text()` has noted it
            at.fault("domain", text, 'an interval that is not empty, like "(-inf, 0]"')
        return None
