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
    anywhere: bool = (
        False  # a line for its file permits it in any function: an import alone does nothing, each use is a finding
    )

    def fault(self) -> Fault:
        detail = f" ({self.detail})" if self.detail else ""
        return Fault(self.path, self.line, self.kind.check, f"{self.construct}{detail} {self.kind.why}", self.kind.do)
