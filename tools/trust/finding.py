"""What a check found that a line of the allowlist may permit, and of which kind it is."""

import dataclasses

from tools.trust.fault import Fault


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    check: str
    why: str
    do: str
    in_tests: bool = False  # banned in tests folders too


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A banned construct, before the allowlist is asked."""

    path: str
    line: int
    scope: str
    construct: str  # what the allowlist names: "open", ".read_text", "subprocess"
    kind: Kind
    detail: str = ""
    absolute: bool = False  # no allowlist line can permit it
    # A line for its file permits it in any function: an import alone does nothing, and each use is a finding.
    anywhere: bool = False

    def fault(self) -> Fault:
        detail = f" ({self.detail})" if self.detail else ""
        place = f"{self.path}::{self.scope}" if self.scope else self.path
        do = (
            self.kind.do
            if self.absolute
            else f"{self.kind.do}\n    The line would be: {place} | {self.construct} | why"
        )
        return Fault(self.path, self.line, self.kind.check, f"{self.construct}{detail} {self.kind.why}", do)
