"""`--vary`: the selected rows with other sizes, dtypes or parameters: questions that no workload row asks, such as a length of 131072."""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence

from tops_manifest.model import ParamValue
from tops_manifest.workloads import Case

Choices = Mapping[str, tuple[str, ...]]


def parse(texts: Sequence[str]) -> Choices:
    """["T=128,4096", "X=float32"] -> by name. Raises ValueError for what is not NAME=VALUE[,VALUE...]."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        choices = tuple(dict.fromkeys(value.strip() for value in values.split(",")))
        if not equals or not name.strip() or not all(choices):
            raise ValueError(f"--vary is {text!r}; expected NAME=VALUE[,VALUE...], e.g. T=128,4096")
        if name.strip() in found:
            raise ValueError(f"--vary names {name.strip()} twice; expected all of its values in one")
        found[name.strip()] = choices
    return found


def of(case: Case, choices: Choices) -> Iterator[Case]:
    """Every combination of the choices in place of what the row has. Raises ValueError for a name or value the op does not have."""
    if not choices:
        yield case
        return
    for values in itertools.product(*choices.values()):
        chosen = dict(zip(choices, values, strict=True))
        varied = case
        for name, value in chosen.items():
            varied = _with(varied, name, value)
        named = ",".join(f"{name}={value}" for name, value in chosen.items())
        varied = dataclasses.replace(varied, row=f"{case.row}@{named}")
        varied.binding()  # raises a ValueError or TypeError that names what breaks the contract
        yield varied


def _with(case: Case, name: str, value: str) -> Case:
    if name in case.dims:
        if not value.isdecimal():
            raise ValueError(
                f"--vary {name}={value}: expected a whole number, as {name} is a dimension of {case.op.name}"
            )
        return dataclasses.replace(case, dims={**case.dims, name: int(value)})
    if name in case.op.free_dtypes:
        allowed = case.op.free_dtypes[name]
        if value not in allowed:
            raise ValueError(f"--vary {name}={value}: expected one of {', '.join(allowed)}")
        derived = {var.name: var.derive(value) for var in case.op.dtypes if var.source == name}
        return dataclasses.replace(case, dtypes={**case.dtypes, name: value, **derived})
    if name in {param.name for param in case.op.params}:
        return dataclasses.replace(case, params={**case.params, name: _param(value)})
    optional = [spec.name for spec in case.op.inputs if spec.optional]
    if name in optional:
        if value not in ("given", "none"):
            raise ValueError(f"--vary {name}={value}: expected given or none, as {name} is an optional input")
        wanted = (set(case.present) - {name}) | ({name} if value == "given" else set())
        return dataclasses.replace(case, present=tuple(one for one in optional if one in wanted))
    known = [*case.dims, *case.op.free_dtypes, *(param.name for param in case.op.params), *optional]
    raise ValueError(f"--vary {name}={value}: {case.op.name} has no {name}; it has {', '.join(known)}")


def _param(value: str) -> ParamValue:
    """A parameter as JSON writes it; what JSON does not know is text."""
    try:
        read = json.loads(value)
    except ValueError:
        return value
    return read if isinstance(read, bool | int | float | str) else value
