"""The scalar unit's ops as closures over a machine state: enough to follow a schedule's control flow exactly.

Registers are physical (post allocation), so a phi is the register it stands in. A value the compiler cannot know (data, operand
addresses) is None and stays None through arithmetic; a branch on None is left to the caller, who counts it both ways.
"""

import dataclasses
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tops_bench.aot.bundles import Op, register


class Pointer(NamedTuple):
    """An address that is known: a scalar-memory allocation, or an operand of the program; `offset` in words."""

    base: str
    offset: int


Value = int | Pointer | None
Read = Callable[["State"], Value]
Step = Callable[["State"], None]

_SLOT = re.compile(r"\[smem:\[([^\]]*)\]\]")
_INDEX = re.compile(r"index: (\d+), kind: input")
_SOURCE = re.compile(r"/\*(?:vmem|hbm|smem)=\*/(%\w+)")
_DESTINATION = re.compile(r"/\*smem=\*/(%\w+|\[#allocation\d+\])")
_GRANULES = re.compile(r"size_in_granules=\*/\s*(%?\w+)")
_OPERAND = re.compile(r"(!?)%(\w+)|(-?\d+)|\[(#allocation\d+)[^\]]*\]")
_READ = re.compile(r"%([sp]\d*_[sp]\d+)")
_SELECT = re.compile(r"^\s*\((!?)%(\w+),\s*%(\w+)\)\s*,\s*(.*)$")
_MASK = 0xFFFFFFFF


@dataclasses.dataclass(slots=True)
class State:
    scalars: dict[str, Value] = dataclasses.field(default_factory=dict)  # s registers and p registers (0 or 1)
    memory: dict[str, Value] = dataclasses.field(default_factory=dict)  # scalar memory at addresses that are constants
    fifo: deque[Value] = dataclasses.field(default_factory=deque)  # results of a division
    arrays: dict[str, Sequence[int]] = dataclasses.field(
        default_factory=dict
    )  # base of a Pointer -> words, where known

    core: int = 0  # which of the chip's cores this is

    def copy(self) -> "State":
        return State(dict(self.scalars), dict(self.memory), self.fifo.copy(), dict(self.arrays), self.core)


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 32) if value >> 31 else value


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "sadd": lambda a, b: a + b,
    "ssub": lambda a, b: a - b,
    "smul": lambda a, b: a * b,
    "smulhi": lambda a, b: ((a & _MASK) * (b & _MASK)) >> 32,
    "sand": lambda a, b: a & b,
    "sor": lambda a, b: a | b,
    "sxor": lambda a, b: a ^ b,
    "sshll": lambda a, b: a << (b & 31),
    "sshrl": lambda a, b: (a & _MASK) >> (b & 31),
    "sshra": lambda a, b: _signed(a) >> (b & 31),
    "smin": min,
    "smax": max,
}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_LOGIC: dict[str, Callable[[bool, bool], bool]] = {
    "por": lambda a, b: a or b,
    "pand": lambda a, b: a and b,
    "pnand": lambda a, b: not (a and b),
    "pnor": lambda a, b: not (a or b),
    "pxor": lambda a, b: a != b,
}


def holds(state: State, predicate: tuple[bool, str]) -> bool | None:
    """Whether a predicate (negated, register) is true; None where it cannot be known."""
    value = state.scalars.get(predicate[1])
    return None if value is None else bool(value) != predicate[0]


def ordered(ops: Sequence[Op]) -> Sequence[Op]:
    """The ops of a bundle, in an order in which doing them one by one reads what reading all at once would.

    A register that another op of the bundle writes is read before, unless the very value (its name in full) is read: then after.
    """
    if sum(1 for op in ops if op.dest) < 2:
        return ops
    writer: dict[str, tuple[int, str]] = {}
    for at, op in enumerate(ops):
        if op.dest and op.mnemonic != "sphi":
            writer[op.dest] = (at, op.text.partition(" ")[0].removeprefix("%"))
    before: dict[int, set[int]] = {at: set() for at in range(len(ops))}
    for at, op in enumerate(ops):
        if op.mnemonic == "sphi":
            continue
        for name in _READ.findall(op.text.partition("=")[2] if op.dest else op.text):
            where, written = writer.get(register(name), (at, ""))
            if where != at and name == written:
                before[at].add(where)
            elif where != at:
                before[where].add(at)
    result: list[int] = []
    left = list(range(len(ops)))
    while left:
        ready = next((at for at in left if not before[at] & set(left)), left[0])
        left.remove(ready)
        result.append(ready)
    return [ops[at] for at in result]


