"""Baselines others registered under the entry-point group "tops.baselines": checked here, timed elsewhere.

An entry point's name is a family; its value a mapping: op -> baseline name -> function with the op's signature, less
`backend` and `interpret`.
"""

import hashlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from tops_manifest import Op
from tops_tests.subject import Subject

GROUP = "tops.baselines"


def of(op: Op) -> list[Subject]:
    """The op's baselines, each as a subject named "baseline:<name>"."""
    result = []
    for point in _points(op):
        table: Any = point.load()
        if not isinstance(table, Mapping):
            raise TypeError(
                f"{GROUP}: {point.value} is a {type(table).__name__}; expected a mapping op -> name -> function"
            )
        result += [Subject(op, function, f"baseline:{name}") for name, function in table.get(op.name, {}).items()]
    return result


def source(op: Op) -> Path:
    """The file of the module that the family's entry point names: what a baseline's certificate is about."""
    points = _points(op)
    if not points:
        raise LookupError(f"{op.name}: nothing is registered under {GROUP} for its family {op.family!r}")
    points[0].load()
    file = sys.modules[points[0].module].__file__
    if file is None:
        raise LookupError(f"{GROUP}: module {points[0].module} has no file")
    return Path(file)


def digest(op: Op) -> str:
    return hashlib.sha256(source(op).read_bytes()).hexdigest()


def _points(op: Op) -> tuple[EntryPoint, ...]:
    points = tuple(point for point in entry_points(group=GROUP) if point.name == op.family)
    if len(points) > 1:
        raise LookupError(f"{GROUP}: {op.family!r} is registered {len(points)} times; one entry point a family")
    return points
