"""Every file that aot reads or writes goes through here: dumps it made itself, its baselines, what a user named."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tops_bench.aot.bundles import DumpError

_NAME = re.compile(r"^(\d+)-(.+?)-(\d+)-(.+)\.txt$")


def read(path: Path) -> str:
    """The text of a file. Raises DumpError naming it where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DumpError(f"{path.name}: {error.strerror or error}") from None


def write(path: Path, text: str) -> None:
    """Writes beside and renames, so that a full disk or a kill leaves the old file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def read_json(path: Path) -> object:
    """Raises DumpError where it is not JSON."""
    try:
        return json.loads(read(path))
    except ValueError as error:
        raise DumpError(f"{path.name}: not JSON ({error})") from None


def names(folder: Path) -> list[str]:
    """The files of a folder, in name order; none where there is no folder."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def remove(folder: Path, kept: Iterable[str] = ()) -> None:
    """Removes a dump folder's files."""
    keep = set(kept)
    for name in names(folder):
        if name not in keep and (folder / name).is_file():
            (folder / name).unlink()


def split_name(name: str) -> tuple[str, str] | None:
    """ "1796128206894066344-matmul.1-72-final_bundles.txt" -> ("matmul.1", "final_bundles"); None for other files."""
    match = _NAME.match(name)
    return (match.group(2), match.group(4)) if match else None
