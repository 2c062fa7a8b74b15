"""Definitions and workloads made again: from the contracts alone, or from what a folder of them says of its calls."""

import dataclasses
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tops_manifest
from tops_kernels.runtime.definitions import Call, Files, files
from tops_kernels.runtime.storing import read_whole, write_whole
from tops_manifest import ArraySpec, ContractTypeError, ContractValueError, Op

_TRIED = (1, 2, 8, 16, 64, 128, 256, 512)  # sizes for a call of which only the contract is known
_MAX_FILE = 1 << 20


class TraceError(ValueError):
    """A folder that holds no definitions of this library; the message names file, what is wrong, and what to do."""


def contracts() -> Files:
    """The definitions of every op that has code, with all axes variable: each choice of dtypes, optional inputs none or all."""
    found: Files = {}
    for contract in tops_manifest.ops():
        if contract.status == "planned":
            continue
        everything = [spec.name for spec in contract.inputs]
        required = [spec.name for spec in contract.inputs if not spec.optional]
        for names in (required, everything):
            for chosen in itertools.product(*contract.free_dtypes.values()):
                one = _some_call(contract, names, dict(zip(contract.free_dtypes, chosen, strict=True)))
                found |= files(dataclasses.replace(one, generic=True)) if one is not None else {}
    return found


def _some_call(contract: Op, names: list[str], dtypes: Mapping[str, str]) -> Call | None:
    """A call within the contract that has these inputs and dtypes, whatever its sizes; None where none was found."""
    derived = {var.name: var.derive(dtypes[var.source]) for var in contract.dtypes if var.source is not None}
    for size in _TRIED:
        arrays = {}
        for spec in contract.inputs:
            if spec.name in names:
                shape = spec.shapes_for(frozenset(names))[0]
                dtype = {**dtypes, **derived}.get(spec.dtype, spec.dtype)
                arrays[spec.name] = ArraySpec(tuple(size + dim.offset for dim in shape), dtype)
        one = Call(contract, arrays, {})
        try:
            one.bind()
        except (ContractTypeError, ContractValueError):
            continue
        return one
    return None


def again(folder: Path) -> Files:
    """The files of a folder that TOPS_TRACE was, as today's manifest has them. Raises TraceError."""
    found: Files = {}
    texts = texts_of(folder)
    definitions: dict[str, Any] = {}
    for path, text in texts.items():  # definitions before workloads: sorted so
        try:
            if path.startswith("definitions/"):
                definition = json.loads(text)
                definitions[str(definition["name"])] = definition
                if all(axis["type"] == "var" for axis in definition["axes"].values()):
                    dtypes = {name: spec["dtype"] for name, spec in definition["inputs"].items()}
                    found |= {place: made for place, made in contracts().items() if _same(made, definition, dtypes)}
                continue
            for line in text.splitlines():
                record = json.loads(line)
                found |= files(_seen(definitions[record["definition"]], record["workload"]["axes"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration) as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise TraceError(f"{folder / path} is no trace of tops ({reason}). Remove it, or trace again") from error
    return found


def _same(text: str, definition: Any, dtypes: Mapping[str, str]) -> bool:
    """Whether a definition of `contracts` is the one of these inputs."""
    other = json.loads(text)
    given = {name: spec["dtype"] for name, spec in other["inputs"].items()}
    return bool(given == dtypes and _tag(other, "op") == _tag(definition, "op"))


def _seen(definition: Any, values: Mapping[str, int]) -> Call:
    """The call that a definition and a workload's sizes tell of. Raises KeyError, ValueError and the like."""
    contract = tops_manifest.op(_tag(definition, "op"))
    sizes = {name: axis.get("value") for name, axis in definition["axes"].items()} | dict(values)
    arrays = {
        name: ArraySpec(tuple(_whole(sizes[axis]) for axis in spec["shape"]), str(spec["dtype"]))
        for name, spec in definition["inputs"].items()
    }
    params = dict(tag.removeprefix("param:").split("=", 1) for tag in definition["tags"] if tag.startswith("param:"))
    return Call(contract, arrays, {name: json.loads(value) for name, value in params.items()})


def _whole(size: Any) -> int:
    if type(size) is not int:
        raise TypeError(f"a size is {size!r}")
    return size


def _tag(definition: Any, key: str) -> str:
    return next(str(tag).split(":", 1)[1] for tag in definition["tags"] if str(tag).startswith(f"{key}:"))


def texts_of(folder: Path) -> Files:
    """The files of a folder of definitions and workloads. Raises TraceError for one that cannot be read."""
    found: Files = {}
    for path in sorted([*folder.glob("definitions/*/*.json"), *folder.glob("workloads/*/*/*.jsonl")]):
        data = read_whole(path, _MAX_FILE)
        try:
            if data is None:
                raise ValueError("no file of at most 1 MiB")
            found[path.relative_to(folder).as_posix()] = data.decode()
        except ValueError as error:
            raise TraceError(f"{path} cannot be read: {error}. Remove it, or trace again") from error
    return found


def write(folder: Path, wanted: Files) -> None:
    """Writes files below a folder. Raises OSError."""
    for path, text in wanted.items():
        if not write_whole(folder / path, text.encode()):
            raise OSError(f"{folder / path} cannot be written")


def differing(folder: Path, wanted: Files) -> list[tuple[str, str]]:
    """Each file that is not as it is wanted, and how: missing, changed, or not wanted. Raises TraceError."""
    there = texts_of(folder)
    found = [
        (path, "missing" if path not in there else "changed")
        for path, text in wanted.items()
        if there.get(path) != text
    ]
    return sorted(found + [(path, "not made any more") for path in there.keys() - wanted.keys()])
