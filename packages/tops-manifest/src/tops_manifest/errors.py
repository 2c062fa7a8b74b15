"""What is wrong with a manifest file, and what is wrong with a call: two kinds of fault, both told in one sentence each."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault of one manifest file."""

    file: str  # as the reader knows it: "ops/gla.toml"
    key: str  # dotted: "outputs.o.shape"
    value: str  # as it stands in the file
    expected: str

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: got {self.value}; expected {self.expected}"


class ManifestError(ValueError):
    """One or more manifest files are at fault; `faults` has all of them."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.faults = faults
        super().__init__("\n".join(str(fault) for fault in faults))


class _CallError(Exception):
    """What a call did that its contract does not allow. Names op, argument, got and expected; `hint` says what to do."""

    def __init__(self, op: str, argument: str, got: str, expected: str, hint: str = "") -> None:
        self.op, self.argument, self.got, self.expected, self.hint = op, argument, got, expected, hint
        tail = f". {hint}" if hint else ""
        super().__init__(f"{op}: {argument} {got}; expected {expected}{tail}")


class ContractValueError(_CallError, ValueError):
    """A shape, a dtype or a value outside the contract."""


class ContractTypeError(_CallError, TypeError):
    """An argument of a type the contract has no place for."""
