"""What a kernel's control flow reads from its operands: worked out on the host, from the integer inputs that a row fixes.

A kernel with scalar-prefetched operands (group sizes, page tables, block masks) skips and repeats steps by their values. The program
around it computes them from its inputs and constants, so it is run here as far as integers are known, up to each kernel.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from tops_bench.aot.hlo import Instruction

Words = dict[int, list[int]]  # operand index -> its words
_MAX_ELEMENTS = 1 << 22  # larger values are not worth computing: no kernel prefetches them
_WORD_BYTES = 4


# Primitives whose inner program is not simply run on their inputs.
_OWN_MEANING = (
    "cond",
    "while",
    "scan",
    "switch",
    "reduce",
    "reduce_window",
    "scatter",
    "scatter-add",
    "sort",
    "custom_root",
)


class _Unknown:
    """A value that hangs on something not known."""


_UNKNOWN = _Unknown()


def operands(jaxpr: Any, known: Mapping[int, np.ndarray]) -> list[tuple[str, Words]]:
    """For each Pallas kernel of a traced program, in order: its name, and the operands whose words are known.

    `jaxpr`: a ClosedJaxpr; `known`: index of a flat input -> its value.
    """
    found: list[tuple[str, Words]] = []
    arguments = [known.get(index, _UNKNOWN) for index in range(len(jaxpr.jaxpr.invars))]
    with jax.default_device(jax.devices("cpu")[0]):
        _run(jaxpr.jaxpr, jaxpr.consts, arguments, found)
    return found


def of_instruction(instruction: Instruction, found: list[tuple[str, Words]]) -> Words:
    """The known operands of a compiled kernel; takes the entry out of `found`, so that equal names go in order."""
    base = re.sub(r"\.\d+$", "", instruction.name)
    at = next((index for index, (name, _) in enumerate(found) if _same(name, base)), None)
    return found.pop(at)[1] if at is not None else {}


def _same(name: str, base: str) -> bool:
    if not name:  # an unnamed kernel is called as the function around it
        return True
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return plain == base or base.startswith(plain) or plain.startswith(base)


def _run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], found: list[tuple[str, Words]]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=False)) | dict(
        zip(jaxpr.invars, arguments, strict=True)
    )

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values.get(atom, _UNKNOWN)

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        outputs = _equation(equation, inputs, found)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(equation: Any, inputs: list[Any], found: list[tuple[str, Words]]) -> list[Any]:
    unknown = [_UNKNOWN] * len(equation.outvars)
    if equation.primitive.name == "pallas_call":
        found.append(_kernel(equation.params, inputs))
        return unknown
    if equation.primitive.name not in _OWN_MEANING:
        inner = next((value for value in equation.params.values() if _is_body(value, len(inputs))), None)
        if inner is not None:
            return _run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), inputs, found)
    if any(isinstance(value, _Unknown) for value in inputs) or any(
        _size(atom) > _MAX_ELEMENTS for atom in equation.outvars
    ):
        return unknown
    bound = equation.primitive.get_bind_params(equation.params)  # a pair in jax 0.12, the parameters alone in 0.10
    functions, parameters = ((), bound) if isinstance(bound, dict) else bound
    result = equation.primitive.bind(*functions, *inputs, **parameters)
    return list(result) if equation.primitive.multiple_results else [result]


def _is_body(value: Any, count: int) -> bool:
    body = getattr(value, "jaxpr", value)
    return hasattr(body, "eqns") and len(body.invars) == count


def _size(atom: Any) -> int:
    return int(np.prod(getattr(atom.aval, "shape", ()), dtype=np.int64))


def _kernel(params: Mapping[str, Any], inputs: list[Any]) -> tuple[str, Words]:
    words: Words = {}
    for index, value in enumerate(inputs):
        if isinstance(value, _Unknown):
            continue
        array = np.asarray(value)
        if array.ndim <= 1 and array.dtype.kind in "iu" and array.dtype.itemsize == _WORD_BYTES:
            words[index] = [int(word) for word in array.reshape(-1)]
    name = params.get("name_and_src_info")
    return (name.name or "") if name is not None else str(params.get("name") or ""), words
