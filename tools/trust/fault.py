"""A fault found by a check: where it is, which check found it, what is wrong and what to do instead."""

import dataclasses
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Fault:
    path: str  # relative to the repository's root, with /
    line: int  # 0: the whole file, or no file
    check: str
    what: str
    do: str  # what an honest contributor does instead

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}: " if self.line else f"{self.path}: " if self.path else ""
        return f"{place}[{self.check}] {self.what}\n    {self.do}"


def unique(faults: Iterable[Fault]) -> list[Fault]:
    """Sorted, each once."""
    return sorted(set(faults))


def render(faults: Sequence[Fault], checks: Sequence[str]) -> str:
    names = ", ".join(checks)
    if not faults:
        return f"{names}: no faults"
    return "\n".join([*map(str, faults), f"{names}: {len(faults)} fault{'s' if len(faults) > 1 else ''}"])
