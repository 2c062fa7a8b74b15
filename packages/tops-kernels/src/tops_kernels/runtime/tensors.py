"""Arrays as bytes, in the safetensors format: a header of JSON and raw values, nothing that runs when it is read.

Written and read here and not by the package of that name, which users need not have; it reads the same files.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

# dtype -> what the format calls it
_CODES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
_DTYPES = {code: name for name, code in _CODES.items()}
_MAX_HEADER = 1 << 20


class TensorsError(ValueError):
    """Bytes that are no safetensors file, or arrays that it cannot hold."""


def pack(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The file. Raises TensorsError for a dtype that the format has no name for."""
    header: dict[str, object] = {}
    parts: list[bytes] = []
    at = 0
    for name, array in arrays.items():
        code = _CODES.get(str(array.dtype))
        if code is None:
            raise TensorsError(f"{name} is {array.dtype}; safetensors holds {', '.join(_CODES)}")
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # values begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def unpack(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays, read-only, by name. Raises TensorsError for anything but a whole, gapless file."""
    try:
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 or not 2 <= length <= min(_MAX_HEADER, len(data) - 8):
            raise TensorsError(f"the header's length is {length} of {len(data)} bytes")
        header = json.loads(data[8 : 8 + length].decode())
        if not isinstance(header, dict):
            raise TensorsError("the header is no JSON object")
        header.pop("__metadata__", None)
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        at, values = 0, memoryview(data)[8 + length :]
        for name, spec in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            array, at = _array(name, spec, at, values)
            arrays[name] = array
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, TensorsError):
            raise
        raise TensorsError(f"no safetensors file: {type(error).__name__}") from error
    if at != len(values):
        raise TensorsError(f"{len(values) - at} bytes belong to no array")
    return {name: arrays[name] for name in header}


def _array(name: str, spec: Any, at: int, values: memoryview) -> tuple[np.ndarray[Any, Any], int]:
    shape, (start, end) = spec["shape"], spec["data_offsets"]
    if any(type(number) is not int or number < 0 for number in (*shape, start, end)):
        raise TensorsError(f"{name}: sizes and offsets are whole numbers")
    if spec["dtype"] not in _DTYPES:
        raise TensorsError(f"{name}: unknown dtype")
    dtype = jnp.dtype(_DTYPES[spec["dtype"]])
    if start != at or end > len(values) or end - start != math.prod(shape) * dtype.itemsize:
        raise TensorsError(f"{name}: its bytes are not where its shape says")
    return np.frombuffer(values[start:end], dtype).reshape(shape), end
