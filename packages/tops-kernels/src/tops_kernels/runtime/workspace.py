"""The one directory that tops writes to, shared by all stages: caches, artifacts, certificates."""

import os
import re
import sys
from pathlib import Path

from tops_kernels.runtime.variables import WORKSPACE

FOLDERS = ("xla", "artifacts", "tune", "dumps")  # what tops-kernels writes below it, each made by the first file in it
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # no separators, no leading dot, room for an ending


def workspace_dir() -> Path:
    """$TOPS_WORKSPACE, else `tops` in the user's cache directory. Asking does not create it."""
    chosen = WORKSPACE.value()
    if chosen is not None:
        return chosen
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tops"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "tops"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tops"


def folder(name: str) -> Path:
    """One of FOLDERS in the workspace. Asking does not create it. Raises ValueError for another name."""
    if name not in FOLDERS:
        raise ValueError(f"workspace: no folder {name!r}; expected one of {', '.join(FOLDERS)}")
    return workspace_dir() / name


def is_plain_name(name: object) -> bool:
    """Whether a name that came out of a file may name one: letters, digits, `_`, `.` and `-`, so nothing outside its folder."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def usage(name: str) -> tuple[int, int]:
    """Files in one of FOLDERS, those below included, and their bytes; links are not followed."""
    count = size = 0
    for top, _, files in os.walk(folder(name)):
        for file in files:
            try:
                size += (Path(top) / file).lstat().st_size
            except OSError:
                continue  # gone since it was listed
            count += 1
    return count, size
