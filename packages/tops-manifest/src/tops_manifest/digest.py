"""The digests that manifest.lock holds: of a contract, of what is listed beside it, of the workload rows and of the cost formulas.

    contract_digest("rms_norm")  # 64 hex digits of sha256

Kernels must not import this module, which sees costs and rows; the contract's digest alone is `tops_manifest.canonical`.
"""

import dataclasses
import functools

from tops_manifest import contract, cost, workloads
from tops_manifest.canonical import canonical_json, contract_data, contract_digest, contract_digest_of, digest
from tops_manifest.expr import Expr
from tops_manifest.model import Op


@functools.cache
def workloads_digest(name: str) -> str:
    """Of the packaged workload rows. Raises KeyError for an unknown op, ManifestError for a bad file."""
    return workloads_digest_of(workloads.rows(name))


@functools.cache
def cost_digest(name: str) -> str:
    """Of the packaged cost formulas. Raises KeyError for an unknown op, ManifestError for a bad file."""
    return cost_digest_of(cost.cost(name))


def listing_digest_of(op: Op) -> str:
    """Of what is said about an op beside its contract: a new implementation or status changes no call."""
    return digest({"family": op.family, "status": op.status, "kernel_map": sorted(op.kernel_map)})


def workloads_digest_of(rows: tuple[workloads.Row, ...]) -> str:
    """Of rows in any order."""
    return digest({row.name: row_data(row) for row in rows})


def row_data(row: workloads.Row) -> dict[str, object]:
    """What a row says, as plain data."""
    return {
        "dims": {name: list(size) if isinstance(size, tuple) else size for name, size in row.dims.items()},
        "dtypes": {name: sorted(choices) for name, choices in row.dtypes.items()},
        "params": dict(row.params),
        "present": sorted(row.present),
        "alternatives": dict(row.alternatives),
        "pass": list(row.passes),
    }


def cost_digest_of(formulas: cost.Cost) -> str:
    """Of formulas that may come from any file."""
    return digest({"fwd": _pass_data(formulas.fwd), "vjp": formulas.vjp and _pass_data(formulas.vjp)})


def _pass_data(which: cost.PassCost) -> dict[str, object]:
    return {"flops": {unit: expr.data() for unit, expr in which.flops}, "bytes": _data(which.bytes)}


def _data(expr: Expr | None) -> object:
    return "io" if expr is None else {"expression": expr.data()}


@dataclasses.dataclass(frozen=True, slots=True)
class Digests:
    """What manifest.lock holds of one op."""

    version: int
    status: str
    contract: str
    listing: str
    workloads: str
    cost: str


def digests_of(op: Op, formulas: cost.Cost, rows: tuple[workloads.Row, ...]) -> Digests:
    """Of an op that may come from any file."""
    return Digests(
        version=op.version,
        status=op.status,
        contract=contract_digest_of(op),
        listing=listing_digest_of(op),
        workloads=workloads_digest_of(rows),
        cost=cost_digest_of(formulas),
    )


def digests(name: str) -> Digests:
    """Of one packaged op. Raises KeyError for an unknown op, ManifestError for a bad file."""
    return digests_of(contract.op(name), cost.cost(name), workloads.rows(name))


__all__ = [
    "Digests", "canonical_json", "contract_data", "contract_digest", "contract_digest_of", "cost_digest", "cost_digest_of",
    "digest", "digests", "digests_of", "listing_digest_of", "row_data", "workloads_digest", "workloads_digest_of",
]  # fmt: skip
