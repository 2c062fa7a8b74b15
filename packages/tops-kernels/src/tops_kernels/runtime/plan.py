"""Which units a build makes: the user's workloads, by pass, target and kind."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tops_manifest
from tops_kernels.runtime import targets
from tops_kernels.runtime.spec import KINDS, NATIVE_TARGETS, PASSES, PORTABLE_TARGETS, Kind, Spec, SpecError, spec
from tops_kernels.runtime.storing import read_whole

_MAX_BYTES = 16 << 20
_KEYS = {"op", "inputs", "params", "pass"}


class PlanError(ValueError):
    """What was asked for cannot be planned; the message says where and what was expected."""


class _Array:
    """What `spec` asks of an input."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype


def plan(
    workloads: Path, ops: Sequence[str] | None, wanted: Sequence[str], kinds: Sequence[str]
) -> tuple[list[Spec], list[str]]:
    """The units, each once, and remarks for the user.

    Args:
      workloads: a JSON file, see `tops-kernels build --help`.
      ops: those alone; None: all of the file.
      wanted: targets: "cpu", chips, platforms. A chip's portable code is its platform's.
      kinds: of KINDS.
    Raises: PlanError.
    """
    for what, given, known in (
        ("--targets", wanted, {*NATIVE_TARGETS, *PORTABLE_TARGETS}),
        ("--kinds", kinds, set(KINDS)),
    ):
        for name in given:
            if name not in known:
                raise PlanError(f"{what}: got {name!r}; expected some of {', '.join(sorted(known))}")
    remarks = []
    pairs: list[tuple[str, Kind]] = []
    for target in dict.fromkeys(wanted):
        for kind in KINDS:
            if kind not in kinds:
                continue
            if kind == "portable":
                pairs.append((targets.platform_of(target), kind))
            elif target in NATIVE_TARGETS:
                why = targets.missing(target)
                if why:
                    raise PlanError(f"--targets: {why}. Or leave native code out: --kinds portable")
                pairs.append((target, kind))
            else:
                remarks.append(f"{target} is a platform: portable code alone; name a chip for native code")
    calls = [call for call in _calls(workloads) if ops is None or call[0] in ops]
    lost = sorted(set(ops or ()) - {call[0] for call in calls})
    if lost:
        raise PlanError(f"{workloads}: no workload of {', '.join(lost)}")
    found: dict[Spec, None] = {}
    for op, inputs, params, which in calls:
        for target, kind in dict.fromkeys(pairs):
            try:
                found[spec(op, inputs, params, target=target, which=which, kind=kind)] = None
            except (SpecError, ValueError, TypeError) as error:  # a contract's are ValueError and TypeError
                raise PlanError(f"{workloads}: {op} {which}: {error}") from None
    if not found:
        raise PlanError("nothing to build: no workload, target and kind go together")
    return list(found), remarks


def _calls(path: Path) -> Iterator[tuple[str, dict[str, _Array], dict[str, Any], str]]:
    data = read_whole(path, _MAX_BYTES)
    if data is None:
        raise PlanError(f"--workloads: {path} is no file that can be read, or over {_MAX_BYTES >> 20} MiB")
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path}: no JSON: {error}") from None
    if not isinstance(rows, list):
        raise PlanError(f"{path}: a {type(rows).__name__}; expected a list of workloads")
    for number, row in enumerate(rows, 1):
        where = f"{path}: workload {number}"
        if not isinstance(row, dict) or not {"op", "inputs"} <= set(row) <= _KEYS:
            raise PlanError(f"{where}: expected an object with op, inputs and, if need be, params and pass")
        known = [op.name for op in tops_manifest.ops() if op.status == "implemented"]
        if row["op"] not in known:
            raise PlanError(f"{where}: op is {row['op']!r}; expected one of {', '.join(known)}")
        passes = row.get("pass", "fwd")
        params = row.get("params", {})
        if not isinstance(params, dict):
            raise PlanError(f"{where}: params is a {type(params).__name__}; expected an object")
        for which in [passes] if isinstance(passes, str) else passes if isinstance(passes, list) else [None]:
            if which not in PASSES:
                raise PlanError(f"{where}: pass is {passes!r}; expected fwd, vjp or a list of them")
            yield row["op"], _inputs(row["inputs"], where), params, which


def _inputs(data: Any, where: str) -> dict[str, _Array]:
    try:
        return {
            name: _Array(tuple(_size(size) for size in one["shape"]), str(one["dtype"]))
            for name, one in data.items()
            if one is not None
        }
    except (TypeError, KeyError, ValueError, AttributeError):
        raise PlanError(
            f'{where}: inputs is {data!r}; expected {{name: {{"shape": [8, 64], "dtype": "float32"}}}}'
        ) from None


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value
