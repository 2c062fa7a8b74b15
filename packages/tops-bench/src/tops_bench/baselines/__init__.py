"""What the kernels are timed against: the functions a good user of JAX would write, one module a family.

They come in by the entry-point group "tops.baselines", as the test stage finds them too, so what is timed is what was
checked; another package may register a family of its own. An entry point names a module's BASELINES: op -> name ->
function, with the op's signature less `backend` and `interpret`.
"""

import dataclasses
import hashlib
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from tops_bench import files
from tops_manifest import Op

GROUP = "tops.baselines"


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """A function to be timed against, and the file it stands in."""

    name: str
    function: Callable[..., Any]
    source: Path

    @property
    def implementation(self) -> str:
        """Its name in certificates and records."""
        return f"baseline:{self.name}"

    def digest(self) -> str:
        """sha256 of the module's file: what its certificate is about. Raises files.FileError."""
        return hashlib.sha256(files.read_bytes(self.source)).hexdigest()


def of(op: Op) -> tuple[Baseline, ...]:
    """The op's baselines. Raises LookupError where its family is registered more than once, or is no mapping."""
    points = tuple(point for point in entry_points(group=GROUP) if point.name == op.family)
    if len(points) > 1:
        raise LookupError(
            f"{GROUP}: {op.family!r} is registered {len(points)} times; expected one entry point a family"
        )
    return tuple(found for point in points for found in _load(point, op))


def _load(point: EntryPoint, op: Op) -> list[Baseline]:
    table: Any = point.load()
    if not isinstance(table, Mapping):
        raise LookupError(
            f"{GROUP}: {point.value} is a {type(table).__name__}; expected a mapping op -> name -> function"
        )
    source = sys.modules[point.module].__file__
    if source is None:
        raise LookupError(f"{GROUP}: module {point.module} has no file, so nothing can vouch for it")
    return [Baseline(name, function, Path(source)) for name, function in table.get(op.name, {}).items()]
