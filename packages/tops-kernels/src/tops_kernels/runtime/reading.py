"""Reads a dump back. Nothing in it is believed: checksums come before any parsing of data, the contract before any array is used.

No path is taken from its JSON; the three file names are fixed, and must be regular files of the folder itself.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tops_manifest
from tops_kernels.runtime import dumping, public, tensors
from tops_kernels.runtime.overrides import Override
from tops_kernels.runtime.storing import read_whole

_MAX_RECORD = 1 << 20
_MAX_DATA = 1 << 40
_KEYS = {
    "schema", "op", "contract", "params", "backend", "interpret", "config", "error", "when", "versions", "knobs", "devices",
    "inputs", "outputs", "state", "sha256",
}  # fmt: skip


class DumpError(ValueError):
    """A dump that cannot be replayed; the message names the folder, what is wrong, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """A dump, checked: a call within today's contract, and what came out of it, if anything did."""

    op: str
    inputs: Mapping[str, np.ndarray[Any, Any]]
    params: Mapping[str, Any]
    backend: str | None
    interpret: bool
    override: Override
    outputs: Mapping[str, np.ndarray[Any, Any]] | None
    state: str  # started | completed | failed
    record: Mapping[str, Any]  # call.json, for what is only shown

    @property
    def binding(self) -> tops_manifest.Binding:
        return bind(self.op, self.inputs, self.params)


def bind(op: str, inputs: Mapping[str, np.ndarray[Any, Any]], params: Mapping[str, Any]) -> tops_manifest.Binding:
    """A call's contract. Raises ContractValueError or ContractTypeError."""
    specs = {name: tops_manifest.ArraySpec(one.shape, str(one.dtype)) for name, one in inputs.items()}
    return tops_manifest.bind(tops_manifest.op(op), specs, dict(params))


def read(folder: Path) -> Recorded:
    """Raises DumpError."""
    try:
        return _checked(folder)
    except DumpError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise _wrong(folder, f"is not as a dump is written ({type(error).__name__}: {str(error)[:200]})") from error


def _checked(folder: Path) -> Recorded:
    record = _record(folder)
    op = record["op"]
    if op not in tops_manifest.op_names() or tops_manifest.op(op).status == "planned":
        raise _wrong(folder, f"is of op {_short(op)}, which is not here")
    contract = tops_manifest.op(op)
    if record["contract"] != contract.version:
        raise _wrong(
            folder,
            f"was made under version {_short(record['contract'])} of {op}'s contract; here is {contract.version}",
        )
    if record["state"] not in ("started", "completed", "failed"):
        raise _wrong(folder, f"has the state {_short(record['state'])}")
    backend, interpret = record["backend"], record["interpret"]
    if backend is not None and backend not in contract.kernel_map:
        raise _wrong(folder, f"asks for backend {_short(backend)}; {op} has {', '.join(contract.kernel_map)}")
    if not isinstance(interpret, bool | str):
        raise _wrong(folder, f"has interpret {_short(interpret)}")
    params = record["params"]
    if not isinstance(params, dict):
        raise _wrong(folder, "has no parameters")
    params = {name: _number(value, contract, name) for name, value in params.items()}
    inputs = _arrays(folder, dumping.INPUTS, record["inputs"])
    try:
        binding = bind(op, inputs, params)
    except (tops_manifest.ContractTypeError, tops_manifest.ContractValueError) as error:
        raise _wrong(folder, f"breaks the contract: {error}") from error
    outputs = None
    if record["state"] == "completed":
        outputs = _arrays(folder, dumping.OUTPUTS, record["outputs"])
        found = {name: tops_manifest.ArraySpec(one.shape, str(one.dtype)) for name, one in outputs.items()}
        if found != binding.outputs():
            raise _wrong(folder, f"has outputs that {op} does not give for such inputs")
    override = _override(folder, op, record["config"])
    return Recorded(op, inputs, params, backend, bool(interpret), override, outputs, record["state"], record)


def _record(folder: Path) -> dict[str, Any]:
    data = _file(folder, dumping.CALL, _MAX_RECORD)
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _wrong(folder, f"has a {dumping.CALL} that is no JSON") from error
    if not isinstance(record, dict) or record.get("sha256") != dumping.digest(record):
        raise _wrong(folder, f"has a {dumping.CALL} that was changed or cut short: its sha256 is another")
    if type(record.get("schema")) is not int or record["schema"] != dumping.SCHEMA:
        raise _wrong(folder, f"is of schema {_short(record.get('schema'))}; this version reads {dumping.SCHEMA}")
    if record.keys() != _KEYS:
        raise _wrong(folder, f"has a {dumping.CALL} with other entries than a dump's")
    return record


def _arrays(folder: Path, name: str, told: Any) -> dict[str, np.ndarray[Any, Any]]:
    size, sha = told["bytes"], told["sha256"]
    if type(size) is not int or not 0 <= size <= _MAX_DATA:
        raise _wrong(folder, f"says that {name} has {_short(size)} bytes")
    data = _file(folder, name, size)
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha:  # before anything in it is looked at
        raise _wrong(folder, f"has a {name} that was changed or cut short: its sha256 is another")
    try:
        arrays = tensors.unpack(data)
    except tensors.TensorsError as error:
        raise _wrong(folder, f"has a {name} that cannot be read: {error}") from error
    found = {key: {"shape": list(one.shape), "dtype": str(one.dtype)} for key, one in arrays.items()}
    if found != told["arrays"]:
        raise _wrong(folder, f"has a {name} with other arrays than {dumping.CALL} says")
    return arrays


def _file(folder: Path, name: str, most: int) -> bytes:
    path = folder / name
    if path.is_symlink():
        raise _wrong(folder, f"has a {name} that is a link; a dump's files are its own")
    data = read_whole(path, most)
    if data is None:
        raise _wrong(folder, f"has no {name} that can be read, of at most {most} bytes")
    return data


def _number(value: Any, contract: tops_manifest.Op, name: str) -> Any:
    """A float parameter that JSON has no number for."""
    known = {spec.name: spec.type for spec in contract.params}
    return float(value) if known.get(name) == "float" and value in ("nan", "inf", "-inf") else value


def _override(folder: Path, op: str, told: Any) -> Override:
    kinds = public.configs(op)
    found = []
    for entry in told:
        which, key, fields = entry["pass"], entry["implementation"], entry["fields"]
        if which not in ("fwd", "vjp") or key not in kinds:
            raise _wrong(folder, f"has a configuration of {_short(key)}, {_short(which)}")
        known = {field.name: field for field in dataclasses.fields(kinds[key])}
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        if values.keys() - known.keys() or not all(_plain(value) for value in values.values()):
            raise _wrong(folder, f"has a configuration with fields that {kinds[key].__name__} has not")
        found.append((which, kinds[key](**values)))
    return tuple(found)


def _plain(value: Any) -> bool:
    """Numbers of a size that block sizes have, flags, words, and tuples of them."""
    if isinstance(value, tuple):
        return all(_plain(one) for one in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | str) or (isinstance(value, int) and abs(value) < 1 << 31)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _wrong(folder: Path, what: str) -> DumpError:
    return DumpError(f"the dump {folder} {what}. Make it again with TOPS_LOG=4, or give another")
