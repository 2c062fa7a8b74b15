"""Reads scheduled HLO text: which programs run, how often, and the compiler's own estimate of each."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

from tops_bench.aot.bundles import DumpError

_COMPUTATION = re.compile(r"^(ENTRY )?%(\S+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%(\S+) = (.*)$")
_OPCODE = re.compile(r"(?:^|[\s})])([a-z][a-z0-9-]*)\(")
_SHAPE = re.compile(r"\b(pred|bf16|[suf]\d+(?:e\d+m\d+\w*)?|c64|c128)\[([\d,]*)\]")
_COPY = re.compile(rf"\(({_SHAPE.pattern}\S*), ({_SHAPE.pattern}\S*), ")  # result, operand
_STARTED = re.compile(r"\bcopy-done\((?:[^%)]*%)?([^\s,)]+)\)")
_BODY = re.compile(r"condition=%?([^,\s]+), body=%?([^,\s]+)")
_CALLS = re.compile(r"(?:to_apply|calls)=%?([^,\s]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_TYPE = re.compile(r"(?:\(.*?\)(?= [a-z])|\S*)")  # of a result: a tuple, or one array
_NAME = re.compile(r"%([^\s,(){}]+)")
_CONSTANT = re.compile(r"constant\((\d+)\)")
_VMEM = "S(1)"  # a layout's memory space
_ABSURD = 10**15  # cycles: XLA writes 9.2e18 for loops it cannot cost


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of the schedule; `times` it runs in all, the loops around it counted."""

    name: str
    opcode: str
    text: str
    times: int
    estimated_cycles: int | None  # the compiler's own, for one run; None where it gives none or an absurd one
    is_kernel: bool  # a Pallas (Mosaic) kernel
    signature: str = (
        ""  # opcode, attributes, types of result and operands: equal ones are one program, which is dumped once
    )

    @property
    def bytes_moved(self) -> int:
        """Bytes an asynchronous copy moves to or from HBM: its first result's, twice where it stays in HBM."""
        match = _SHAPE.search(self.text)
        if not match:
            return 0
        ends = _COPY.search(self.text)
        stays = ends is not None and not any(_VMEM in end for end in (ends.group(1), ends.group(4)))
        return shape_bytes(match.group(1), match.group(2)) * (2 if stays else 1)

    @property
    def started(self) -> str:
        """Of a copy-done: the copy it waits for."""
        match = _STARTED.search(self.text)
        return match.group(1) if match else ""


def shape_bytes(dtype: str, dims: str) -> int:
    """Of e.g. "bf16", "8,128"."""
    bits = 8 if dtype == "pred" else 16 if dtype == "bf16" else int(re.findall(r"\d+", dtype)[0])
    return math.ceil(math.prod(int(size) for size in dims.split(",") if size) * bits / 8)


def instructions(text: str) -> list[Instruction]:
    """What runs, in order: the entry's instructions, and those of loops and calls in it. Raises DumpError."""
    computations, entry = _computations(text)
    if entry is None:
        raise DumpError("HLO text without an ENTRY computation")
    return list(_walk(computations, entry, 1, 0))


def _computations(text: str) -> tuple[dict[str, list[str]], str | None]:
    result: dict[str, list[str]] = {}
    entry = None
    current: list[str] | None = None
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            current = result.setdefault(head.group(2), [])
            entry = head.group(2) if head.group(1) else entry
        elif line.rstrip() == "}":  # a line of a kernel's metadata may begin with one
            current = None
        elif current is not None:
            current.append(line)
    return result, entry


def _walk(computations: dict[str, list[str]], name: str, times: int, depth: int) -> Iterator[Instruction]:
    if depth > 20:
        raise DumpError(f"HLO computation {name} calls itself")
    found = [match.groups() for line in computations.get(name, ()) if (match := _INSTRUCTION.match(line))]
    types = {own: match.group() for own, text in found if (match := _TYPE.match(text))}
    for own, text in found:
        opcode = next(iter(_OPCODE.findall(_without_shapes(text))), "")
        if opcode == "while" and (body := _BODY.search(text)):
            trips = _trips(text, computations.get(body.group(1), []))
            yield from _walk(computations, body.group(2), times * trips, depth + 1)
        elif opcode == "call" and (called := _CALLS.search(text)):
            yield from _walk(computations, called.group(1), times, depth + 1)
        elif opcode == "conditional" and (branches := _BRANCHES.search(text)):
            # platform_dependent leaves one branch; of a true choice the first stands for all
            yield from _walk(computations, branches.group(1).split(",")[0].strip().removeprefix("%"), times, depth + 1)
        elif opcode:
            cycles = _CYCLES.search(text)
            estimated = int(cycles.group(1)) if cycles else None
            yield Instruction(
                name=own,
                opcode=opcode,
                text=text,
                times=times,
                estimated_cycles=estimated if estimated is not None and estimated < _ABSURD else None,
                is_kernel='custom_call_target="tpu_custom_call"' in text,
                signature=_signature(text, types, estimated),
            )


def _signature(text: str, types: Mapping[str, str], cycles: int | None) -> str:
    plain = text.split(", metadata=")[0].split(", backend_config=")[0]
    return f"{_NAME.sub(lambda match: types.get(match.group(1), ''), plain)} {cycles}"


def _without_shapes(text: str) -> str:
    """The text with its layouts cut, whose `T(8,128)` look like calls."""
    return re.sub(r"\{[^{}]*\}", "", text.split(", metadata=")[0].split(", backend_config=")[0])


def _trips(text: str, condition: list[str]) -> int:
    """How often a while loop runs: as the compiler says, else the bound in its condition, else once."""
    known = _TRIPS.search(text)
    if known:
        return int(known.group(1))
    constants = [int(value) for line in condition for value in _CONSTANT.findall(line)]
    return max(constants) if len(constants) == 1 else 1
