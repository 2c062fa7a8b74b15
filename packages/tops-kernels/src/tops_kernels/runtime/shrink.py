"""Smaller calls that still fail: arrays are cut along the dimensions that the contract names, all of them alike."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import tops_manifest
from tops_kernels.runtime.reading import Recorded, bind

Axis = tuple[str, int]  # a dimension's name, and which of its sizes where it is any number of leading ones


def shrink(dump: Recorded, fails: Callable[[Recorded], bool], limit: int = 200) -> tuple[Recorded, int]:
    """The smallest call found of which `fails` is true, and how many were tried.

    Each dimension is searched by halves, cut at its end or at its beginning, as long as the call stays within its contract and fails;
    again and again, until nothing more goes. Optional inputs are left out where the call still fails without them.

    Args:
      dump: a call that fails. fails: runs one. limit: of calls tried.
    """
    tried = 0

    def keep(candidate: Recorded) -> bool:
        nonlocal tried
        if tried >= limit:
            return False
        tried += 1
        return fails(candidate)

    best = dump
    again = True
    while again and tried < limit:
        again = False
        for candidate in _without_optional(best):
            if candidate is not None and keep(candidate):
                best, again = candidate, True
        for axis in sorted(sizes(best), key=lambda axis: -sizes(best)[axis]):
            smaller = _along(best, axis, keep)
            if smaller is not None:
                best, again = smaller, True
    return best, tried


def _along(dump: Recorded, axis: Axis, keep: Callable[[Recorded], bool]) -> Recorded | None:
    """The smallest that fails along one dimension, as if a call failed at every size above one that does; None where no cut does.

    Divisors come first: dimensions that must divide each other (heads of queries and of keys) shrink by them alone.
    """
    best, found = dump, None

    def fails_at(size: int) -> bool:
        nonlocal best, found
        for at_end in (True, False):
            candidate = cut(best, axis, size, at_end=at_end)
            if candidate is not None and keep(candidate):
                best = found = candidate
                return True
        return False

    low, high = 0, sizes(dump)[axis]  # the largest size that is not known to fail, the smallest that is
    divisors = [size for size in range(1, high) if high % size == 0]
    while divisors:
        middle = divisors[len(divisors) // 2]
        if fails_at(middle):
            high, divisors = middle, [size for size in divisors if size < middle]
        else:
            low, divisors = middle, [size for size in divisors if size > middle]
    while high - low > 1:
        middle = (low + high) // 2
        if fails_at(middle):
            high = middle
        else:
            low = middle
    return found


def sizes(dump: Recorded) -> dict[Axis, int]:
    """The sizes of a call's dimensions."""
    found: dict[Axis, int] = {}
    for name, size in dump.binding.dims.items():
        found |= {(name, i): one for i, one in enumerate(size if isinstance(size, tuple) else (size,))}
    return found


def cut(dump: Recorded, axis: Axis, size: int, *, at_end: bool) -> Recorded | None:
    """The call with one dimension cut to `size`; None where the contract does not allow it."""
    binding = dump.binding
    now = sizes(dump)[axis]
    start = 0 if at_end else now - size
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for spec in binding.op.inputs:
        if spec.name not in dump.inputs:
            continue
        array = dump.inputs[spec.name]
        shape = _shape(binding, spec, array)
        for place, (name, part, offset) in enumerate(_axes(binding, shape)):
            if (name, part) == axis:
                array = array.take(range(start, start + size + offset), axis=place)
        if spec.rises is not None and (spec.rises, 0) == axis:  # boundaries stay within what they are boundaries of
            array = np.clip(array - start, 0, size).astype(array.dtype)
        inputs[spec.name] = array
    return _allowed(dump, inputs)


def _shape(binding: tops_manifest.Binding, spec: Any, array: np.ndarray[Any, Any]) -> Any:
    """The shape of the contract that an input has."""
    return next(shape for shape in spec.shapes_for(binding.present) if binding.shape(shape) == array.shape)


def _axes(binding: tops_manifest.Binding, shape: Any) -> Iterator[tuple[str, int, int]]:
    for dim in shape:
        size = binding.dims[dim.name]
        for part in range(len(size)) if isinstance(size, tuple) else (0,):
            yield dim.name, part, dim.offset


def _without_optional(dump: Recorded) -> Iterator[Recorded | None]:
    for spec in tops_manifest.op(dump.op).inputs:
        if spec.optional and spec.name in dump.inputs:
            yield _allowed(dump, {name: one for name, one in dump.inputs.items() if name != spec.name})


def _allowed(dump: Recorded, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Recorded | None:
    """The call with other inputs and no outputs, which a cut does not follow to; None where it breaks the contract."""
    try:
        bind(dump.op, inputs, dump.params)
    except (tops_manifest.ContractTypeError, tops_manifest.ContractValueError):
        return None
    return dataclasses.replace(dump, inputs=inputs, outputs=None, state="started")
