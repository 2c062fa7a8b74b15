"""What a bug report needs: versions, variables, devices, caches. Each is asked for on its own: what fails is told and the rest goes on.

The standard library alone: a broken installation can still be described.
"""

import functools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tops_kernels.runtime import memory
from tops_kernels.runtime.toolchain import version
from tops_kernels.runtime.variables import VARIABLES, Variable, VariableError
from tops_kernels.runtime.workspace import FOLDERS, usage, workspace_dir

Row = dict[str, object]  # name, value, source
_PACKAGES = (
    "tops-kernels",
    "tops-manifest",
    "jax",
    "jaxlib",
    "libtpu",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "numpy",
    "flatbuffers",
)
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_X64")
_TIMEOUT = 60.0  # seconds: a TPU that another process holds may never answer
_DEVICES = """
import json, jax
print(json.dumps([f"{one.platform} {one.device_kind} {one.id}" for one in jax.devices()]))
"""


def report(*, devices: bool = True) -> list[Row]:
    """Rows of name, value and where it comes from. Writes nothing and never raises.

    Args:
      devices: ask jax for its devices, in a process of its own, as that may crash, hang or take the TPU.
    """
    facts: list[tuple[str, Callable[[], object], str]] = [
        ("python", lambda: sys.version.split()[0], sys.executable),
        ("platform", platform.platform, ""),
        ("cores", os.cpu_count, ""),
        ("memory available", lambda: _bytes(memory.available()), ""),
        *((name, functools.partial(_version, name), "installed packages") for name in _PACKAGES),
        *((name, functools.partial(os.environ.get, name), "environment") for name in _FLAGS if name in os.environ),
        ("workspace", workspace_dir, "TOPS_WORKSPACE" if os.environ.get("TOPS_WORKSPACE") else "default"),
        *((f"workspace/{name}", functools.partial(_usage, name), "") for name in FOLDERS),
    ]
    rows = [_row(*fact) for fact in facts]
    if devices:
        rows.append(_row("devices", _devices, "jax, in a process of its own"))
    return rows + [_row(one.name, functools.partial(_value, one), one.source()) for one in VARIABLES]


def _row(name: str, probe: Callable[[], object], source: str) -> Row:
    try:
        value = str(probe())
    except VariableError as error:
        value = f"error: {error}"
    except Exception as error:  # whatever is broken is what the report is about
        value = f"error: {type(error).__name__}: {error}"
    return {"name": name, "value": value, "source": source}


def _version(name: str) -> str:
    found = version(name)
    return "not installed" if found == "absent" else found


def _value(variable: Variable[Any]) -> str:
    value = variable.value()
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)


def _usage(name: str) -> str:
    count, size = usage(name)
    return f"{count} files, {_bytes(size)}"


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / (1 << 20):.1f} MiB"


def _devices() -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _DEVICES], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"error: no answer within {_TIMEOUT:.0f} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"error: status {done.returncode}: {last}"
    return ", ".join(json.loads(done.stdout.strip().splitlines()[-1]))
