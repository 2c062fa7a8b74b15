"""The useful work of an op, whatever the algorithm: operations by unit, and bytes that must move once."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path

from tops_manifest import contract, model
from tops_manifest._reader import Reader, read_toml
from tops_manifest.bind import ArraySpec, Binding
from tops_manifest.expr import Expr
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
        cost = self.fwd if which == "fwd" else self.vjp
        if cost is None:
            raise KeyError(f"no [cost.{which}] in the manifest")
        return cost

    def flops(self, which: Pass, binding: Binding) -> dict[str, float]:
        """Operations by unit for one call."""
        env = binding.environment()
        return {unit: float(expr.number(env)) for unit, expr in self.of(which).flops}

    def bytes(self, which: Pass, binding: Binding, inputs: Mapping[str, ArraySpec]) -> int:
        """Bytes one call must move. `inputs`: the present ones."""
        expr = self.of(which).bytes
        if expr is not None:
            return int(expr.number(binding.environment()))
        return io_bytes(which, binding, inputs)


def size_bytes(array: ArraySpec) -> int:
    return math.ceil(math.prod(array.shape) * model.BITS[array.dtype] / 8)


def io_bytes(which: Pass, binding: Binding, inputs: Mapping[str, ArraySpec]) -> int:
    """Forward: inputs + outputs. vjp: inputs + cotangents of the outputs + gradients of the inputs it is differentiable in."""
    total = sum(size_bytes(array) for array in inputs.values()) + sum(
        size_bytes(array) for array in binding.outputs().values()
    )
    if which == "vjp":
        total += sum(size_bytes(array) for name, array in inputs.items() if name in binding.op.vjp)
    return total


@functools.cache
def cost(name: str) -> Cost:
    """The packaged cost formulas of one op."""
    path = contract.ops_folder() / f"{name}.toml"
    return from_table(read_toml(path, contract.file_name(path)), contract.op(name), path)


def from_table(table: dict[str, object], op: Op, path: Path) -> Cost:
    """Reads [cost]. Raises ManifestError with every fault of this part."""
    top = Reader(contract.file_name(path), table)
    at = top.sub("cost")
    at.known(("flops", "bytes", "vjp"))
    fwd = _pass_cost(at, op)
    backward = at.sub("vjp", required=bool(op.vjp))
    backward.known(("flops", "bytes"))
    vjp = _pass_cost(backward, op) if op.vjp else None
    top.raise_faults()
    return Cost(fwd, vjp)


def _pass_cost(at: Reader, op: Op) -> PassCost:
    names = contract.expression_names(op.inputs, op.params, op.dtypes)
    units = at.sub("flops")
    units.known(UNITS)
    flops = []
    for unit, text in units.table.items():
        expr = units.expression(unit, text, names)
        if expr is not None:
            flops.append((unit, expr))
    text = at.table.get("bytes", "io")
    return PassCost(tuple(flops), None if text == "io" else at.expression("bytes", text, names))
