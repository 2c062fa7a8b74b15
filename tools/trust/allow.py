"""The allowlist: which banned construct may stand where, a line each, with its reason.

    packages/tops-kernels/src/tops_kernels/runtime/cache.py::load | .read_bytes | reads an artifact under workspace_dir()

The file, then the function or class (left out: the module's top), the construct as the fault names it, the reason. No line can
permit a crossing into a stage that is not seen; a line that permits nothing is a fault itself.
"""

import dataclasses
from collections.abc import Iterable

from tools.trust.fault import Fault
from tools.trust.reach import Finding

PATH = "tools/trust/allowlist.txt"
_MIN_REASON = 12  # characters: "needed" says nothing


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    number: int
    path: str
    scope: str
    construct: str
    reason: str

    def permits(self, finding: Finding) -> bool:
        if finding.absolute or (self.path, self.construct) != (finding.module.path, finding.construct):
            return False
        return finding.scope == self.scope or (bool(self.scope) and finding.scope.startswith(f"{self.scope}."))


def read(text: str) -> tuple[list[Line], list[Fault]]:
    lines, faults = [], []
    for number, row in enumerate(text.splitlines(), 1):
        if not row.strip() or row.startswith("#"):
            continue
        parts = [part.strip() for part in row.split(" | ", 2)]
        if len(parts) != 3 or not all(parts) or len(parts[2]) < _MIN_REASON or "*" in parts[0] + parts[1]:
            faults.append(
                Fault(
                    PATH,
                    number,
                    "allowlist",
                    f"got {row!r}",
                    "Write `path::function | construct | a reason`; no wildcards.",
                )
            )
            continue
        path, _, scope = parts[0].partition("::")
        lines.append(Line(number, path, scope, parts[1], parts[2]))
    return lines, faults


def apply(text: str, findings: Iterable[Finding]) -> list[Fault]:
    """The findings that no line permits, and the lines that permit nothing."""
    lines, faults = read(text)
    used = set()
    for finding in findings:
        line = next((line for line in lines if line.permits(finding)), None)
        if line is None:
            faults.append(finding.fault())
        else:
            used.add(line.number)
    for line in lines:
        if line.number not in used:
            faults.append(
                Fault(
                    PATH,
                    line.number,
                    "allowlist",
                    f"permits nothing: {line.path}::{line.scope} has no {line.construct}",
                    "Remove it.",
                )
            )
    return faults
