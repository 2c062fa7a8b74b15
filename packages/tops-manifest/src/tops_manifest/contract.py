"""Reads the contract part of an op's TOML file into `model.Op`. Costs and workloads are other modules' parts."""

import functools
import importlib.resources
import re
from collections.abc import Iterable
from pathlib import Path

from tops_manifest import model
from tops_manifest._reader import Reader, read_toml
from tops_manifest.errors import Fault, ManifestError
from tops_manifest.model import Condition, Dim, DtypeVar, Input, Op, Output, Param, Shape

SECTIONS = ("schema", "op", "dtypes", "inputs", "outputs", "params", "contract", "cost", "workloads")
_DIM = re.compile(r"\*?[A-Z][A-Za-z0-9_]*\Z")
_DOMAIN = re.compile(r"[\[(]\s*(-?inf|-?[\d.e-]+)\s*,\s*(-?inf|-?[\d.e-]+)\s*[\])]\Z")


def ops_folder() -> Path:
    """Where the packaged TOML files are."""
    return Path(str(importlib.resources.files("tops_manifest") / "ops"))


def op_names(folder: Path | None = None) -> tuple[str, ...]:
    """Names of the ops, sorted: one TOML file each."""
    return tuple(sorted(path.stem for path in (folder or ops_folder()).glob("*.toml")))


@functools.cache
def op(name: str) -> Op:
    """The packaged contract of one op. Raises KeyError for a name that has none, ManifestError for a bad file."""
    if name not in op_names():
        raise KeyError(f"no op {name!r}; known: {', '.join(op_names())}")
    return load(ops_folder() / f"{name}.toml")


def ops() -> tuple[Op, ...]:
    """All packaged contracts, by name."""
    return tuple(op(name) for name in op_names())


def load(path: Path) -> Op:
    """Reads one file's contract. Raises ManifestError with every fault of this part."""
    return from_table(read_toml(path, file_name(path)), path)


def file_name(path: Path) -> str:
    """How faults name the file: ops/gla.toml"""
    return f"{path.parent.name}/{path.name}"


def from_table(table: dict[str, object], path: Path) -> Op:
    """Reads the contract from a file's content; `path` names the file in faults and must match the op's name."""
    top = Reader(file_name(path), table)
    top.known(SECTIONS)
    if table.get("schema") != 1:
        top.fault("schema", table.get("schema", "nothing"), "1")
    head = top.sub("op")
    head.known(("name", "family", "version", "status", "ref", "doc", "kernel_map"))
    name = head.text("name")
    if name != path.stem:
        head.fault("name", name, f"{path.stem!r}, the file's name")
    dtypes = _dtypes(top.sub("dtypes", required=False))
    dtype_names = [var.name for var in dtypes]
    inputs = _inputs(top.sub("inputs"), dtype_names)
    dims = {dim.name: dim for spec in inputs for shape in spec.shapes for dim in shape}
    params = _params(top.sub("params", required=False), dims.keys())
    names = expression_names(inputs, params, dtypes)
    outputs = _outputs(top.sub("outputs"), dims, dtype_names, params)
    rules = top.sub("contract", required=False)
    rules.known(("where", "vjp", "vmap", "shard_free"))
    version = head.integer("version")
    if version < 1:
        head.fault("version", version, "an integer from 1")
    _check_names_distinct(top, inputs, params)
    result = Op(
        name=name,
        family=head.text("family"),
        version=version,
        status=head.choice("status", model.STATUSES),
        ref=head.text("ref"),
        doc=head.text("doc"),
        kernel_map=head.texts("kernel_map", model.IMPLEMENTATIONS, required=True),
        dtypes=dtypes,
        inputs=inputs,
        outputs=outputs,
        params=params,
        where=_where(rules, names),
        vjp=rules.texts("vjp", [spec.name for spec in inputs]),
        vmap=rules.flag("vmap", True),
        shard_free=rules.texts("shard_free", dims),
    )
    top.raise_faults()
    return result


def expression_names(inputs: Iterable[Input], params: Iterable[Param], dtypes: Iterable[DtypeVar]) -> set[str]:
    """Every name an expression of this op may use."""
    inputs = tuple(inputs)
    names = {dim.name for spec in inputs for shape in spec.shapes for dim in shape}
    names |= {spec.name for spec in params} | {var.name for var in dtypes}
    return names | {f"has_{spec.name}" for spec in inputs if spec.optional}


def _dtypes(at: Reader) -> tuple[DtypeVar, ...]:
    """X = [...] is free; Y = { of = "X", int8 = "int32" } follows X, itself where it says nothing else."""
    result: dict[str, DtypeVar] = {}
    for name, value in at.table.items():
        if isinstance(value, list):
            result[name] = DtypeVar(name, at.texts(name, model.DTYPES, required=True))
            continue
        follow = at.sub(name)
        source = result.get(follow.text("of"))
        if source is None or source.source is not None:
            follow.fault("of", follow.table.get("of", "nothing"), "a dtype variable with a list, above this one")
            continue
        follow.known(("of", *source.choices))
        mapping = tuple((dtype, follow.choice(dtype, model.DTYPES, dtype)) for dtype in source.choices)
        result[name] = DtypeVar(name, tuple(to for _, to in mapping), source.name, mapping)
    return tuple(result.values())


