"""One order for the object files in a serialized CPU executable. XLA writes them as its threads finish: each time in another order.

The format (protocol buffers of the runtime and of XLA's CPU compiler) is read no further than where they stand, and their order
means nothing: they are linked by name. What does not look as expected is left as it is; then a rebuilt bundle may differ.
"""

import itertools
from collections.abc import Iterator

_EXECUTABLE = 1  # field of the outer message: what the CPU compiler made
_OBJECT = 8  # field of that: one object file


def in_order(code: bytes) -> bytes:
    """The same executable with its object files sorted."""
    try:
        length, start = _number(code, 0)  # of the runtime's own header
        outer = next(span for span in _fields(code, start + length, len(code)) if span[0] == _EXECUTABLE)
        found = [span for span in _fields(code, outer[2], outer[3]) if span[0] == _OBJECT]
    except (ValueError, IndexError, StopIteration):
        return code
    if not found or any(left[3] != right[1] for left, right in itertools.pairwise(found)):
        return code
    objects = sorted(code[begin:end] for _, begin, _, end in found)
    return code[: found[0][1]] + b"".join(objects) + code[found[-1][3] :]


def _fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, where it begins, where its content begins, where it ends."""
    at = begin
    while at < end:
        tag, content = _number(data, at)
        match tag & 7:
            case 0:
                after = _number(data, content)[1]
            case 1:
                after = content + 8
            case 2:
                length, content = _number(data, content)
                after = content + length
            case 5:
                after = content + 4
            case other:
                raise ValueError(f"wire type {other}")
        if after > end:
            raise ValueError("a field reaches past its message")
        yield tag >> 3, at, content, after
        at = after


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        value |= (data[at] & 127) << shift
        at += 1
        if not data[at - 1] & 128:
            return value, at
    raise ValueError("a number of more than 64 bits")
