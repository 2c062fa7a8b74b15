"""Typed reading of one TOML file: every fault is noted with file, key, value and what was expected, and reading goes on."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from tops_manifest.errors import Fault, ManifestError
from tops_manifest.expr import Expr, ExpressionError, parse

_T = TypeVar("_T")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_MAX_BYTES = 1 << 20  # a manifest file is a page or two; a gigabyte is a mistake


def read_toml(path: Path, file: str) -> dict[str, object]:
    """The file's content. Raises ManifestError for a file that cannot be read or is no TOML."""
    try:
        data = path.read_bytes()
        if len(data) > _MAX_BYTES:
            raise ManifestError((Fault(file, "(file)", f"{len(data)} bytes", f"at most {_MAX_BYTES}"),))
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ManifestError((Fault(file, "(file)", error.strerror or str(error), "a readable file"),)) from error
    except UnicodeDecodeError as error:
        raise ManifestError((Fault(file, "(file)", f"byte {error.start} that is not UTF-8", "UTF-8 text"),)) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ManifestError((Fault(file, "(file)", str(error), "valid TOML"),)) from error


class Reader:
    """Reads one table of a file. Sub-readers share the list of faults."""

    def __init__(self, file: str, table: Mapping[str, object], at: str = "", faults: list[Fault] | None = None) -> None:
        self.file, self.table, self.at = file, table, at
        self.faults: list[Fault] = [] if faults is None else faults

    def key(self, name: str) -> str:
        return f"{self.at}.{name}" if self.at else name

    def fault(self, name: str, value: object, expected: str) -> None:
        self.faults.append(Fault(self.file, self.key(name) if name else self.at, _shown(value), expected))

    def known(self, names: Iterable[str]) -> None:
        """Notes every key that is not among `names`."""
        names = list(names)
        for name in self.table:
            if name not in names:
                self.fault(name, self.table[name], f"no such key (known: {', '.join(names)})")

    def text(self, name: str, default: str | None = None) -> str:
        return self._typed(name, str, "a string", default)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._typed(name, int, "an integer", default)
        if isinstance(value, bool):
            self.fault(name, value, "an integer")
            return 0
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        return self._typed(name, bool, "true or false", default)

    def _typed(self, name: str, kind: type[_T], what: str, default: _T | None) -> _T:
        value = self.table.get(name, default)
        if isinstance(value, kind):
            return value
        self.fault(name, "nothing" if name not in self.table else value, what)
        return kind()

    def choice(self, name: str, choices: Iterable[str], default: str | None = None) -> str:
        value, allowed = self.text(name, default), list(choices)
        if (
            value not in allowed
            and (name in self.table or default is None)
            and isinstance(self.table.get(name, ""), str)
        ):
            self.fault(name, self.table.get(name, "nothing"), " or ".join(allowed))
        return value

    def texts(self, name: str, choices: Iterable[str] | None = None, *, required: bool = False) -> tuple[str, ...]:
        """A list of distinct strings, each among `choices` where given."""
        if name not in self.table:
            if required:
                self.fault(name, "nothing", "a list of strings")
            return ()
        value = self.table[name]
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
        value = self.table.get(name)
        if isinstance(value, dict):
            return Reader(self.file, value, self.key(name), self.faults)
        if required or value is not None:
            self.fault(name, "nothing" if value is None else value, "a table")
        return Reader(self.file, {}, self.key(name), self.faults)

    def named_subs(self) -> "Iterable[tuple[str, Reader]]":
        """The tables of this table, each under a name that can be a Python argument."""
        for name in self.table:
            if not _NAME.match(name):
                self.fault(name, name, "a name of letters, digits and _")
                continue
            yield name, self.sub(name)

    def expression(self, name: str, value: object, names: Iterable[str] | None) -> Expr | None:
        """Parses `value`; its names must be among `names` (None: any)."""
        if isinstance(value, int | float) and not isinstance(value, bool):
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
            self.fault(name, value, f"known names, not {unknown} (known: {' '.join(sorted(known))})")
            return None
        return expr

    def raise_faults(self) -> None:
        if self.faults:
            raise ManifestError(tuple(self.faults))


def _shown(value: object) -> str:
    text = value if value == "nothing" else repr(value)
    text = str(text)
    return text if len(text) <= 120 else text[:117] + "..."