def compile_op(op: Op) -> Step | None:
    """A closure that does the op, or None where it changes nothing that control flow could depend on."""
    dest, name = op.dest, op.mnemonic
    writes_scalar = dest[:1] in ("s", "p") and dest[1:].isdigit()
    if name == "sphi" or not (writes_scalar or name in ("sst", "sdivrem.u32", "sdivrem.s32")):
        return None
    arguments = _arguments(op)
    if name == "smov" and (match := _SELECT.match(op.text.partition("smov")[2])):
        # `dest = smov (pred, same register), value`: value where pred holds, else what the register has
        return _guarded(dest, _read([match.group(4)], 0), (match.group(1) == "!", register(match.group(2))))
    if name == "sst":
        return _store(op)
    if name.startswith("sdivrem"):
        return _divide(op, _read(arguments, 0), _read(arguments, 1))
    return _guarded(dest, _value(op, name, arguments), op.predicate)


def _arguments(op: Op) -> list[str]:
    text = op.text.partition(op.mnemonic)[2]
    text = re.sub(r"^\s*(?:\[\w+:\$\w+\]|\(!?%\w+\)\s*,?)", "", text)  # an attribute of a pointer, or the predicate
    return [part.strip() for part in text.split(",")]


def _read(arguments: list[str], at: int) -> Read:
    text = arguments[at] if at < len(arguments) else ""
    match = _OPERAND.match(text)
    if match and match.group(2):
        name, negated = register(match.group(2)), match.group(1) == "!"
        if negated:
            return lambda state: None if state.scalars.get(name) is None else int(not state.scalars[name])
        return lambda state: state.scalars.get(name)
    if match and match.group(3):
        number = int(match.group(3))
        return lambda state: number
    if match and match.group(4):
        pointer = Pointer(match.group(4), 0)
        return lambda state: pointer
    return lambda state: None


def _value(op: Op, name: str, arguments: list[str]) -> Read:
    kind, _, rest = name.partition(".")
    first, second = _read(arguments, 0), _read(arguments, 1)
    if kind == "inlined_call_operand":
        return _operand(op)
    if kind == "int_to_ptr":
        return first
    if name == "scalar_lea.smem":
        return _offset(first, second)
    if kind in ("sshll", "sshrl", "sshra"):  # an address in other units is the same address
        return _shift(_binary(_shifted(kind), first, second), first)
    if kind in _ARITHMETIC:
        function = _ARITHMETIC[kind]
        if kind in ("smin", "smax") and rest.startswith("u"):
            return _binary(lambda a, b: function(a & _MASK, b & _MASK), first, second)
        return _binary(lambda a, b: _signed(function(a, b)), first, second)
    if kind == "scmp":
        relation, _, width = rest.partition(".")
        if relation in _COMPARE:
            compare = _COMPARE[relation]
            unsigned = width.startswith("u")
            if unsigned:
                return _binary(lambda a, b: int(compare(a & _MASK, b & _MASK)), first, second)
            return _binary(lambda a, b: int(compare(_signed(a), _signed(b))), first, second)
    if name in _LOGIC:
        return _logic(name, first, second)
    if name == "pneg":
        return lambda state: None if (value := first(state)) is None else int(not value)
    if name in ("smov", "pmov"):
        return first
    if name == "scalar_select":
        third = _read(arguments, 2)

        def select(state: State) -> Value:
            condition = first(state)
            if condition is None:
                yes, no = second(state), third(state)
                return yes if yes == no else None
            return second(state) if condition else third(state)

        return select
    if name == "sld":
        if "core id" in op.comment:
            return lambda state: state.core
        return _load(op.text)
    if name == "spop.drf":
        return lambda state: state.fifo.popleft() if state.fifo else None
    return lambda state: None


def _binary(function: Callable[[int, int], int], first: Read, second: Read) -> Read:
    def value(state: State) -> Value:
        a, b = first(state), second(state)
        return function(a, b) if isinstance(a, int) and isinstance(b, int) else None

    return value


def _shifted(kind: str) -> Callable[[int, int], int]:
    function = _ARITHMETIC[kind]
    return lambda a, b: _signed(function(a, b))


def _shift(value: Read, first: Read) -> Read:
    def shifted(state: State) -> Value:
        base = first(state)
        return base if isinstance(base, Pointer) else value(state)

    return shifted


def _offset(first: Read, second: Read) -> Read:
    def value(state: State) -> Value:
        a, b = first(state), second(state)
        if isinstance(b, Pointer):
            a, b = b, a
        return Pointer(a.base, a.offset + b) if isinstance(a, Pointer) and isinstance(b, int) else None

    return value


