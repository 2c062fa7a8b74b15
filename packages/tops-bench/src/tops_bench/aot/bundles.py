"""Reads a `final_bundles` dump: one VLIW bundle a line, with its control keys, loop depth, ops and source lines.

     0x50   : > { %242 = sbr.rel (%p21168_p8) /* loc("f.py":29:3 to :33) */ target = $region40  ;;  %v1_v0 = vld [vmem:[#allocation2]] } /* Start region 1 */

The format is libtpu's own and undocumented. A line that should be a bundle and is not raises DumpError.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence

_LINE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s+((?:[A-Z]{2}\s*)*):[\s>]*\{(.*)$")
_DEPTH = re.compile(r":\s*((?:>\s*)*)\{")
_LOC = re.compile(r'loc\("([^"]*)":(\d+):(\d+)[^)]*\)')
_NAME = re.compile(r"%([a-z]+)\d*_([a-z]+\d+)")
_OP = re.compile(r"^(?:%(?P<dest>[A-Za-z0-9_]+)\s*=\s*)?(?P<mnemonic>[A-Za-z_][\w.]*)(?P<rest>.*)$", re.DOTALL)
_PREDICATE = re.compile(r"^\s*(?:\[thread:\$\d+\]\s*)?\((!?)%(\w+)\)")
_LATE_PREDICATE = re.compile(r"\((!?)%(p\w+)\)\s*(?:,|$|target)")
_START = re.compile(r"Start(?:/End empty)? region (\d+)")
_TARGET = re.compile(r"target = \$region(\d+)")
_MARK = re.compile(r"/\*|[{}]")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


class DumpError(Exception):
    """A dump that is missing, cut short or not in the format this reads."""


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """One op of a bundle. `text` is without comments; `dest` and registers are physical: "s24", "p7", "v3"."""

    dest: str
    mnemonic: str
    text: str
    predicate: tuple[bool, str] | None = None  # (negated, register)
    loc: tuple[str, int] | None = None  # file, line
    comment: str = ""  # of a DMA: the whole text, as its operands are named in comments


@dataclasses.dataclass(frozen=True, slots=True)
class Bundle:
    ops: tuple[Op, ...]
    depth: int  # loops around it
    regions: tuple[int, ...]  # regions that start here: what a branch names
    key: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """A whole program: bundles in address order, and what its entry says of the operands."""

    name: str
    bundles: tuple[Bundle, ...]

    def region_starts(self) -> dict[int, int]:
        return {region: at for at, bundle in enumerate(self.bundles) for region in bundle.regions}


def register(name: str) -> str:
    """ "%s24584_s23" or "s24584_s23" -> "s23"."""
    return name.rpartition("_")[2] if "_" in name else name.removeprefix("%")


def parse(text: str, name: str = "") -> Listing:
    """Raises DumpError where `text` holds no bundle or a broken one."""
    bundles: list[Bundle] = []
    for number, line in enumerate(_joined(text), 1):
        match = _LINE.match(line)
        if not match:
            continue
        if int(match.group(1), 16) != len(bundles):
            raise DumpError(
                f"{name}: line {number} has address {match.group(1)}; expected {len(bundles):#x}: lines are missing"
            )
        depth = _DEPTH.search(line)
        body, closed, tail = _split_body(match.group(3))
        if not closed:
            raise DumpError(f"{name}: bundle {match.group(1)} does not end: the dump is cut short")
        bundles.append(
            Bundle(
                ops=tuple(_op(part) for part in _ops(body)),
                depth=depth.group(1).count(">") if depth else 0,
                regions=tuple(int(region) for region in _START.findall(tail)),
                key=match.group(2).strip(),
            )
        )
    if not bundles:
        raise DumpError(
            f"{name}: no bundle found. Expected lines like `0x1 : {{ ... }}`: another libtpu may write another format"
        )
    return Listing(name, tuple(bundles))


def _joined(text: str) -> Iterator[str]:
    """Lines; an op's comment may hold a line break, and the rest then belongs to the bundle before."""
    held = ""
    for line in text.splitlines():
        if _LINE.match(line):
            if held:
                yield held
            held = line
        elif held:
            held += " " + line
        else:
            yield line
    if held:
        yield held


def _split_body(text: str) -> tuple[str, bool, str]:
    """What is between the braces, whether they close, and what comes after. Comments may hold braces."""
    depth, end_of_comment = 1, 0
    for match in _MARK.finditer(text):
        at, mark = match.start(), match.group()
        if at < end_of_comment:
            continue
        if mark == "/*":
            end_of_comment = text.find("*/", at) + 2
            if end_of_comment < 2:
                break
        elif mark == "{":
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return text[:at], True, text[at + 1 :]
    return text, False, ""


def _ops(body: str) -> Sequence[str]:
    return [part for part in (piece.strip() for piece in body.split(" ;; ")) if part]


def _op(text: str) -> Op:
    comments = " ".join(_COMMENT.findall(text)) if "/*" in text else ""
    plain = _COMMENT.sub("", text).strip() if comments else text
    match = _OP.match(plain)
    if not match:
        return Op("", "", plain, comment=comments)
    mnemonic, rest = match.group("mnemonic"), match.group("rest")
    predicate = _PREDICATE.match(rest) or _LATE_PREDICATE.search(rest)
    loc = _LOC.search(comments)
    dest = match.group("dest") or ""
    return Op(
        dest=register(dest) if "_" in dest else "",
        mnemonic=mnemonic,
        text=plain,
        predicate=(predicate.group(1) == "!", register(predicate.group(2))) if predicate else None,
        loc=(loc.group(1), int(loc.group(2))) if loc else None,
        comment=text if mnemonic.startswith("dma.") else comments,
    )


def branch_target(op: Op) -> int | None:
    """The region that a branch goes to."""
    match = _TARGET.search(op.text)
    return int(match.group(1)) if match else None


@dataclasses.dataclass(frozen=True, slots=True)
class Utilization:
    """Slots used by each bundle: `rows[bundle][slot]`."""

    slots: tuple[str, ...]
    capacity: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]

    def column(self, slot: str) -> tuple[int, ...]:
        at = self.slots.index(slot)
        return tuple(row[at] for row in self.rows)


def parse_utilization(text: str, name: str = "") -> Utilization:
    """Reads `final_hlo-static-per-bundle-utilization`. Raises DumpError."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    try:
        head = next(at for at, line in enumerate(lines) if line.startswith("== CAP"))
        slots = tuple(part.strip() for part in lines[head + 1].split(","))
        capacity = tuple(int(part) for part in lines[head + 2].split())
        rows = tuple(tuple(int(part) for part in line.split()) for line in lines[head + 4 :])
    except (StopIteration, IndexError, ValueError) as error:
        raise DumpError(f"{name}: not a table of slots and bundles ({error or 'no header'})") from None
    if len(capacity) != len(slots) or any(len(row) != len(slots) for row in rows):
        raise DumpError(f"{name}: rows of another length than the {len(slots)} slots named")
    return Utilization(slots, capacity, rows)
