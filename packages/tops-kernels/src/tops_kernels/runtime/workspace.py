"""The one directory that tops writes to, shared by all stages: caches, artifacts, certificates."""

import os
import sys
from pathlib import Path

from tops_kernels.runtime.variables import WORKSPACE


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