def _operand(op: Op) -> Read:
    """An operand of the program: its value where it is one word that is known, else its address."""
    match = _INDEX.search(op.text)
    base = f"operand{match.group(1)}" if match else ""
    is_word = op.mnemonic == "inlined_call_operand."  # "<no memory space>": handed over in a register

    def value(state: State) -> Value:
        if is_word:
            words = state.arrays.get(base, ())
            return words[0] if len(words) == 1 else None
        return Pointer(base, 0) if base else None

    return value


def granules(op: Op) -> Read:
    """The size of a DMA."""
    match = _GRANULES.search(op.comment)
    return _read([match.group(1)] if match else [], 0)


def prefetch(op: Op) -> Step | None:
    """What a DMA to scalar memory makes known: the words of an operand that are known. None for other DMAs."""
    source, destination = _SOURCE.search(op.comment), _DESTINATION.search(op.comment)
    if not op.mnemonic.endswith("_to_smem") or not source or not destination:
        return None
    read, write = _read([source.group(1)], 0), _read([destination.group(1)], 0)

    def step(state: State) -> None:
        origin, place = read(state), write(state)
        if isinstance(origin, Pointer) and isinstance(place, Pointer) and origin.base in state.arrays:
            state.arrays[place.base] = state.arrays[origin.base]

    return step


def _logic(name: str, first: Read, second: Read) -> Read:
    """Logic over known and unknown: where every reading of the unknown gives one result, that is the result."""
    function = _LOGIC[name]

    def value(state: State) -> Value:
        a, b = first(state), second(state)
        if a is not None and b is not None:
            return int(function(bool(a), bool(b)))
        results = {function(x, y) for x in _readings(a) for y in _readings(b)}
        return int(results.pop()) if len(results) == 1 else None

    return value


def _readings(value: Value) -> tuple[bool, ...]:
    return (False, True) if value is None else (bool(value),)


def _terms(text: str) -> list[str]:
    match = _SLOT.search(text)
    return [term.strip() for term in match.group(1).split("+")] if match else []


def _slot(text: str) -> str | None:
    """A scalar-memory address that is a constant, as a key; None where a register takes part."""
    terms = _terms(text)
    if not terms or any("%" in term for term in terms):
        return None
    return "+".join([*terms[:1], *(term for term in terms[1:] if int(term.removeprefix("$"), 0))])


def _load(text: str) -> Read:
    """A word of scalar memory: what was stored at a constant address, or a word of an array that is known."""
    slot = _slot(text)
    readers = [_term(term) for term in _terms(text)]

    def value(state: State) -> Value:
        if slot is not None and slot in state.memory:
            return state.memory[slot]
        base, index = "", 0
        for reader in readers:
            part = reader(state)
            if part is None:
                return None
            base, index = (part.base, index + part.offset) if isinstance(part, Pointer) else (base, index + part)
        words = state.arrays.get(base, ())
        return words[index] if 0 <= index < len(words) else None

    return value


def _term(term: str) -> Read:
    if term.startswith("#"):
        pointer = Pointer(term, 0)
        return lambda state: pointer
    if term.startswith("%"):
        return _read([term], 0)
    number = int(term.removeprefix("$"), 0)
    return lambda state: number


def _guarded(dest: str, value: Read, predicate: tuple[bool, str] | None) -> Step:
    if predicate is None:

        def step(state: State) -> None:
            state.scalars[dest] = value(state)

        return step

    def guarded(state: State) -> None:
        held = holds(state, predicate)
        if held is None:
            state.scalars[dest] = None
        elif held:
            state.scalars[dest] = value(state)

    return guarded


def _store(op: Op) -> Step | None:
    slot = _slot(op.text)
    if slot is None:
        return None  # to an address in a register: never one of the constant slots, which the compiler keeps to itself
    value = _read([op.text.rpartition("]]")[2].rpartition(",")[2].strip()], 0)
    predicate = op.predicate

    def step(state: State) -> None:
        held = True if predicate is None else holds(state, predicate)
        if held is None:
            state.memory[slot] = None
        elif held:
            state.memory[slot] = value(state)

    return step


def _divide(op: Op, first: Read, second: Read) -> Step:
    """Its results wait to be popped one by one: quotient and remainder, or that one alone which the op is marked with."""
    kept = slice(1, 2) if "kRem" in op.comment else slice(0, 1) if re.search(r"kDiv\b", op.comment) else slice(0, 2)

    def step(state: State) -> None:
        a, b = first(state), second(state)
        results: list[Value] = [None, None]
        if isinstance(a, int) and isinstance(b, int) and b:
            results = list(divmod(a & _MASK, b & _MASK))
        state.fifo.extend(results[kept])

    return step
