"""The table of ops in Markdown, made from the manifest: docs/ops.md is this text, and `tops-manifest check` holds it to that."""

from collections.abc import Mapping

from tops_manifest import model
from tops_manifest.cost import PassCost
from tops_manifest.model import DtypeVar, Op
from tops_manifest.signature import signature
from tops_manifest.tree import Entry
from tops_manifest.workloads import Row

_HEAD = """\
# Ops

<!-- Made by `tops-manifest table --write` from packages/tops-manifest/src/tops_manifest/ops; edit those files. -->
"""


def markdown(entries: Mapping[str, Entry]) -> str:
    """The whole page: one line an op, then a section each."""
    lines = [_HEAD, *summary(entries), ""]
    for name in sorted(entries):
        lines += _section(entries[name])
    return "\n".join(lines).rstrip() + "\n"


def summary(entries: Mapping[str, Entry]) -> list[str]:
    """One line an op."""
    lines = ["| op | dtypes | differentiable in | implementations | status |", "|---|---|---|---|---|"]
    for name in sorted(entries):
        op = entries[name].op
        cells = [
            f"[`{name}`](#{name})",
            ", ".join(op.dtypes[0].choices if op.dtypes else dict.fromkeys(spec.dtype for spec in op.inputs)),
            ", ".join(op.vjp) or "nothing",
            ", ".join(op.kernel_map),
            op.status,
        ]
        lines.append(_line(cells))
    return lines


def call_text(op: Op) -> str:
    """matmul(a, b, bias=None, *, activation='none', out_dtype=None, backend=None, interpret=False) -> y"""
    return f"{op.name}{signature(op)} -> {', '.join(spec.name for spec in op.outputs)}"


def shapes_text(shapes: tuple[model.Shape, ...], with_: model.With | None = None) -> str:
    """[K, N] or [*B, K, N], and behind it what an optional input makes of it: [B, H, K, V]; [N, H, K, V] with cu_seqlens"""
    text = " or ".join(model.shape_text(shape) for shape in shapes)
    return text if with_ is None else f"{text}; {model.shape_text(with_.shape)} with {with_.input}"


def input_notes(spec: model.Input) -> list[str]:
    """What an input's line says beside its shape and dtype."""
    notes = ["optional"] if spec.optional else []
    notes += [f"in {spec.domain}"] if spec.domain else []
    notes += [f"rises from 0 to at most {spec.rises}"] if spec.rises else []
    notes += [f"each of 0 to {spec.indexes} - 1 at most once, or -1"] if spec.indexes else []
    notes += [f"{', '.join(spec.only)} alone"] if spec.only else []
    return notes + ([spec.doc] if spec.doc else [])


def dtype_text(var: DtypeVar) -> str:
    """What a dtype variable may be."""
    if var.source is None:
        return " or ".join(var.choices)
    other = [f"{to} where {var.source} is {dtype}" for dtype, to in var.mapping if to != dtype]
    return f"as {var.source}" + (f", but {', '.join(other)}" if other else "")


def default_text(param: model.Param) -> str:
    """A default as the TOML has it."""
    return param.default_expr.text if param.default_expr is not None else repr(param.default)


def cost_text(cost: PassCost) -> str:
    """mxu 2*B*M*N*K; bytes io"""
    parts = [f"{unit} {expr.text}" for unit, expr in cost.flops]
    return "; ".join([*parts, f"bytes {'io' if cost.bytes is None else cost.bytes.text}"])


def dims_text(row: Row) -> str:
    """B=[8] M=1024 K=768"""
    return " ".join(f"{name}={list(size) if isinstance(size, tuple) else size}" for name, size in row.dims.items())


def _section(entry: Entry) -> list[str]:
    op = entry.op
    lines = [f"## {op.name}", "", "```text", call_text(op), "", " ".join(op.doc.split()), "```", ""]
    lines += [f"Source: {_cell(op.ref)}", ""]
    lines += ["| | shape | dtype | |", "|---|---|---|---|"]
    for spec in op.inputs:
        shapes = shapes_text(spec.shapes, spec.with_)
        lines.append(_line([f"`{spec.name}`", f"`{shapes}`", spec.dtype, "; ".join(input_notes(spec))]))
    for out in op.outputs:
        dtype = out.dtype if out.dtype_param is None else f"`{out.dtype_param}`, else {out.dtype}"
        lines.append(_line([f"-> `{out.name}`", f"`{shapes_text((out.shape,), out.with_)}`", dtype, out.doc]))
    lines.append("")
    if op.params:
        lines += ["| parameter | type | default | |", "|---|---|---|---|"]
        for param in op.params:
            choices = f"one of {', '.join(map(str, param.choices))}" if param.choices else ""
            notes_text = "; ".join(filter(None, [choices, param.doc]))
            lines.append(_line([f"`{param.name}`", param.type, f"`{default_text(param)}`", notes_text]))
        lines.append("")
    lines += [f"- {var.name}: {dtype_text(var)}" for var in op.dtypes]
    lines += [f"- where `{condition.expr.text}`" for condition in op.where]
    lines += [f"- shards freely along {', '.join(op.shard_free)}"] if op.shard_free else []
    lines += [f"- useful work forward: `{cost_text(entry.cost.fwd)}`"]
    lines += [f"- useful work backward: `{cost_text(entry.cost.vjp)}`"] if entry.cost.vjp is not None else []
    lines.append("")
    if entry.rows:
        lines += ["| workload | dimensions | passes | |", "|---|---|---|---|"]
        lines += [_line([row.name, dims_text(row), " ".join(row.passes), row.doc]) for row in entry.rows]
        lines.append("")
    return lines


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    """One line, and no bar that would end a cell."""
    return " ".join(text.split()).replace("|", "\\|")
