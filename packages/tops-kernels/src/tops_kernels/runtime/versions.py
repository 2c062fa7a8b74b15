"""Which versions are installed, and whether one lies in a range: as much of it as tuning and the blocklist need."""

import functools
import re
from collections.abc import Callable, Mapping

_CLAUSE = re.compile(r"(==|!=|<=|>=|<|>)\s*([0-9]+(?:\.[0-9]+){0,7})")
_COMPARE: Mapping[str, Callable[[int], bool]] = {
    "==": lambda order: order == 0,
    "!=": lambda order: order != 0,
    "<=": lambda order: order <= 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    ">": lambda order: order > 0,
}


@functools.lru_cache(maxsize=64)
def version(package: str) -> str:
    """What is installed; "" where nothing is."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def check_range(text: str) -> None:
    """Raises ValueError for what `in_range` cannot read."""
    clauses = [clause.strip() for clause in text.split(",")]
    for clause in clauses:
        if not _CLAUSE.fullmatch(clause):
            raise ValueError(f'{clause!r} is no version range; expected clauses like ">=0.10,<0.12"')


def in_range(found: str, text: str) -> bool:
    """Whether a version fulfils every clause: dotted numbers, short ones filled up with zeros. A suffix (rc1, +local) is left out."""
    numbers = [int(part) for part in re.match(r"[0-9.]*", found).group().split(".") if part]  # type: ignore[union-attr]  # it always matches
    for operator, wanted in _CLAUSE.findall(text):
        other = [int(part) for part in wanted.split(".")]
        width = max(len(numbers), len(other))
        here, there = (side + [0] * (width - len(side)) for side in (numbers, other))
        if not _COMPARE[operator]((here > there) - (here < there)):
            return False
    return True
