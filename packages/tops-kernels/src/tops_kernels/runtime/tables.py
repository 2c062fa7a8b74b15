"""Tables of tuned configurations: what a row is, and how a file of them is read and written. docs/tuning.md has the format.

Nothing in a file is trusted: a value of the wrong kind, an unknown field, a number out of bounds is a TableError that names it. What
passes is still only a suggestion: a configuration is held against the call before it is used (`runtime.tuned`).
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

SCHEMA = 1
ORIGINS = ("schedule estimate", "hardware", "interpreter")
MAX_BYTES = 16 << 20
_MAX_ROWS = 50_000
_MAX_DIM = 1 << 48
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}|")
_VERSION = re.compile(r"[A-Za-z0-9.+_!-]{1,64}")

Scalar: TypeAlias = "int | float | bool | str | None"
Pairs: TypeAlias = "tuple[tuple[str, Scalar], ...]"
Key: TypeAlias = "tuple[str, str, str, str, str, Pairs]"


class TableError(ValueError):
    """A file that is no table of tuned configurations; the message names it, the place, what is there and what was expected."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One configuration, for the calls of one bucket."""

    op: str
    implementation: str
    which: str  # "fwd" or "vjp"
    chip: str  # a target as `support` calls it, or "interpreter"
    dtype: str  # of the op's first input
    dims: Pairs  # dimension -> size rounded up to a power of two; leading ones are one number
    config: Pairs  # fields of the implementation's configuration
    origin: str
    seconds: float  # of this configuration
    heuristic_seconds: float  # of the heuristic's choice, in the same run
    toolchain: Pairs  # package -> version
    kernel: str = ""  # digest of the kernel's sources; "" in the package, whose rows go with its sources
    call: str = ""  # the call that was measured, for people
    vmem_bytes: int = 0  # of a TPU kernel, where it is known

    @property
    def key(self) -> Key:
        """Two rows of one key are for the same calls."""
        return (self.op, self.implementation, self.which, self.chip, self.dtype, self.dims)


def bucket(size: int) -> int:
    """The power of two at or above; 0 stays 0."""
    return 1 << (size - 1).bit_length() if size > 0 else 0


def bucketed(dims: Mapping[str, int]) -> Pairs:
    """Sorted dimensions, each as its bucket."""
    return tuple((name, bucket(size)) for name, size in sorted(dims.items()))


class Table:
    """Rows by key. Equal and hashed by content, at the cost of a string: it is a static argument of compiled calls."""

    __slots__ = ("_rows", "alone", "digest")

    def __init__(self, rows: Iterable[Row], *, alone: bool = False) -> None:
        """alone: nothing else is looked up where this has no row."""
        self._rows = {row.key: row for row in rows}
        self.alone = alone
        content = repr((alone, sorted(self._rows.items())))
        self.digest = hashlib.sha256(content.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._rows.values())

    def find(self, key: Key) -> Row | None:
        return self._rows.get(key)


def parse(content: bytes, name: str) -> tuple[Row, ...]:
    """The rows of a file. name: for messages. Raises TableError."""
    try:
        data = json.loads(content, object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise TableError(f"{name}: not a table of tuned configurations: {_short(error)}") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise TableError(f"{name}: not a table of tuned configurations: no schema")
    if data["schema"] != SCHEMA or isinstance(data["schema"], bool):
        raise TableError(f"{name}: schema is {_short(data['schema'])}; expected {SCHEMA}. Tune again with this version")
    rows = data.get("rows")
    if data.keys() != {"schema", "rows"} or not isinstance(rows, list) or len(rows) > _MAX_ROWS:
        raise TableError(f"{name}: expected schema and rows alone, with at most {_MAX_ROWS} rows")
    return tuple(_row(row, f"{name}: rows[{at}]") for at, row in enumerate(rows))


def read(path: Path) -> tuple[Row, ...]:
    """The rows of a file that a user named. Raises TableError."""
    try:
        if not path.is_file():  # a pipe would be waited for, a device has no end
            raise TableError(
                f"{path}: {'not a file' if path.exists() else 'no such file'}; expected one that tune wrote"
            )
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, TableError):
            raise
        raise TableError(f"{str(path)!r}: cannot be read: {_short(error)}") from None
    if len(content) > MAX_BYTES:
        raise TableError(f"{path}: over {MAX_BYTES >> 20} MiB; no table of tuned configurations is as large")
    return parse(content, str(path))


