"""Calls kept as files: inputs before the call runs, outputs after it, in TOPS_WORKSPACE/dumps/<one folder a call>/.

    call.json               what was called, how, on what, with which versions; the sha256 of the files beside it, and of itself
    inputs.safetensors      there before the call runs
    outputs.safetensors     there once call.json says "completed"

`read` believes none of it before it is checked. docs/logging.md has the format.
"""

import dataclasses
import datetime
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tops_manifest
from tops_kernels.runtime import facts, public, tensors
from tops_kernels.runtime.overrides import current
from tops_kernels.runtime.storing import write_whole
from tops_kernels.runtime.variables import DUMP_BYTES, DUMP_COUNT, DUMP_EXCLUDE, DUMP_INCLUDE, VARIABLES, compiler_flags
from tops_kernels.runtime.workspace import workspace_dir

SCHEMA = 1
CALL, INPUTS, OUTPUTS = "call.json", "inputs.safetensors", "outputs.safetensors"
PACKAGES = ("jax", "jaxlib", "libtpu", "numpy", "tops-kernels", "tops-manifest")
_NOT_KNOBS = (
    "TOPS_WORKSPACE",
    "TOPS_LOG_FILE",
    "TOPS_TRACE",
    "TOPS_MIRROR",
)  # places: they change no result, and name things


class _Budget:
    """How much this process has dumped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = self._bytes = 0

    def take(self, size: int) -> str:
        """Takes a call of so many bytes. Returns why not, or "" where it was taken."""
        with self._lock:
            if self._calls >= DUMP_COUNT.value():
                return f"{self._calls} calls are dumped: TOPS_DUMP_COUNT"
            if self._bytes + size > DUMP_BYTES.value():
                return f"{size} bytes more than TOPS_DUMP_BYTES allows after {self._bytes}"
            self._calls, self._bytes = self._calls + 1, self._bytes + size
            return ""


_budget = _Budget()


@dataclasses.dataclass(slots=True)
class Dump:
    """A dump that is being made."""

    folder: Path
    record: dict[str, facts.Json]

    def complete(self, outputs: Mapping[str, Any]) -> None:
        """Adds what came out."""
        arrays = {name: np.asarray(value) for name, value in outputs.items()}
        self.record["outputs"] = _store(self.folder / OUTPUTS, arrays)
        self._finish("completed")

    def fail(self, error: str) -> None:
        """The call raised. error: the name of the exception's type."""
        self.record["error"] = error
        self._finish("failed")

    def _finish(self, state: str) -> None:
        self.record["state"] = state
        write_record(self.folder, self.record)


def start(op: str, arrays: Mapping[str, Any], params: Mapping[str, Any], backend: Any, interpret: Any) -> Dump | str:
    """Writes a call's inputs, before it runs. Returns why not, where it is not dumped.

    Raises: VariableError for a TOPS_DUMP_ variable that holds what it may not; OSError where the workspace cannot be written.
    """
    if not _wanted(op):
        return "TOPS_DUMP_INCLUDE and TOPS_DUMP_EXCLUDE leave this op out"
    contract = tops_manifest.op(op)
    if backend is not None and backend not in contract.kernel_map:
        return "the call breaks the op's contract"
    given = {name: value for name, value in arrays.items() if value is not None}
    try:
        host = {name: np.asarray(value, facts.spec(value).dtype) for name, value in given.items()}
        binding = tops_manifest.bind(contract, {name: facts.spec(one) for name, one in host.items()}, dict(params))
        data = tensors.pack(host)
    except (tops_manifest.ContractTypeError, tops_manifest.ContractValueError, AttributeError):
        return "the call breaks the op's contract"
    except (RuntimeError, tensors.TensorsError) as error:  # an array that is not all here; a dtype without a name
        return str(error)
    outputs = sum(_size(spec) for spec in binding.outputs().values())
    refused = _budget.take(len(data) + outputs)
    if refused:
        return refused
    values = {name: facts.param(value) for name, value in params.items()}
    record = describe(op, values, backend, facts.interpret(interpret), config(op))
    record["devices"] = facts.device(arrays)
    return write(workspace_dir() / "dumps" / _name(op), record, host)


