"""Typed reading of one TOML file: every fault is noted with file, key, value and what was expected, and reading goes on."""

import json
import keyword
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from tops_manifest.errors import Fault, ManifestError
from tops_manifest.expr import Expr, ExpressionError, parse

_T = TypeVar("_T")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_BARE_KEY = re.compile(r"[A-Za-z0-9_.\[\]-]{1,80}\Z")
_MAX_BYTES = 1 << 20  # a manifest file is a page or two; a gigabyte is a mistake
_MAX_INTEGER = 1 << 62  # TOML promises 64 bits; Python would take any


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()  # the value of a key that is not there


def read_toml(path: Path, file: str) -> dict[str, object]:
    """The file's content. Raises ManifestError for a file that cannot be read or is no TOML."""
    try:
        if not path.is_file():  # before it is opened: a pipe would wait for ever
            raise ManifestError((Fault(file, "(file)", _kind(path), "a regular file"),))
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ManifestError((Fault(file, "(file)", f"{size} bytes", f"at most {_MAX_BYTES}"),))
        data = path.read_bytes()
    except OSError as error:
        raise ManifestError((Fault(file, "(file)", error.strerror or str(error), "a readable file"),)) from error
    return parse_toml(data, file)


def parse_toml(data: bytes, file: str) -> dict[str, object]:
    """The content of a file's bytes. Raises ManifestError where they are no TOML."""
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise ManifestError((Fault(file, "(file)", f"byte {error.start} that is not UTF-8", "UTF-8 text"),)) from error
    except (ValueError, RecursionError) as error:  # ValueError: bad TOML, and an integer of too many digits
        raise ManifestError((Fault(file, "(file)", str(error), "valid TOML"),)) from error


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a directory"
    if path.is_symlink() and not path.exists():
        return "a link that leads nowhere"
    return "something else" if path.exists() else "nothing there"


def is_name(text: str) -> bool:
    """Whether it can be the name of a Python argument."""
    return _NAME.match(text) is not None and not keyword.iskeyword(text)


class Reader:
    """Reads one table of a file. Sub-readers share the list of faults."""

    def __init__(self, file: str, table: Mapping[str, object], at: str = "", faults: list[Fault] | None = None) -> None:
        self.file, self.table, self.at = file, table, at
        self.faults: list[Fault] = [] if faults is None else faults

    def key(self, name: str) -> str:
        name = name if _BARE_KEY.match(name) else json.dumps(name[:80])
        return f"{self.at}.{name}" if self.at else name

    def fault(self, name: str, value: object, expected: str) -> None:
        """Notes a fault of one key; of the whole table where `name` is empty."""
        self.faults.append(Fault(self.file, self.key(name) if name else self.at, shown(value), expected))

    def known(self, names: Iterable[str]) -> None:
        """Notes every key that is not among `names`."""
        names = list(names)
        for name in self.table:
            if name not in names:
                self.fault(name, self.table[name], f"no such key (known: {', '.join(names) or 'none here'})")

    def text(self, name: str, default: str | None = None) -> str:
        return self._typed(name, str, "a string", default)

    def integer(self, name: str, low: int, high: int) -> int:
        """An integer from `low` to `high`; `low` where it is none."""
        value = self.table.get(name, MISSING)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        self.fault(name, value, f"an integer from {low} to {high}")
        return low

    def flag(self, name: str, default: bool | None = None) -> bool:
        return self._typed(name, bool, "true or false", default)

    def _typed(self, name: str, kind: type[_T], what: str, default: _T | None) -> _T:
        value = self.table.get(name, default)
        if isinstance(value, kind):
            return value
        self.fault(name, self.table.get(name, MISSING), what)
        return kind()

    def choice(self, name: str, choices: Iterable[str], default: str | None = None) -> str:
        allowed = list(choices)
        value = self.table.get(name, MISSING if default is None else default)
        if isinstance(value, str) and value in allowed:
            return value
        self.fault(name, value, " or ".join(allowed) or "nothing: there is no choice here")
        return ""

    def texts(self, name: str, choices: Iterable[str] | None = None, *, required: bool = False) -> tuple[str, ...]:
        """A list of distinct strings, each among `choices` where given; `required`: there, and not empty."""
        value = self.table.get(name, MISSING if required else [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fault(name, value, "a list of strings")
            return ()
        if required and not value:
            self.fault(name, value, "a list that is not empty")
        if len(set(value)) != len(value):
            self.fault(name, value, "no entry twice")
        allowed = None if choices is None else list(choices)
        for item in value:
            if allowed is not None and item not in allowed:
                self.fault(name, item, " or ".join(allowed) or "nothing here")
        return tuple(item for item in value if allowed is None or item in allowed)

    def sub(self, name: str, *, required: bool = True) -> "Reader":
        """The table under `name`; an empty one where it is missing or not a table."""
        value = self.table.get(name, MISSING)
        if isinstance(value, dict):
            return Reader(self.file, value, self.key(name), self.faults)
        if required or value is not MISSING:
            self.fault(name, value, "a table")
        return Reader(self.file, {}, self.key(name), self.faults)

    def named_subs(self) -> "Iterable[tuple[str, Reader]]":
        """The tables of this table, each under a name that can be a Python argument."""
        for name, value in self.table.items():
            if not is_name(name):
                self.fault(name, value, "a name of letters, digits and _ that is no Python keyword")
            elif not isinstance(value, dict):
                self.fault(name, value, "a table")
            else:
                yield name, Reader(self.file, value, self.key(name), self.faults)

    def expression(self, name: str, value: object, names: Iterable[str] | None) -> Expr | None:
        """Parses `value`; its names must be among `names` (None: any)."""
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_INTEGER:
            value = str(value)
        if not isinstance(value, str):
            self.fault(name, value, "an expression as a string")
            return None
        try:
            expr = parse(value)
        except ExpressionError as error:
            self.fault(name, value, f"an expression: {error}")
            return None
        known = None if names is None else set(names)
        if known is not None and expr.names - known:
            unknown = " ".join(sorted(expr.names - known))
            self.fault(name, value, f"known names, not {unknown} (known: {' '.join(sorted(known)) or 'none'})")
            return None
        return expr

    def raise_faults(self) -> None:
        if self.faults:
            raise ManifestError(tuple(self.faults))


def shown(value: object) -> str:
    """A value as faults show it: one line, of bounded length, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of over 4300 digits, or lists in lists without end
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= 120 else text[:117] + "..."
