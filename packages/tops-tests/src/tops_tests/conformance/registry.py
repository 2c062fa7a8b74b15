"""How a conformance check is declared: a function of a Subject, named as what must hold."""

import dataclasses
from collections.abc import Callable
from typing import Literal

from tops_tests.subject import Subject

Scope = Literal["op", "implementation"]
Body = Callable[[Subject], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """`scope`: once an op, through dispatch; or once an implementation, forced by `backend`."""

    name: str
    scope: Scope
    slow: bool
    doc: str
    body: Body

    def __call__(self, subject: Subject) -> None:
        """Raises ConformanceError, or whatever the subject raises, where it does not hold."""
        self.body(subject)


class NotApplicable(Exception):  # noqa: N818  # no error: the contract leaves this check nothing to do
    """The op's contract leaves nothing to check (it has no gradient, say)."""


CHECKS: list[Check] = []


def check(scope: Scope, *, slow: bool = False) -> Callable[[Body], Check]:
    """Decorator: the function's name is the check's."""

    def declare(body: Body) -> Check:
        declared = Check(body.__name__, scope, slow, (body.__doc__ or "").split("\n")[0], body)
        CHECKS.append(declared)
        return declared

    return declare
