"""Reads the contract part of an op's TOML file into `model.Op`. Costs and workloads are other modules' parts."""

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tops_manifest import _arrays, _params, model
from tops_manifest._reader import MISSING, Reader, is_name, read_toml
from tops_manifest.errors import Fault, ManifestError
from tops_manifest.model import Condition, DtypeVar, Input, Op, Param

SCHEMA = 1
SECTIONS = ("schema", "op", "dtypes", "inputs", "outputs", "params", "contract", "cost", "workloads")
RESERVED = ("backend", "interpret")  # every public function ends with these two
_LETTER = re.compile(r"[A-Z][A-Za-z0-9_]*\Z")
_STEM = re.compile(r"[a-z][a-z0-9_]*\Z")
_MAX_VERSION = 1_000_000


def ops_folder() -> Path:
    """Where the packaged TOML files are."""
    return Path(__file__).with_name("ops")


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


def from_table(table: Mapping[str, object], path: Path) -> Op:
    """Reads the contract from a file's content; `path` names the file in faults and must match the op's name.

    Raises ManifestError with every fault of this part.
    """
    top = Reader(file_name(path), table)
    result = read(top, path.stem)
    top.raise_faults()
    return result


def read(top: Reader, stem: str) -> Op:
    """Reads the contract and notes every fault in `top`; what it returns is sound where there are none."""
    top.known(SECTIONS)
    schema = top.table.get("schema", MISSING)
    if type(schema) is not int or schema != SCHEMA:
        top.fault("schema", schema, str(SCHEMA))
    head = top.sub("op")
    head.known(("name", "family", "version", "status", "ref", "doc", "kernel_map"))
    name = head.text("name")
    if name != stem and isinstance(head.table.get("name"), str):
        head.fault("name", name, f"{stem!r}, the file's name")
    elif not (_STEM.match(name) and is_name(name)) and name:
        head.fault("name", name, "small letters, digits and _: it is a Python function's name")
    family = head.text("family")
    if not _STEM.match(family) and isinstance(head.table.get("family"), str):
        head.fault("family", family, "small letters, digits and _: it names files")
    dtypes = _dtypes(top.sub("dtypes", required=False))
    kernel_map = head.texts("kernel_map", model.IMPLEMENTATIONS, required=True)
    inputs = _arrays.inputs(top.sub("inputs"), dtypes, kernel_map)
    dims = {dim.name for spec in inputs for shape in spec.all_shapes for dim in shape}
    params = _params.read(top.sub("params", required=False), _arrays.always_bound(inputs))
    rules = top.sub("contract", required=False)
    rules.known(("where", "vjp", "vmap", "shard_free"))
    _check_names_distinct(top, inputs, params, dims, dtypes)
    return Op(
        name=name,
        family=family,
        version=head.integer("version", 1, _MAX_VERSION),
        status=head.choice("status", model.STATUSES),
        ref=head.text("ref"),
        doc=head.text("doc"),
        kernel_map=kernel_map,
        dtypes=dtypes,
        inputs=inputs,
        outputs=_arrays.outputs(top.sub("outputs"), inputs, dtypes, params),
        params=params,
        where=_where(rules, expression_names(inputs, params, dtypes)),
        vjp=rules.texts("vjp", [spec.name for spec in inputs]),
        vmap=rules.flag("vmap", True),
        shard_free=rules.texts("shard_free", sorted(dims)),
    )


def expression_names(inputs: Iterable[Input], params: Iterable[Param], dtypes: Iterable[DtypeVar]) -> set[str]:
    """Every name an expression of this op may use."""
    inputs = tuple(inputs)
    names = {dim.name for spec in inputs for shape in spec.all_shapes for dim in shape}
    names |= {spec.name for spec in params} | {var.name for var in dtypes}
    return names | {f"has_{spec.name}" for spec in inputs if spec.optional}


def _dtypes(at: Reader) -> tuple[DtypeVar, ...]:
    """X = [...] is free; Y = { of = "X", int8 = "int32" } follows X, itself where it says nothing else."""
    result: dict[str, DtypeVar] = {}
    for name, value in at.table.items():
        if not _LETTER.match(name):
            at.fault(name, value, "a name with a capital first: a dtype variable, like X")
        elif isinstance(value, list):
            result[name] = DtypeVar(name, at.texts(name, model.DTYPES, required=True))
        elif not isinstance(value, dict):
            at.fault(name, value, 'a list of dtypes, or { of = "X", ... }')
        else:
            var = _derived(at.sub(name), name, result)
            if var is not None:
                result[name] = var
    return tuple(result.values())


def _derived(at: Reader, name: str, above: Mapping[str, DtypeVar]) -> DtypeVar | None:
    of = at.table.get("of", MISSING)
    source = above.get(of) if isinstance(of, str) else None
    if source is None or source.source is not None:
        at.fault("of", of, "a dtype variable with a list, above this one")
        return None
    at.known(("of", *source.choices))
    mapping = tuple((dtype, at.choice(dtype, model.DTYPES, dtype)) for dtype in source.choices)
    return DtypeVar(name, tuple(to for _, to in mapping), source.name, mapping)


def _where(at: Reader, names: set[str]) -> tuple[Condition, ...]:
    entries = at.table.get("where", [])
    if not isinstance(entries, list):
        at.fault("where", entries, "a list of conditions")
        return ()
    result = []
    for index, entry in enumerate(entries):
        hint = ""
        text: object = entry
        # A list's entry has a key of its own to be named by.
        spec = Reader(at.file, entry if isinstance(entry, dict) else {}, f"{at.at}.where[{index}]", at.faults)
        if isinstance(entry, dict):
            spec.known(("expr", "hint"))
            hint, text = spec.text("hint", ""), entry.get("expr", MISSING)
        expr = spec.expression("expr" if isinstance(entry, dict) else "", text, names)
        if expr is not None:
            result.append(Condition(expr, hint))
    return tuple(result)


def _check_names_distinct(
    top: Reader, inputs: tuple[Input, ...], params: tuple[Param, ...], dims: set[str], dtypes: tuple[DtypeVar, ...]
) -> None:
    """No two things of a signature share a name, nor two of an expression's."""
    arguments = [("inputs", spec.name) for spec in inputs] + [("params", spec.name) for spec in params]
    seen: set[str] = set(RESERVED)
    for section, name in arguments:
        if name in seen:
            top.fault(f"{section}.{name}", name, "a name that no input, parameter, backend or interpret has")
        seen.add(name)
    letters = [("inputs", name) for name in sorted(dims)] + [("dtypes", var.name) for var in dtypes]
    letters += [("params", spec.name) for spec in params]
    taken = {f"has_{spec.name}" for spec in inputs if spec.optional}
    for section, name in letters:
        if name in taken:
            top.fault(
                f"{section}.{name}", name, "a name that no dimension, dtype variable, parameter or has_<input> has"
            )
        taken.add(name)


__all__ = ["Fault", "ManifestError", "from_table", "load", "op", "op_names", "ops", "ops_folder", "read"]
