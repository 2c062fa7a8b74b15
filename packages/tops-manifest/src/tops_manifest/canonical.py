"""The one way to write a contract down for hashing: equal for two spellings of the same contract, different for two contracts.

    contract_digest("rms_norm")  # 64 hex digits of sha256

Spacing, comments, documentation strings, hints, and the order of keys and of sets do not count; the order of inputs and of outputs
does. The version does not count either: it is what must rise when the digest changes. Kernels may import this module: it knows
neither costs nor workload rows (those digests are in `tops_manifest.digest`).
"""

import functools
import hashlib
import json

from tops_manifest import contract, model
from tops_manifest.model import DtypeVar, Op, Param, ParamValue, With


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


def contract_digest_of(op: Op) -> str:
    """Of a contract that may come from any file."""
    return digest(contract_data(op))


def contract_data(op: Op) -> dict[str, object]:
    """What a contract says, as plain data."""
    return {
        "schema": contract.SCHEMA,
        "name": op.name,
        "dtypes": {var.name: _dtype_data(var) for var in op.dtypes},
        "inputs": [
            {
                "name": spec.name,
                "shapes": [model.shape_text(shape) for shape in spec.shapes],
                "dtype": spec.dtype,
                "optional": spec.optional,
                "domain": spec.domain,
                **_with_data(spec.with_),
                **({} if spec.rises is None else {"rises": spec.rises}),
                **({} if spec.indexes is None else {"indexes": spec.indexes}),
                **({"only": sorted(spec.only)} if spec.only else {}),
            }
            for spec in op.inputs
        ],
        "outputs": [
            {
                "name": spec.name,
                "shape": model.shape_text(spec.shape),
                "dtype": spec.dtype,
                "dtype_param": spec.dtype_param,
                **_with_data(spec.with_),
            }
            for spec in op.outputs
        ],
        "params": {spec.name: _param_data(spec) for spec in op.params},
        "where": sorted({canonical_json(condition.expr.data()) for condition in op.where}),
        "vjp": sorted(op.vjp),
        "vmap": op.vmap,
        "shard_free": sorted(op.shard_free),
    }


def _with_data(with_: With | None) -> dict[str, object]:
    """No key where there is nothing: a key that the grammar gains must not change the digest of a contract without it."""
    return {} if with_ is None else {"with": {with_.input: model.shape_text(with_.shape)}}


def _dtype_data(var: DtypeVar) -> dict[str, object]:
    if var.source is None:
        return {"choices": sorted(var.choices)}
    return {"of": var.source, "map": dict(var.mapping)}


def _param_data(spec: Param) -> dict[str, object]:
    return {
        "type": spec.type,
        "default": spec.default if spec.default_expr is None else {"expression": spec.default_expr.data()},
        "choices": sorted(spec.choices, key=_order),
        "optional": spec.optional,
    }


def _order(value: ParamValue) -> str:
    return json.dumps(value)
