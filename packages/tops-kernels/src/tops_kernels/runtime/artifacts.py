"""A compiled unit as one file: a line with the sha256 of the rest, the unit's description as JSON, its code.

    tops-unit 1 <sha256 in hex>\\n<length of the description>\\n<description><code>

Nothing of it is read as anything but bytes before the checksum holds. It keeps out damage, not an enemy: code is code, and who may
write to the workspace may run anything here. There is no pickle in it.
"""

import dataclasses
import hashlib
import json
from pathlib import Path

from tops_kernels.runtime.spec import FORMAT, Spec, SpecError, canonical, difference, from_data
from tops_kernels.runtime.storing import read_whole, sweep, warn_once, write_whole
from tops_kernels.runtime.workspace import folder

ENDING = ".unit"
MAX_BYTES = 2 << 30  # of one unit
_MAX_DESCRIPTION = 1 << 20
_MAX_LOOKED_AT = 50  # files, where none fits
_HEAD = b"tops-unit %d " % FORMAT
_START = len(_HEAD) + 64 + 1  # of what the checksum is of


class ArtifactError(ValueError):
    """A file that is no unit, or not the one it is called; the message says what is wrong with it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """What a file holds.

    code: of `Spec.kind`: a serialized executable, or an export.
    outputs: shape and dtype of what it gives, in order.
    single: whether it gives one array, not a tuple.
    """

    spec: Spec
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    single: bool
    code: bytes


def pack(unit: Unit) -> bytes:
    """The file; the same bytes for the same unit."""
    description = canonical(
        {"spec": dataclasses.asdict(unit.spec), "outputs": unit.outputs, "single": unit.single, "bytes": len(unit.code)}
    )
    body = b"%d\n" % len(description) + description + unit.code
    return _HEAD + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unpack(data: bytes) -> Unit:
    """The inverse of `pack`. Raises ArtifactError."""
    if not data.startswith(_HEAD):
        start = data[:16]
        raise ArtifactError(f"starts with {start!r}; expected {_HEAD!r}: no unit, or one of another version of tops")
    body = memoryview(data)[_START:]
    if data[_START - 1 : _START] != b"\n" or hashlib.sha256(body).hexdigest().encode() != data[len(_HEAD) : _START - 1]:
        raise ArtifactError("its sha256 is not the one it was stored with; it is damaged or cut off")
    length, _, _ = data[_START : _START + 12].partition(b"\n")
    if not length.isdigit() or int(length) > _MAX_DESCRIPTION:
        raise ArtifactError(f"its description is {length!r} bytes long; expected a number to {_MAX_DESCRIPTION}")
    begin = _START + len(length) + 1
    try:
        described = json.loads(data[begin : begin + int(length)])
        spec = from_data(described["spec"])
        outputs = tuple((tuple(map(_size, shape)), _dtype(dtype)) for shape, dtype in described["outputs"])
        single, count = described["single"], described["bytes"]
    except (SpecError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArtifactError(f"its description is not one: {error}") from None
    code = data[begin + int(length) :]
    if not isinstance(single, bool) or len(code) != count:
        raise ArtifactError(f"it holds {len(code)} bytes of code; expected {count!r}")
    return Unit(spec, outputs, single, code)


def path_of(spec: Spec) -> Path:
    """Where its file is in the workspace, or would be."""
    return folder("artifacts") / (spec.name + ENDING)


def store(unit: Unit) -> bool:
    """Into the workspace. False where it cannot be written, which has been warned of."""
    path = path_of(unit.spec)
    sweep(path.parent)
    return write_whole(path, pack(unit))


def find(spec: Spec) -> Unit | None:
    """The workspace's unit of a specification; None where there is none, or none that is whole and the one asked for (one warning)."""
    path = path_of(spec)
    data = read_whole(path, MAX_BYTES)
    if data is None:
        _warn_of_stale(spec)
        return None
    try:
        unit = unpack(data)
        if unit.spec.key != spec.key:
            raise ArtifactError(f"it is another unit: {difference(unit.spec, spec)}")
    except ArtifactError as error:
        warn_once(f"unit {path}", f"{path}: {error}. Ignored; it is made anew where that is allowed")
        return None
    return unit


def _warn_of_stale(spec: Spec) -> None:
    """Units of the same call that another toolchain made are not loaded, and it is said why."""
    start = spec.name.rpartition("-")[0]
    for path in sorted(folder("artifacts").glob(f"{start}-*{ENDING}"))[:_MAX_LOOKED_AT]:
        try:
            other = unpack(read_whole(path, MAX_BYTES) or b"").spec
        except ArtifactError:
            continue
        if (other.arguments, other.params, other.config) == (spec.arguments, spec.params, spec.config):
            warn_once(f"stale {start}", f"{path} is ignored: {difference(other, spec)}")
            return


def _size(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"size is {value!r}")
    return value


def _dtype(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"dtype is {value!r}")
    return value
