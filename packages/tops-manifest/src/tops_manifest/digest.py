"""Canonical digests of what a manifest file means: equal for two spellings of the same contract, different for two contracts.

    contract_digest("rms_norm")  # 64 hex digits of sha256

Order of keys, spacing, comments and documentation strings do not count; the order of inputs, outputs and parameters does. The
version does not count either: it is what must rise when the digest changes.
"""

import dataclasses
import functools
import hashlib
import json

from tops_manifest import contract, cost, model, workloads
from tops_manifest.expr import Expr
from tops_manifest.model import Op


def canonical_json(value: object) -> str:
    """The one JSON text of a value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: object) -> str:
    """sha256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


@functools.cache
def contract_digest(name: str) -> str:
    """Of the packaged contract. Raises KeyError for an unknown op, ManifestError for a bad file."""
    return contract_digest_of(contract.op(name))


@functools.cache
def workloads_digest(name: str) -> str:
    """Of the packaged workload rows."""
    return workloads_digest_of(workloads.rows(name))


@functools.cache
def cost_digest(name: str) -> str:
    """Of the packaged cost formulas."""
    return cost_digest_of(cost.cost(name))


def contract_digest_of(op: Op) -> str:
    """Of a contract that may come from any file."""
    return digest({"schema": 1, **contract_data(op)})


def contract_data(op: Op) -> dict[str, object]:
    """What a contract says, as plain data: what the digest covers and what `tops-manifest show --json` prints."""
    return {
        "name": op.name,
        "dtypes": [
            {
                "name": var.name,
                "choices": list(var.choices),
                "of": var.source,
                "map": [list(pair) for pair in var.mapping],
            }
            for var in op.dtypes
        ],
        "inputs": [
            {
                "name": spec.name,
                "shapes": [model.shape_text(shape) for shape in spec.shapes],
                "dtype": spec.dtype,
                "optional": spec.optional,
                "domain": None if spec.domain is None else "".join(spec.domain.split()),
            }
            for spec in op.inputs
        ],
        "outputs": [
            {
                "name": spec.name,
                "shape": model.shape_text(spec.shape),
                "dtype": spec.dtype,
                "dtype_param": spec.dtype_param,
            }
            for spec in op.outputs
        ],
        "params": [
            {
                "name": spec.name,
                "type": spec.type,
                "default": spec.default if spec.default_expr is None else {"expr": spec.default_expr.text},
                "choices": list(spec.choices),
                "optional": spec.optional,
            }
            for spec in op.params
        ],
        "where": sorted(condition.expr.text for condition in op.where),
        "vjp": sorted(op.vjp),
        "vmap": op.vmap,
        "shard_free": sorted(op.shard_free),
    }


def listing_digest_of(op: Op) -> str:
    """Of what is said about an op beside its contract: a new implementation or status changes no call."""
    return digest({"family": op.family, "status": op.status, "kernel_map": sorted(op.kernel_map)})


def workloads_digest_of(rows: tuple[workloads.Row, ...]) -> str:
    return digest(
        [
            {
                "name": row.name,
                "dims": {name: list(size) if isinstance(size, tuple) else size for name, size in row.dims.items()},
                "dtypes": {name: list(choices) for name, choices in row.dtypes.items()},
                "params": dict(row.params),
                "present": sorted(row.present),
                "alternatives": dict(row.alternatives),
                "pass": list(row.passes),
            }
            for row in sorted(rows, key=lambda row: row.name)
        ]
    )


def cost_digest_of(formulas: cost.Cost) -> str:
    def of(which: cost.PassCost | None) -> object:
        if which is None:
            return None
        return {"flops": {unit: expr.text for unit, expr in which.flops}, "bytes": _text(which.bytes)}

    return digest({"fwd": of(formulas.fwd), "vjp": of(formulas.vjp)})


def _text(expr: Expr | None) -> str:
    return "io" if expr is None else expr.text


@dataclasses.dataclass(frozen=True, slots=True)
class Digests:
    """The digests of one op, as manifest.lock holds them."""

    version: int
    contract: str
    listing: str
    workloads: str
    cost: str


def digests(name: str) -> Digests:
    """Of one packaged op."""
    op = contract.op(name)
    return Digests(op.version, contract_digest(name), listing_digest_of(op), workloads_digest(name), cost_digest(name))
