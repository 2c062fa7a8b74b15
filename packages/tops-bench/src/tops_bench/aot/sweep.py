"""tops-bench aot OP --sweep: every block configuration of the op's search space, for a chip that is not here."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tops_kernels
from tops_bench import files, output
from tops_bench.aot import matrix, running, subjects, table, targets, toolchain
from tops_bench.aot.matrix import Planned, Row, Selection
from tops_bench.aot.running import Settings

ORIGIN = "schedule estimate"


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """A configuration and what came of it."""

    config: Any
    row: Row


def workspace_folder() -> Path:
    """Where winners go that are for nobody's package."""
    return tops_kernels.workspace_dir() / "tune"


def run(selection: Selection, settings: Settings, *, write: Path | None, as_json: bool) -> int:
    """Returns 0, or 1 where a row had no configuration that compiles. Raises LookupError, ToolchainError, files.FileError.

    write: the folder of tuned configurations that winners go to.
    """
    failed, report = 0, []
    for one in matrix.plan(selection):
        plain, tried = _try(one, settings)
        front = pareto([entry for entry in tried if entry.row.status == "compiled"])
        failed += not front
        report.append(
            {
                "row": one.key,
                "target": one.target,
                "heuristic_seconds": plain.seconds,
                "pareto": [_plain(entry) for entry in front],
                "tried": [_plain(entry) for entry in tried],
            }
        )
        if not as_json:
            _say(one, tried, front)
        if write is not None and front:
            keep(one, plain, tried, write)
    if as_json:
        output.say_json(report)
    return 1 if failed else 0


def _try(one: Planned, settings: Settings) -> tuple[Row, list[Tried]]:
    """The row as heuristics have it (of a pass with several launches they may choose for each), and each configuration's."""
    if one.case is None:
        raise LookupError("--sweep is for ops of the manifest")
    configs = subjects.configurations(one.case, "vjp" if one.which == "vjp" else "fwd", one.contender, one.target)
    if not configs:
        raise LookupError(f"{one.op}: {one.contender} has nothing to configure for {one.which}")
    jobs = [{**one.job, "heuristic": True}, *({**one.job, "config": index} for index in range(len(configs)))]
    plain, *rows = running.rows([dataclasses.replace(one, job=job) for job in jobs], settings)
    return plain, [Tried(config, row) for config, row in zip(configs, rows, strict=True)]


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


def keep(one: Planned, plain: Row, tried: Sequence[Tried], folder: Path) -> None:
    """Writes the fastest among the chip's tuned configurations, marked with its origin: nothing was measured.

    It is written where it is over 2 % faster than what the heuristics choose, and fits the call as they would have it fit; else an
    older row of the call is taken out. docs/tuning.md has the format.
    """
    path = folder / one.target / f"{one.op}.json"
    case = one.case
    if case is None or plain.seconds is None:
        return
    timed = [(entry.row.seconds, entry) for entry in tried if entry.row.status == "compiled" and entry.row.seconds]
    for seconds, entry in sorted(timed, key=lambda pair: pair[0]):
        try:
            kept = tops_kernels.record_tuned(
                path,
                op=one.op,
                implementation=one.contender,
                which=one.which,
                inputs=case.inputs(),
                params=dict(case.params),
                chip=one.target,
                config=entry.config,
                origin=ORIGIN,
                seconds=seconds,
                heuristic_seconds=plain.seconds,
                toolchain=toolchain.versions(targets.target(one.target)),
                with_sources=folder == workspace_folder(),  # the package's rows go with its sources
                vmem_bytes=entry.row.figures.get("vmem_bytes") or 0,
            )
        except (OSError, ValueError) as error:
            raise files.FileError(f"{path}: {error}") from None
        if kept:
            gain = plain.seconds / seconds - 1
            output.complain(f"wrote {path}: {one.which} {one.label}, {gain:.1%} faster than the heuristic's")
            return
    output.complain(
        f"{one.op} {one.which} {one.label} on {one.target}: nothing is over 2 % faster than the heuristic's"
    )
