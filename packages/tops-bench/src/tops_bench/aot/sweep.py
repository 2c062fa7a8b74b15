"""tops-bench aot OP --sweep: every block configuration of the op's search space, for a chip that is not here."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tops_kernels
from tops_bench import files, output
from tops_bench.aot import matrix, running, subjects, table, targets, toolchain
from tops_bench.aot.matrix import Planned, Row, Selection
from tops_bench.aot.running import Settings

SCHEMA = 1
ORIGIN = "schedule estimate"


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """A configuration and what came of it."""

    config: Any
    row: Row


def run(selection: Selection, settings: Settings, *, write: bool, as_json: bool) -> int:
    """Returns 0, or 1 where a row had no configuration that compiles. Raises LookupError, ToolchainError, files.FileError."""
    failed, report = 0, []
    for one in matrix.plan(selection):
        tried = _try(one, settings)
        front = pareto([entry for entry in tried if entry.row.status == "compiled"])
        failed += not front
        report.append(
            {
                "row": one.key,
                "target": one.target,
                "pareto": [_plain(entry) for entry in front],
                "tried": [_plain(entry) for entry in tried],
            }
        )
        if not as_json:
            _say(one, tried, front)
        if write and front:
            keep(one, front[0])
    if as_json:
        output.say_json(report)
    return 1 if failed else 0


def _try(one: Planned, settings: Settings) -> list[Tried]:
    if one.case is None:
        raise LookupError("--sweep is for ops of the manifest")
    configs = subjects.configurations(one.case, "vjp" if one.which == "vjp" else "fwd", one.contender, one.target)
    if not configs:
        raise LookupError(f"{one.op}: {one.contender} has nothing to configure for {one.which}")
    planned = [dataclasses.replace(one, job={**one.job, "config": index}) for index in range(len(configs))]
    return [Tried(config, row) for config, row in zip(configs, running.rows(planned, settings), strict=True)]


def pareto(tried: Sequence[Tried]) -> list[Tried]:
    """Those that no other beats in both estimated time and VMEM, fastest first."""
    front: list[Tried] = []
    for entry in sorted(tried, key=lambda entry: (entry.row.seconds or 0.0, entry.row.figures["vmem_bytes"])):
        if not front or entry.row.figures["vmem_bytes"] < front[-1].row.figures["vmem_bytes"]:
            front.append(entry)
    return front


def _plain(entry: Tried) -> dict[str, Any]:
    figures = {name: entry.row.figures.get(name) for name in ("seconds", "vmem_bytes", "spills", "cycles", "binds")}
    return {"config": _config(entry.config), "status": entry.row.status, "reason": entry.row.reason, **figures}


def _config(config: Any) -> Mapping[str, Any]:
    return (
        dataclasses.asdict(config)
        if dataclasses.is_dataclass(config) and not isinstance(config, type)
        else {"value": repr(config)}
    )


def _say(one: Planned, tried: Sequence[Tried], front: Sequence[Tried]) -> None:
    output.say(
        f"{one.op} {one.which} {one.label} {one.contender} on {one.target}: {len(tried)} configurations, * = Pareto (time, VMEM)"
    )
    lines = []
    for at, entry in enumerate(tried):
        found = entry.row.figures
        config = " ".join(f"{name}={value}" for name, value in _config(entry.config).items())
        mark = (
            ("*" if entry in front else "")
            + (" heuristic" if at == 0 else "")
            + (" winner" if front and entry is front[0] else "")
        )
        if entry.row.status == "compiled":
            lines.append(
                (
                    config,
                    table.estimate(entry.row),
                    table.size(found["vmem_bytes"]),
                    str(found["spills"]),
                    found["binds"],
                    mark.strip(),
                )
            )
        else:
            lines.append((config, entry.row.status, "", "", entry.row.reason, mark.strip()))
    output.say_table(
        ("configuration", "estimate", "VMEM", "spills", "binds / reason", ""), lines, ("estimate", "VMEM", "spills")
    )


def keep(one: Planned, winner: Tried) -> None:
    """Writes the winner among the chip's tuned configurations, marked with its origin: nothing was measured."""
    path = tops_kernels.workspace_dir() / "tuned" / one.target / f"{one.op}.json"
    try:
        kept = files.read_object(path)
    except files.FileError:
        kept = {"schema": SCHEMA, "op": one.op, "target": one.target, "entries": {}}
    case = one.case
    if case is None:
        return
    entries = dict(kept.get("entries", {}))
    entries[f"{one.contender}|{one.which}|{one.label}"] = {
        "config": dict(_config(winner.config)),
        "inputs": {name: [list(spec.shape), spec.dtype] for name, spec in case.inputs().items()},
        "params": dict(case.params),
        "origin": ORIGIN,
        "seconds": winner.row.seconds,
        "versions": toolchain.versions(targets.target(one.target)),
        "kernel": tops_kernels.source_digest(one.op, one.contender),
    }
    files.write(path, files.dumps({**kept, "entries": entries}))
    output.complain(f"wrote {path}: {one.which} {one.label}")
