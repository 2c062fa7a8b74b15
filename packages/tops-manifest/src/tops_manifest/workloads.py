"""Workload rows: the shapes of real models on which an op is tested and timed. Kernels must not import this module."""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tops_manifest import _params, contract, model
from tops_manifest import cost as _cost
from tops_manifest._reader import MISSING, Reader, read_toml
from tops_manifest.bind import ArraySpec, Binding, bind
from tops_manifest.errors import ContractTypeError, ContractValueError
from tops_manifest.model import Op, ParamValue, Pass, Shape

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_MAX_SIZE = 1 << 40
_ROW_KEYS = ("name", "dims", "pass", "present", "params", "alternatives", "doc")

DimSize = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One row at one choice of dtypes: everything a call needs but the values."""

    op: Op
    row: str
    dims: Mapping[str, DimSize]
    dtypes: Mapping[str, str]
    params: Mapping[str, ParamValue]
    present: tuple[str, ...]  # optional inputs that are given
    alternatives: Mapping[str, int]  # input -> which of its shapes
    passes: tuple[Pass, ...]
    scale: int = 1  # over 1: a scaled-down copy of the row, by about this factor in bytes

    @property
    def label(self) -> str:
        """gla-1b3-train-4k-bfloat16, and /8 behind it where scaled."""
        dtypes = "-".join(dict.fromkeys(self.dtypes.values()))
        return f"{self.row}-{dtypes}" + (f"/{self.scale}" if self.scale > 1 else "")

    def inputs(self) -> dict[str, ArraySpec]:
        """The present inputs by name, in the order of the signature."""
        dtypes = {spec.name: self.dtypes.get(spec.dtype, spec.dtype) for spec in self.op.inputs}
        return {
            name: ArraySpec(model.shape_sizes(shape, self.dims), dtypes[name])
            for name, shape in self.input_shapes().items()
        }

    def input_shapes(self) -> dict[str, Shape]:
        """The shape of each present input as the contract writes it: of several, the row's choice."""
        result = {}
        for spec in self.op.inputs:
            if not spec.optional or spec.name in self.present:
                shapes = spec.shapes_for(self.present)
                result[spec.name] = shapes[self.alternatives.get(spec.name, 0) if shapes == spec.shapes else 0]
        return result

    def binding(self) -> Binding:
        return bind(self.op, self.inputs(), self.params)

    def outputs(self) -> dict[str, ArraySpec]:
        return self.binding().outputs()

    def flops(self, which: Pass) -> dict[str, float]:
        return _cost.cost(self.op.name).flops(which, self.binding())

    def bytes(self, which: Pass) -> int:
        return _cost.cost(self.op.name).bytes(which, self.binding(), self.inputs())

    def memory(self, which: Pass = "fwd") -> int:
        """Bytes of everything that goes in and comes out, whatever the cost formula counts."""
        return _cost.io_bytes(which, self.binding(), self.inputs())

    def fit(self, max_bytes: int, max_flops: float = math.inf, which: Pass = "fwd") -> "Case":
        """This case if it is within the bounds, else the nearest one that is: dimensions that shard freely are
        halved first, the largest before others, then the rest down to 128, and where that is not enough down to 16. Raises ValueError where none is."""
        case = self
        while case.memory(which) > max_bytes or sum(case.flops(which).values()) > max_flops:
            smaller = case._halved()
            if smaller is None:
                raise ValueError(f"{self.label}: no scaled row within {max_bytes} bytes and {max_flops:g} operations")
            case = smaller
        return case

    def _halved(self) -> "Case | None":
        free = [name for name in self.dims if name in self.op.shard_free]
        rest = [name for name in self.dims if name not in free]
        for names, floor in ((free, 1), (rest, 128), (rest, 16)):
            for size, name in sorted(((max(_parts(self.dims[name]), default=0), name) for name in names), reverse=True):
                if size // 2 < floor or size < 2:
                    break
                smaller = self._with_half_of(name, size)
                if smaller._is_a_call():
                    return smaller
        return None

    def _with_half_of(self, name: str, size: int) -> "Case":
        old = self.dims[name]
        new: DimSize = size // 2
        if isinstance(old, tuple):
            at = old.index(size)
            new = (*old[:at], size // 2, *old[at + 1 :])
        return dataclasses.replace(self, dims={**self.dims, name: new}, scale=self.scale * 2)

    def _is_a_call(self) -> bool:
        """Whether the contract takes it: half of the query heads may be fewer than the key/value heads."""
        try:
            self.binding()
        except ContractValueError:
            return False
        return True


def _parts(size: DimSize) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size,)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One [[workloads]] entry."""

    op: Op
    name: str
    dims: Mapping[str, DimSize]
    dtypes: Mapping[str, tuple[str, ...]]
    params: Mapping[str, ParamValue]
    present: tuple[str, ...]
    alternatives: Mapping[str, int]
    passes: tuple[Pass, ...]
    doc: str

    def cases(self) -> Iterator[Case]:
        """One case a combination of dtypes."""
        names = list(self.dtypes)
        derived = [var for var in self.op.dtypes if var.source is not None]
        for combination in itertools.product(*self.dtypes.values()):
            dtypes = dict(zip(names, combination, strict=True))
            dtypes |= {var.name: var.derive(dtypes[var.source or ""]) for var in derived}
            yield Case(self.op, self.name, self.dims, dtypes, self.params, self.present, self.alternatives, self.passes)


@functools.cache
def rows(name: str) -> tuple[Row, ...]:
    """The packaged workload rows of one op. Raises KeyError for an unknown op, ManifestError for a bad file."""
    op = contract.op(name)
    path = contract.ops_folder() / f"{name}.toml"
    return from_table(read_toml(path, contract.file_name(path)), op, path)


def cases(name: str, which: Pass | None = None) -> tuple[Case, ...]:
    """Every case of one op; with `which`, those that run this pass."""
    return tuple(case for row in rows(name) for case in row.cases() if which is None or which in case.passes)


def from_table(table: Mapping[str, object], op: Op, path: Path) -> tuple[Row, ...]:
    """Reads [[workloads]]. Raises ManifestError with every fault of this part."""
    top = Reader(contract.file_name(path), table)
    result = read(top, op)
    if not top.faults:
        check_rows(top, result)
    top.raise_faults()
    return result


def read(top: Reader, op: Op) -> tuple[Row, ...]:
    """Reads [[workloads]] and notes every fault in `top`. Whether the rows keep the contract is `check_rows`' question."""
    entries = top.table.get("workloads", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        top.fault("workloads", entries, "tables [[workloads]]")
        return ()
    result = [
        _row(Reader(top.file, entry, f"workloads[{index}]", top.faults), op) for index, entry in enumerate(entries)
    ]
    names = [row.name for row in result]
    for name in sorted({name for name in names if names.count(name) > 1 and name}):
        top.fault("workloads", name, "a name of its own for each row")
    if not entries and op.status == "implemented":
        top.fault("workloads", MISSING, "at least one row for an implemented op")
    return tuple(result)


def check_rows(top: Reader, rows: tuple[Row, ...]) -> None:
    """Notes rows that break their own contract at a dtype they name, and those whose labels are not their own."""
    labels: set[str] = set()
    for index, row in enumerate(rows):
        at = Reader(top.file, {}, f"workloads[{index}]", top.faults)
        for case in row.cases():
            if case.label in labels:
                at.fault("name", case.label, "dtypes that tell the row's cases apart: split the row")
            labels.add(case.label)
            try:
                case.binding()
            except (ContractValueError, ContractTypeError) as error:
                at.fault("", case.label, f"a call within the contract: {error}")
                break


def _row(at: Reader, op: Op) -> Row:
    at.known((*_ROW_KEYS, *op.free_dtypes))
    name = at.text("name")
    if not _NAME.match(name) and isinstance(at.table.get("name"), str):
        at.fault("name", name, "letters, digits, dots, _ and -: it becomes part of file names")
    optional = [spec.name for spec in op.inputs if spec.optional]
    passes = at.texts("pass", model.PASSES if op.vjp else ("fwd",), required=True)
    dtypes = {
        name: at.texts(name, choices, required=True) if name in at.table else choices
        for name, choices in op.free_dtypes.items()
    }
    return Row(
        op=op,
        name=name,
        dims=_dims(at.sub("dims"), op),
        dtypes=dtypes,
        params=_row_params(at.sub("params", required=False), op),
        present=at.texts("present", optional),
        alternatives=_alternatives(at.sub("alternatives", required=False), op),
        passes=tuple(which for which in model.PASSES if which in passes),
        doc=at.text("doc", ""),
    )


def _row_params(at: Reader, op: Op) -> dict[str, ParamValue]:
    at.known(spec.name for spec in op.params)
    result: dict[str, ParamValue] = {}
    for spec in op.params:
        if spec.name in at.table:
            value = _params.typed(at.table[spec.name], spec.type)
            if value is None:
                at.fault(spec.name, at.table[spec.name], f"a value of type {spec.type}")
            result[spec.name] = value
    return result


def _alternatives(at: Reader, op: Op) -> dict[str, int]:
    """Which of an input's shapes; the first one goes without saying."""
    several = {spec.name: len(spec.shapes) for spec in op.inputs if len(spec.shapes) > 1}
    at.known(several)
    picks = {name: at.integer(name, 0, count - 1) for name, count in several.items() if name in at.table}
    return {name: index for name, index in picks.items() if index}


def _dims(at: Reader, op: Op) -> dict[str, DimSize]:
    known = op.variadic
    if at.table:
        at.known(known)
    result: dict[str, DimSize] = {}
    for name, variadic in known.items():
        value = at.table.get(name, MISSING)
        sizes = value if variadic else [value]
        if not isinstance(sizes, list) or not all(type(size) is int and 1 <= size <= _MAX_SIZE for size in sizes):
            at.fault(name, value, "a list of sizes, each from 1" if variadic else "a size from 1")
            sizes = [] if variadic else [1]
        result[name] = tuple(sizes) if variadic else sizes[0]
    return result
