"""Reads [params]: keyword-only, static, each with a default."""

import math
from collections.abc import Iterable

from tops_manifest import model
from tops_manifest._reader import MISSING, Reader
from tops_manifest.model import Param, ParamValue

_KINDS = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a finite number",
    "str": "a string",
    "dtype": "a dtype",
}


def read(at: Reader, dims: Iterable[str]) -> tuple[Param, ...]:
    """`dims`: the dimensions that a default may be an expression of."""
    return tuple(_param(name, spec, set(dims)) for name, spec in at.named_subs())


def _param(name: str, at: Reader, dims: set[str]) -> Param:
    at.known(("type", "default", "choices", "optional", "doc"))
    kind = at.choice("type", model.PARAM_TYPES)
    optional = at.flag("optional", False)
    doc = at.text("doc", "")
    choices = _choices(at, kind)
    default = at.table.get("default", MISSING)
    if kind in ("float", "int") and isinstance(default, str):
        return Param(name, kind, None, at.expression("default", default, dims), choices, optional, doc)
    value = typed(default, kind)
    if default is MISSING:
        if not optional:
            at.fault("default", default, "a default (or optional = true for None)")
    elif value is None:
        if kind:  # else `type` is at fault
            at.fault("default", default, _KINDS[kind])
    elif choices and value not in choices:
        at.fault("default", default, f"one of choices: {list(choices)}")
    return Param(name, kind, value, None, choices, optional, doc)


def _choices(at: Reader, kind: str) -> tuple[ParamValue, ...]:
    entries = at.table.get("choices", [])
    values = [typed(item, kind) for item in entries] if isinstance(entries, list) else [None]
    if None in values:
        if kind:
            at.fault("choices", entries, f"a list, each {_KINDS[kind]}")
        return ()
    if len(set(values)) != len(values):
        at.fault("choices", entries, "no entry twice")
    return tuple(values)


def typed(value: object, kind: str) -> ParamValue:
    """`value` as a parameter of this type holds it, a whole number for a float as a float; None where it is none."""
    match kind, value:
        case "bool", bool():
            return value
        case _, bool():
            return None
        case "int", int() if abs(value) < 1 << 63:
            return value
        case "float", int() if abs(value) < 1 << 63:
            return float(value)
        case "float", float() if math.isfinite(value):
            return value
        case "str", str():
            return value
        case "dtype", str() if value in model.DTYPES:
            return value
        case _:
            return None
