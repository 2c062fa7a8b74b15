"""The files of this package: strict JSON in, whole files out. All reading and writing goes through here."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

_MAX_BYTES = 64 << 20  # a record of a thousand rows is under a megabyte


class FileError(ValueError):
    """A file that is not what it should be; the message names it."""


def read_bytes(path: Path, max_bytes: int = _MAX_BYTES) -> bytes:
    """Raises FileError where it is missing, unreadable or longer than `max_bytes`."""
    try:
        if path.stat().st_size > max_bytes:
            raise FileError(f"{path}: {path.stat().st_size} bytes; expected at most {max_bytes}")
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error


def read_object(path: Path, max_bytes: int = _MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a file. NaN, infinities and keys given twice are refused. Raises FileError."""
    try:
        data = json.loads(read_bytes(path, max_bytes), parse_constant=_refuse, object_pairs_hook=_once)
    except FileError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not strict JSON: {error}") from error
    if not isinstance(data, dict):
        raise FileError(f"{path}: a {type(data).__name__}; expected a JSON object")
    return data


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key is given twice")
    return result


def write(path: Path, content: str | bytes) -> None:
    """Writes a file whole: a reader sees the old one or the new one. Raises FileError where it cannot be written."""
    data = content.encode() if isinstance(content, str) else content
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise FileError(f"{path}: cannot write: {error.strerror or error}") from error


def dumps(data: object) -> str:
    """Indented JSON, one text for one value. Raises ValueError for NaN and infinities."""
    return json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"


def canonical(data: object) -> bytes:
    """The text a content hash is taken of: sorted keys, no spaces, ASCII. Raises ValueError for NaN and infinities."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
