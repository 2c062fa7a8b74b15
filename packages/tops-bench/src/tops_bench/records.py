"""Records: what a run measured, on what, how. JSON with a schema; written and read strictly."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from tops_bench import files

SCHEMA = 1
Status = Literal["measured", "skipped", "failed"]


@dataclasses.dataclass(frozen=True, slots=True)
class Speedup:
    """Speed over a verified baseline, from the ratios within rounds; the interval is of the median."""

    median: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One contender on one row and pass. Times in seconds an iteration; None where `status` is not "measured"."""

    op: str
    which: str  # fwd or vjp
    row: str
    label: str  # row, dtypes, and /scale where scaled down
    scale: int
    dtypes: Mapping[str, str]
    params: Mapping[str, Any]
    inputs: Mapping[str, str]
    contender: str  # a kernel_map key, or "baseline:<name>"; "" where the row itself was skipped
    status: Status
    reason: str = ""  # why skipped or failed; why scaled down
    contract: str = ""  # digest of the op's contract, as the manifest has it
    source: str = ""  # digest of the implementation's sources
    method: str = ""
    note: str = ""
    median: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None  # of low and high
    iqr: float | None = None
    samples: tuple[float, ...] = ()
    iterations: int = 0
    compile_seconds: float | None = None
    flops: Mapping[str, float] = dataclasses.field(default_factory=dict)  # by unit, from the manifest
    nbytes: int = 0
    flops_rate: float | None = None  # operations of all units, a second
    bytes_rate: float | None = None
    bound: str = ""  # compute or memory
    efficiency: float | None = None  # least time by the ceilings over the measured one
    certificate: str = ""  # content hash of a valid one
    certified_scale: int = 0  # how far the certified copy of the row was scaled down
    unverified: str = ""  # why there is none
    speedups: Mapping[str, Speedup] = dataclasses.field(default_factory=dict)  # by baseline

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two rows of two records the same measurement."""
        return (self.op, self.which, self.label, self.contender)

    @property
    def is_baseline(self) -> bool:
        return self.contender.startswith("baseline:")


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One run."""

    machine: Mapping[str, Any]  # machine.Machine as data
    machine_key: str
    versions: Mapping[str, str]
    started: str  # ISO, UTC
    quick: bool
    ceilings: Mapping[str, Any]  # roofline.Ceilings as data
    rows: tuple[Row, ...]

    def as_data(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **dataclasses.asdict(self), "rows": [dataclasses.asdict(row) for row in self.rows]}


def write(path: Path, record: Record) -> None:
    """Raises files.FileError, and ValueError where a number is NaN or infinite."""
    files.write(path, files.dumps(record.as_data()))


def read(path: Path) -> Record:
    """Raises files.FileError naming file, key and what was expected."""
    return from_data(files.read_object(path), str(path))


def from_data(data: Mapping[str, Any], name: str) -> Record:
    """A record from its JSON object; `name` is what messages call it. Raises files.FileError."""
    if data.get("schema") != SCHEMA:
        raise files.FileError(f"{name}: schema {data.get('schema')!r}; expected {SCHEMA}, a record of `tops-bench run`")
    _fields(Record, data, name, extra=("schema",))
    rows = data["rows"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise files.FileError(f"{name}: rows: expected a list of objects")
    parsed = tuple(_row(row, f"{name}: rows[{index}]") for index, row in enumerate(rows))
    keys = [row.key for row in parsed]
    double = next((key for key in keys if keys.count(key) > 1), None)
    if double:
        raise files.FileError(f"{name}: rows: {' '.join(double)} stands there twice")
    return Record(**{**{key: value for key, value in data.items() if key != "schema"}, "rows": parsed})


def _row(data: dict[str, Any], where: str) -> Row:
    _fields(Row, data, where)
    if data["status"] not in get_args(Status):
        raise files.FileError(f"{where}: status {data['status']!r}; expected one of {', '.join(get_args(Status))}")
    samples = data["samples"]
    if not isinstance(samples, list) or not all(_is_time(value) for value in samples):
        raise files.FileError(f"{where}: samples: expected a list of positive numbers of seconds")
    if data["status"] == "measured" and not (samples and _is_time(data["median"])):
        raise files.FileError(f"{where}: a measured row without samples and median")
    speedups = {}
    for baseline, value in data["speedups"].items():
        _fields(Speedup, value, f"{where}: speedups.{baseline}")
        speedups[baseline] = Speedup(**value)
    return Row(**{**data, "samples": tuple(samples), "speedups": speedups})


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value) and value > 0


KINDS: Mapping[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    bool: (bool,),
    float | None: (float, int, type(None)),
    float: (float, int),
    Status: (str,),
    tuple[float, ...]: (list,),
    tuple[Row, ...]: (list,),
}


def _fields(kind: type, data: object, where: str, extra: tuple[str, ...] = ()) -> None:
    """Every field there, of its type, and no other."""
    if not isinstance(data, dict):
        raise files.FileError(f"{where}: a {type(data).__name__}; expected an object")
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    missing, unknown = sorted(fields.keys() - data.keys()), sorted(data.keys() - fields.keys() - set(extra))
    if missing or unknown:
        raise files.FileError(f"{where}: missing {missing}, unknown {unknown}; expected the fields of schema {SCHEMA}")
    for name, annotation in fields.items():
        allowed = KINDS.get(annotation, (dict,))  # what is left are the mappings
        if type(data[name]) not in allowed:
            expected = " or ".join(one.__name__ for one in allowed)
            raise files.FileError(f"{where}: {name} is a {type(data[name]).__name__}; expected {expected}")
