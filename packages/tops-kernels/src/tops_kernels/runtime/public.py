"""Where the public names live: an op's function by the manifest (op -> family -> module), as it is or in its call log."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import tops_manifest
from tops_kernels.runtime.variables import LOG, TRACE


def original(op: str) -> Callable[..., Any]:
    """An op's function as it is written. Raises KeyError for an op that the manifest does not have."""
    found: Callable[..., Any] = _named(_place(op), op)
    return found


def configs(op: str) -> Mapping[str, Any]:
    """Implementation -> the type of its block configurations, a dataclass; empty for an op that has none."""
    found: Mapping[str, Any] = _named(_place(op), "CONFIGS", {})
    return found


def function(op: str) -> Callable[..., Any]:
    """An op's public function: `original` itself, unless TOPS_LOG or TOPS_TRACE asks for more. Raises VariableError."""
    plain = original(op)
    if LOG.value() == 0 and TRACE.value() is None:
        return plain
    from tops_kernels.runtime.log import Settings, logged

    return logged(op, plain, Settings.read())


def member(where: str, name: str) -> Any:
    """A name of the module tops_kernels.runtime.<where>."""
    return _named(f"runtime.{where}", name)


def _place(op: str) -> str:
    return f"ops.{tops_manifest.op(op).family}.op"


def _named(where: str, name: str, *default: Any) -> Any:
    """A name of a module of this package."""
    return getattr(importlib.import_module(f"tops_kernels.{where}"), name, *default)
