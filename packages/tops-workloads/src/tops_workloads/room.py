"""How large a row may stay on a CPU: one answer for the stage that checks it and the stage that times it, so that what is
timed there is what was checked."""

import dataclasses

from tops_manifest.model import Pass
from tops_manifest.workloads import Case, cases

QUICK_ROWS = 1  # of an op: the one it is known for comes first in its file


def rows(op: str, *, quick: bool) -> tuple[Case, ...]:
    """Every row of an op at every choice of dtypes; `quick`: its first row alone. Raises KeyError for an op the manifest has not."""
    found = cases(op)
    names = list(dict.fromkeys(case.row for case in found))[: QUICK_ROWS if quick else None]
    return tuple(case for case in found if case.row in names)


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """`size`: of everything that goes in and comes out, in octets. `work`: operations of one call, of all units."""

    size: int
    work: float

    def fit(self, case: Case, which: Pass) -> Case:
        """The case itself where it fits, else the nearest scaled copy (`Case.fit`). Raises ValueError where none fits."""
        return case.fit(self.size, self.work, which)


def cpu_room(*, quick: bool, interpreted: bool = False) -> Room:
    """What a float64 definition on the host can follow in seconds a row; `interpreted`: what an interpreted kernel can."""
    if quick:
        return Room(8 << 20, 3e8 if interpreted else 1e9)
    return Room(64 << 20, 3e9 if interpreted else 3e10)