def dumps(rows: Iterable[Row]) -> bytes:
    """The file of some rows: sorted, a row a line, the same bytes for the same rows."""
    lines = [json.dumps(_plain(row), sort_keys=True) for row in sorted(rows, key=lambda row: repr(row.key))]
    body = ",\n  ".join(lines)
    return f'{{\n "schema": {SCHEMA},\n "rows": [{f"{chr(10)}  {body}{chr(10)} " if lines else ""}]\n}}\n'.encode()


def _plain(row: Row) -> dict[str, Any]:
    plain = dataclasses.asdict(row)
    for name in ("dims", "config", "toolchain"):
        plain[name] = dict(plain[name])
    return {("pass" if name == "which" else name): value for name, value in plain.items()}


_FIELDS = frozenset("pass" if field.name == "which" else field.name for field in dataclasses.fields(Row))


def _row(data: object, at: str) -> Row:
    if not isinstance(data, dict) or data.keys() != _FIELDS:
        got = ", ".join(sorted(map(str, data))) if isinstance(data, dict) else type(data).__name__
        raise TableError(f"{at}: has {got[:200]}; expected {', '.join(sorted(_FIELDS))}")
    text = functools.partial(_text, data, at)
    which, origin = text("pass", _NAME), data["origin"]
    if which not in ("fwd", "vjp"):
        raise TableError(f"{at}: pass is {which!r}; expected fwd or vjp")
    if origin not in ORIGINS:
        raise TableError(f"{at}: origin is {_short(origin)}; expected one of {', '.join(ORIGINS)}")
    dims = _pairs(data["dims"], f"{at}: dims", (int,))
    for name, size in dims:
        if not isinstance(size, int) or not 0 <= size <= _MAX_DIM or size != bucket(size):
            raise TableError(f"{at}: dims.{name} is {_short(size)}; expected a power of two")
    call = data["call"]
    if not isinstance(call, str) or len(call) > 2000:
        raise TableError(f"{at}: call is {_short(call)}; expected a text of at most 2000 characters")
    vmem = data["vmem_bytes"]
    if type(vmem) is not int or not 0 <= vmem <= _MAX_DIM:
        raise TableError(f"{at}: vmem_bytes is {_short(vmem)}; expected a number of bytes")
    toolchain = _pairs(data["toolchain"], f"{at}: toolchain", (str,))
    if not all(_VERSION.fullmatch(str(version)) for _, version in toolchain):
        raise TableError(f"{at}: toolchain holds something that is no version")
    return Row(
        op=text("op", _NAME),
        implementation=text("implementation", _NAME),
        which=which,
        chip=text("chip", _NAME),
        dtype=text("dtype", _NAME),
        dims=dims,
        config=_pairs(data["config"], f"{at}: config", (int, bool, float, str)),
        origin=origin,
        seconds=_seconds(data, at, "seconds"),
        heuristic_seconds=_seconds(data, at, "heuristic_seconds"),
        toolchain=toolchain,
        kernel=text("kernel", _DIGEST),
        call=call,
        vmem_bytes=vmem,
    )


def _text(data: Mapping[str, object], at: str, name: str, pattern: re.Pattern[str]) -> str:
    value = data[name]
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise TableError(f"{at}: {name} is {_short(value)}; expected {pattern.pattern}")
    return value


def _seconds(data: Mapping[str, object], at: str, name: str) -> float:
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise TableError(f"{at}: {name} is {_short(value)}; expected a time")
    return float(value)


def _pairs(data: object, at: str, kinds: tuple[type, ...]) -> Pairs:
    if not isinstance(data, dict) or len(data) > 64:
        raise TableError(f"{at} is {_short(data)}; expected a mapping")
    for name, value in data.items():
        package = at.endswith("toolchain")  # those names hold dashes
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", name) or (not package and not _NAME.fullmatch(name)):
            raise TableError(f"{at}: {_short(name)} is no name")
        fits = type(value) in kinds and (not isinstance(value, str) or len(value) <= 64)
        if not fits or (isinstance(value, int | float) and not abs(value) <= _MAX_DIM):
            raise TableError(f"{at}.{name} is {_short(value)}; expected {' or '.join(kind.__name__ for kind in kinds)}")
    return tuple(sorted(data.items()))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise TableError("a field stands twice")
    return result


def _constant(text: str) -> Any:
    raise TableError(f"{text} is no number")


def _short(value: object) -> str:
    text = str(value) if isinstance(value, BaseException) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
