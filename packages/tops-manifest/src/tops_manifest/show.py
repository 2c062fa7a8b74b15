"""One op in words, and as plain data for --json."""

import dataclasses

from tops_manifest.canonical import contract_data
from tops_manifest.cost import PassCost
from tops_manifest.digest import row_data
from tops_manifest.signature import signature
from tops_manifest.table import call_text, cost_text, default_text, dims_text, dtype_text, input_notes, shapes_text
from tops_manifest.tree import Entry


def data(entry: Entry) -> dict[str, object]:
    """All that the file says, with expressions as text, and the digests."""
    op = entry.op
    contract = contract_data(op)
    contract["params"] = {
        spec.name: {
            "type": spec.type,
            "default": spec.default if spec.default_expr is None else spec.default_expr.text,
            "choices": list(spec.choices),
            "optional": spec.optional,
        }
        for spec in op.params
    }
    contract["where"] = [condition.expr.text for condition in op.where]
    return {
        "name": op.name,
        "family": op.family,
        "version": op.version,
        "status": op.status,
        "ref": op.ref,
        "doc": op.doc,
        "kernel_map": list(op.kernel_map),
        "signature": f"{op.name}{signature(op)}",
        "contract": contract,
        "cost": {"fwd": _cost(entry.cost.fwd), "vjp": entry.cost.vjp and _cost(entry.cost.vjp)},
        "workloads": [{"name": row.name, "doc": row.doc, **row_data(row)} for row in entry.rows],
        "digests": dataclasses.asdict(entry.digests()),
    }


def _cost(cost: PassCost) -> dict[str, object]:
    return {
        "flops": {unit: expr.text for unit, expr in cost.flops},
        "bytes": "io" if cost.bytes is None else cost.bytes.text,
    }


def text(entry: Entry) -> str:
    """The same for a terminal."""
    op = entry.op
    lines = [call_text(op), f"  {op.doc}", f"  {op.ref}", ""]
    lines.append(f"family {op.family}, version {op.version}, {op.status}, implementations {', '.join(op.kernel_map)}")
    lines.append(f"contract {entry.digests().contract}")
    lines += ["", "inputs"]
    for spec in op.inputs:
        shapes = shapes_text(spec.shapes, spec.with_)
        lines.append(f"  {spec.name:14} {shapes:24} {spec.dtype:10} {'; '.join(input_notes(spec))}".rstrip())
    lines.append("outputs")
    for out in op.outputs:
        dtype = f"{out.dtype_param} or {out.dtype}" if out.dtype_param else out.dtype
        lines.append(f"  {out.name:14} {shapes_text((out.shape,), out.with_):24} {dtype:10} {out.doc}".rstrip())
    lines.append("dtypes")
    lines += [f"  {var.name:14} {dtype_text(var)}" for var in op.dtypes]
    lines.append("params")
    for param in op.params:
        choices = f"of {', '.join(map(str, param.choices))}; " if param.choices else ""
        lines.append(f"  {param.name:14} {param.type} = {default_text(param)}  {choices}{param.doc}".rstrip())
    lines.append("contract")
    lines += [f"  where          {condition.expr.text}" for condition in op.where]
    lines.append(f"  vjp            {', '.join(op.vjp) or 'nothing'}")
    lines.append(f"  vmap           {str(op.vmap).lower()}")
    lines.append(f"  shard_free     {', '.join(op.shard_free) or 'nothing'}")
    lines.append("useful work")
    lines.append(f"  fwd            {cost_text(entry.cost.fwd)}")
    lines += [f"  vjp            {cost_text(entry.cost.vjp)}"] if entry.cost.vjp is not None else []
    lines.append("workloads")
    for row in entry.rows:
        dtypes = " ".join(f"{name}={','.join(choices)}" for name, choices in row.dtypes.items())
        lines.append(f"  {row.name:32} {' '.join(row.passes):8} {dims_text(row)}  {dtypes}")
    return "\n".join(lines)
