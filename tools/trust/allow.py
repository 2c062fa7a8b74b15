"""The allowlist: which banned construct may stand where, a line each, with its reason.

    packages/tops-kernels/src/tops_kernels/runtime/cache.py::load | .read_bytes, .unlink | reads an artifact under workspace_dir()
    packages/tops-bench/src/tops_bench/aot/run.py::compile | subprocess | one compiler a process | pending 2027-01-31

The file, then the function or class (left out: the module's top), the constructs as the faults name them, the reason. No line can
permit a crossing into a stage that is not seen. A line that permits nothing is a fault itself, save until the day of its
`pending`: the line comes first, in a change of the tools, and the code after it.
"""

import dataclasses
import datetime
from collections.abc import Iterable

from tools.trust.fault import Fault
from tools.trust.finding import Finding

PATH = "tools/trust/allowlist.txt"
_MIN_REASON = 12  # characters: "needed" says nothing
_FORM = "Write `path::function | construct | a reason`, if need be with ` | pending YYYY-MM-DD`; no wildcards."


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    number: int
    path: str
    scope: str
    constructs: tuple[str, ...]
    reason: str
    pending: datetime.date | None

    def permits(self, finding: Finding) -> bool:
        if finding.absolute or self.path != finding.path or finding.construct not in self.constructs:
            return False
        return (
            finding.anywhere
            or finding.scope == self.scope
            or (bool(self.scope) and finding.scope.startswith(f"{self.scope}."))
        )


def read(text: str) -> tuple[list[Line], list[Fault]]:
    lines, faults = [], []
    for number, row in enumerate(text.splitlines(), 1):
        if not row.strip() or row.startswith("#"):
            continue
        line = _line(number, row)
        if line is None:
            faults.append(Fault(PATH, number, "allowlist", f"got {row!r}", _FORM))
        else:
            lines.append(line)
    return lines, faults


def _line(number: int, row: str) -> Line | None:
    parts = [part.strip() for part in row.split(" | ")]
    if len(parts) not in (3, 4) or not all(parts) or len(parts[2]) < _MIN_REASON or "*" in parts[0] + parts[1]:
        return None
    pending = None
    if len(parts) == 4:
        try:
            pending = datetime.date.fromisoformat(parts[3].removeprefix("pending "))
        except ValueError:
            return None
    path, _, scope = parts[0].partition("::")
    return Line(number, path, scope, tuple(part.strip() for part in parts[1].split(",")), parts[2], pending)


def apply(text: str, findings: Iterable[Finding], *, judge_unused: bool = True) -> list[Fault]:
    """The findings that no line permits, and the lines that permit nothing."""
    lines, faults = read(text)
    used = set()
    for finding in findings:
        permitting = [(line.number, finding.construct) for line in lines if line.permits(finding)]
        used.update(permitting)
        if not permitting:
            faults.append(finding.fault())
    today = datetime.date.today()
    for line in lines if judge_unused else ():
        unused = [construct for construct in line.constructs if (line.number, construct) not in used]
        if unused and (line.pending is None or line.pending < today):
            what = f"permits nothing: {line.path}::{line.scope} has no {', '.join(unused)}"
            faults.append(Fault(PATH, line.number, "allowlist", what, "Remove it from the line."))
    return faults