def write(folder: Path, record: dict[str, facts.Json], inputs: Mapping[str, np.ndarray[Any, Any]]) -> Dump:
    """A new dump without outputs. Raises OSError where it cannot be written."""
    record = record | {"inputs": _store(folder / INPUTS, inputs), "outputs": None, "state": "started"}
    write_record(folder, record)
    return Dump(folder, record)


def describe(
    op: str, params: Mapping[str, facts.Json], backend: str | None, interpret: bool | str, configs: facts.Json
) -> dict[str, facts.Json]:
    """What a record says of a call and of where it runs, without its arrays."""
    return {
        "schema": SCHEMA,
        "op": op,
        "contract": tops_manifest.op(op).version,
        "params": dict(params),
        "backend": backend,
        "interpret": interpret,
        "config": configs,
        "error": "",
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "knobs": knobs(),
        "devices": None,
    }


def config(op: str) -> facts.Json:
    """The block configurations that a call runs with, where `use_config` asks for some: pass, implementation, fields."""
    kinds = public.configs(op)
    return [
        {"pass": which, "implementation": key, "fields": dataclasses.asdict(value)}
        for which, value in current(op)
        for key, kind in kinds.items()
        if isinstance(value, kind)
    ]


def versions() -> dict[str, str]:
    """Python and the packages that results may hang on."""

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return "not installed"

    return {"python": sys.version.split()[0]} | {name: version(name) for name in PACKAGES}


def knobs() -> dict[str, facts.Json]:
    """Settings that are not as they come: of tops, of jax, of the compilers. No place and no address is among them."""
    own = {one.name: one.text() for one in VARIABLES if one.source() != "default" and one.name not in _NOT_KNOBS}
    now: Any = jax.config  # its options have no types
    of_jax = {  # what of jax's own settings changes results or programs, and how it comes
        "jax_default_matmul_precision": (now.jax_default_matmul_precision, None),
        "jax_enable_x64": (now.jax_enable_x64, False),
        "jax_numpy_dtype_promotion": (now.jax_numpy_dtype_promotion, "standard"),
        "jax_debug_nans": (now.jax_debug_nans, False),
        "jax_disable_jit": (now.jax_disable_jit, False),
    }
    set_here = {name: str(value) for name, (value, default) in of_jax.items() if value != default}
    return own | set_here | compiler_flags()


def digest(record: Mapping[str, facts.Json]) -> str:
    """sha256 of a record, whatever its own entry of that name says."""
    text = json.dumps({key: value for key, value in record.items() if key != "sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_record(folder: Path, record: Mapping[str, facts.Json]) -> None:
    text = json.dumps(dict(record) | {"sha256": digest(record)}, indent=1)
    if not write_whole(folder / CALL, text.encode()):
        raise OSError(f"{folder / CALL} cannot be written")


def _store(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> facts.Json:
    data = tensors.pack(arrays)
    if not write_whole(path, data):
        raise OSError(f"{path} cannot be written")
    return {
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "arrays": {name: {"shape": list(one.shape), "dtype": str(one.dtype)} for name, one in arrays.items()},
    }


def _wanted(op: str) -> bool:
    def any_of(patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatchcase(op, pattern) for pattern in patterns)

    return any_of(DUMP_INCLUDE.value()) and not any_of(DUMP_EXCLUDE.value())


def _size(spec: tops_manifest.ArraySpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64)) * jax.numpy.dtype(spec.dtype).itemsize


def _name(op: str) -> str:
    """Sorted by time: <day>-<time>-<op>-<pid>-<a few random digits>."""
    now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{now}-{op}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
