"""The useful work of an op, whatever the algorithm: operations by unit, and bytes that must move once."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from tops_manifest import contract, model
from tops_manifest._reader import MISSING, Reader, read_toml
from tops_manifest.bind import ArraySpec, Binding
from tops_manifest.expr import Expr, ExpressionError, Value
from tops_manifest.model import Op, Pass

UNITS = (
    "mxu",
    "vpu",
    "eup",
)  # matrix unit, vector unit, transcendentals; on other machines: matmul, elementwise, special


@dataclasses.dataclass(frozen=True, slots=True)
class PassCost:
    """Cost of one pass. `bytes` None means "io": what goes in and what comes out, once each."""

    flops: tuple[tuple[str, Expr], ...]
    bytes: Expr | None


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    fwd: PassCost
    vjp: PassCost | None

    def of(self, which: Pass) -> PassCost:
        """The formulas of one pass. Raises KeyError where the op has no such pass."""
        cost = self.fwd if which == "fwd" else self.vjp
        if cost is None:
            raise KeyError(f"no [cost.{which}] in the manifest")
        return cost

    def flops(self, which: Pass, binding: Binding) -> dict[str, float]:
        """Operations by unit for one call. Raises ExpressionError where a formula has no value."""
        env = _environment(binding)
        return {unit: float(expr.number(env)) for unit, expr in self.of(which).flops}

    def bytes(self, which: Pass, binding: Binding, inputs: Mapping[str, ArraySpec]) -> int:
        """Bytes one call must move. `inputs`: the present ones."""
        expr = self.of(which).bytes
        if expr is not None:
            return int(expr.number(_environment(binding)))
        return io_bytes(which, binding, inputs)


def _environment(binding: Binding) -> Mapping[str, Value]:
    """A dimension that only an optional input has counts as 0 where that input is not given."""
    return {**dict.fromkeys(binding.op.variadic, 0), **binding.environment()}


def size_bytes(array: ArraySpec) -> int:
    """Bytes of one array in memory, 4-bit values packed."""
    return math.ceil(math.prod(array.shape) * model.BITS[array.dtype] / 8)


def io_bytes(which: Pass, binding: Binding, inputs: Mapping[str, ArraySpec]) -> int:
    """Forward: inputs + outputs. vjp: inputs + cotangents of the outputs + gradients of the inputs it is differentiable in."""
    total = sum(size_bytes(array) for array in inputs.values()) + sum(
        size_bytes(array) for array in binding.outputs().values()
    )
    if which == "vjp":
        total += sum(size_bytes(array) for name, array in inputs.items() if name in binding.op.vjp)
    return total


class Call(Protocol):
    """What a formula is tried on: `tops_manifest.workloads.Case`, which this module must not import."""

    @property
    def label(self) -> str: ...
    @property
    def passes(self) -> tuple[Pass, ...]: ...
    def binding(self) -> Binding: ...


@functools.cache
def cost(name: str) -> Cost:
    """The packaged cost formulas of one op. Raises KeyError for an unknown op, ManifestError for a bad file."""
    op = contract.op(name)
    path = contract.ops_folder() / f"{name}.toml"
    return from_table(read_toml(path, contract.file_name(path)), op, path)


def from_table(table: Mapping[str, object], op: Op, path: Path) -> Cost:
    """Reads [cost]. Raises ManifestError with every fault of this part."""
    top = Reader(contract.file_name(path), table)
    result = read(top, op)
    top.raise_faults()
    return result


def read(top: Reader, op: Op) -> Cost:
    """Reads [cost] and notes every fault in `top`; what it returns is sound where there are none."""
    at = top.sub("cost")
    at.known(("flops", "bytes", "vjp"))
    fwd = _pass_cost(at, op)
    if not op.vjp:
        if "vjp" in at.table:
            at.fault("vjp", at.table["vjp"], "nothing: contract.vjp says it is differentiable in no input")
        return Cost(fwd, None)
    backward = at.sub("vjp")
    backward.known(("flops", "bytes"))
    return Cost(fwd, _pass_cost(backward, op) if "vjp" in at.table else None)


def _pass_cost(at: Reader, op: Op) -> PassCost:
    names = contract.expression_names(op.inputs, op.params, op.dtypes)
    units = at.sub("flops") if at.table else Reader(at.file, {}, at.at, at.faults)  # no table: noted already
    units.known(UNITS)
    flops = []
    for unit, text in units.table.items():
        expr = units.expression(unit, text, names) if unit in UNITS else None
        if expr is not None:
            flops.append((unit, expr))
    if "flops" in at.table and not units.table:
        at.fault("flops", at.table["flops"] or MISSING, f"a formula for at least one of {', '.join(UNITS)}")
    text = at.table.get("bytes", "io")
    return PassCost(tuple(flops), None if text == "io" else at.expression("bytes", text, names))


def check_cases(top: Reader, formulas: Cost, cases: Iterable[Call]) -> None:
    """Notes formulas that have no value, or one below 0, at a case and pass of the op's own rows."""
    noted: set[str] = set()
    for case in cases:
        binding = case.binding()
        for which in case.passes:
            at = "cost" if which == "fwd" else f"cost.{which}"
            named = [(f"{at}.flops.{unit}", expr) for unit, expr in formulas.of(which).flops]
            bytes_expr = formulas.of(which).bytes
            if bytes_expr is not None:
                named.append((f"{at}.bytes", bytes_expr))
            for key, expr in named:
                try:
                    fault = "" if expr.number(_environment(binding)) >= 0 else "it is below 0"
                except ExpressionError as error:
                    fault = str(error)
                if fault and key not in noted:
                    noted.add(key)
                    top.fault(key, expr.text, f"a value from 0 for {case.label}: {fault}")