def _shape(at: Reader, name: str, text: object, known: Iterable[str] | None = None) -> Shape:
    if not isinstance(text, str):
        at.fault(name, text, 'dimensions as a string, like "B T H K"')
        return ()
    dims = text.split()
    names = None if known is None else set(known)
    for position, dim in enumerate(dims):
        if not _DIM.match(dim):
            at.fault(name, text, f"dimension names (a capital first; a leading * for any number), not {dim!r}")
        elif dim.startswith("*") and position:
            at.fault(name, text, f"{dim} in first place")
        elif names is not None and dim.lstrip("*") not in names:
            at.fault(name, text, f"no input binds {dim} (known: {' '.join(sorted(names))})")
    return tuple(Dim(dim.lstrip("*"), dim.startswith("*")) for dim in dims)


def _inputs(at: Reader, dtypes: list[str]) -> tuple[Input, ...]:
    result = []
    for name, spec in at.named_subs():
        spec.known(("shape", "dtype", "optional", "domain", "doc"))
        texts = spec.table.get("shape", "nothing")
        shapes = tuple(
            _shape(spec, "shape", text) for text in (texts if isinstance(texts, list) and texts else [texts])
        )
        domain = spec.text("domain") if "domain" in spec.table else None
        if domain is not None and not _DOMAIN.match(domain):
            spec.fault("domain", domain, 'an interval like "(-inf, 0]"')
        dtype = spec.choice("dtype", [*dtypes, *model.DTYPES])
        result.append(Input(name, shapes, dtype, spec.flag("optional", False), domain, spec.text("doc", "")))
    variadic = {dim.name: dim.variadic for spec in result for shape in spec.shapes for dim in shape}
    for item in result:
        for shape in item.shapes:
            for dim in shape:
                if variadic[dim.name] != dim.variadic:
                    at.fault(f"{item.name}.shape", model.shape_text(shape), f"{dim.name} with * everywhere or nowhere")
    required = [item.optional for item in result]
    if required != sorted(required):
        at.fault("", [item.name for item in result], "optional inputs after all others")
    if not result:
        at.fault("", "no inputs", "at least one")
    return tuple(result)


def _outputs(at: Reader, dims: dict[str, Dim], dtypes: list[str], params: tuple[Param, ...]) -> tuple[Output, ...]:
    result = []
    for name, spec in at.named_subs():
        spec.known(("shape", "dtype", "dtype_param", "doc"))
        shape = _shape(spec, "shape", spec.table.get("shape", "nothing"), dims)
        dtype = spec.choice("dtype", [*dtypes, *model.DTYPES])
        param = None
        if "dtype_param" in spec.table:
            param = spec.choice("dtype_param", [p.name for p in params if p.type == "dtype"])
        result.append(Output(name, shape, dtype, param, spec.text("doc", "")))
    if not result:
        at.fault("", "no outputs", "at least one")
    return tuple(result)


def _params(at: Reader, dims: Iterable[str]) -> tuple[Param, ...]:
    result = []
    for name, spec in at.named_subs():
        spec.known(("type", "default", "choices", "optional", "doc"))
        kind = spec.choice("type", model.PARAM_TYPES)
        optional = spec.flag("optional", False)
        default, expr = spec.table.get("default"), None
        if kind in ("float", "int") and isinstance(default, str):
            expr, default = spec.expression("default", default, dims), None
        elif default is None:
            if not optional:
                spec.fault("default", "nothing", "a default (or optional = true for None)")
        elif not _is_of_type(default, kind):
            spec.fault("default", default, f"a {kind}")
        choices = spec.table.get("choices", [])
        if not isinstance(choices, list) or not all(_is_of_type(item, kind) for item in choices):
            spec.fault("choices", choices, f"a list of {kind}")
            choices = []
        if choices and default is not None and default not in choices:
            spec.fault("default", default, f"one of choices: {choices}")
        value = default if isinstance(default, int | float | str | bool) else None
        result.append(Param(name, kind, value, expr, tuple(choices), optional, spec.text("doc", "")))
    return tuple(result)


def _is_of_type(value: object, kind: str) -> bool:
    match kind:
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "dtype":
            return value in model.DTYPES
        case _:
            return isinstance(value, str)


def _where(at: Reader, names: set[str]) -> tuple[Condition, ...]:
    entries = at.table.get("where", [])
    if not isinstance(entries, list):
        at.fault("where", entries, "a list of conditions")
        return ()
    result = []
    for entry in entries:
        hint = ""
        text: object = entry
        if isinstance(entry, dict):
            spec = Reader(at.file, entry, at.key("where"), at.faults)
            spec.known(("expr", "hint"))
            hint, text = spec.text("hint", ""), spec.table.get("expr", "nothing")
        expr = at.expression("where", text, names)
        if expr is not None:
            result.append(Condition(expr, hint))
    return tuple(result)


def _check_names_distinct(top: Reader, inputs: tuple[Input, ...], params: tuple[Param, ...]) -> None:
    reserved = {"backend", "interpret"}  # every public function has these two
    seen: set[str] = set()
    for name in [spec.name for spec in inputs] + [spec.name for spec in params]:
        if name in seen or name in reserved:
            top.fault(f"params.{name}", name, "a name that no input, parameter, backend or interpret has")
        seen.add(name)


__all__ = ["Fault", "ManifestError", "from_table", "load", "op", "op_names", "ops", "ops_folder"]
