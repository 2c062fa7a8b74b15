"""tops-bench aot: compile every kernel for every chip, without one, and read the schedules."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tops_bench import output
from tops_bench.aot import baseline, matrix, running, table, targets, toolchain, variants
from tops_bench.aot.matrix import Row, Selection
from tops_bench.aot.running import Settings, ToolchainError
from tops_bench.commands import UsageError, parser
from tops_bench.files import FileError
from tops_manifest.model import PASSES

_QUICK_TARGETS = ("v5e", "v6e", "tpu7x")
_EXAMPLE = "tops-bench aot matmul --target v5e,v6e"


def add_parser(subparsers: Any) -> None:
    """Adds `aot`."""
    add = parser(
        subparsers, "aot", "compile the ops for chips that are not here, and read the compiler's schedules", _EXAMPLE
    )
    add.add_argument(
        "ops", nargs="*", metavar="OP", help="ops of the manifest, or `reference` (jax's own kernels); none: all"
    )
    add.add_argument("--target", help=f"comma-separated, of {', '.join(targets.TARGETS)} (default: every TPU)")
    add.add_argument("--pass", dest="which", choices=(*PASSES, "both"), default="both", help="default: both")
    add.add_argument("--dtype", help="rows with one of these dtypes, comma-separated")
    add.add_argument(
        "--workload", action="append", default=[], metavar="NAME", help="this workload row (again for more)"
    )
    add.add_argument(
        "--contender",
        action="append",
        default=[],
        metavar="NAME",
        help="this contender, e.g. pallas_tpu (again for more)",
    )
    add.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=VALUE[,..]",
        help="rows with another size, dtype, parameter or input (given, none), e.g. T=128,131072 (again for more)",
    )
    add.add_argument(
        "--quick", action="store_true", help=f"one row an op and pass, on {', '.join(_QUICK_TARGETS)}: under 3 minutes"
    )
    add.add_argument("--jobs", type=int, help="compiling processes at a time (default: what cores and memory allow)")
    add.add_argument("--limit", type=float, default=240.0, help="seconds a row may take (default 240)")
    add.add_argument("--json", action="store_true", help="print rows as JSON")
    modes = add.add_mutually_exclusive_group()
    modes.add_argument("--save", action="store_true", help="write the targets' baseline files")
    modes.add_argument("--check", action="store_true", help="fail where a kernel got worse than its baseline")
    modes.add_argument(
        "--explain", action="store_true", help="the hottest loop: source lines, full slots, idle bundles, chains"
    )
    modes.add_argument(
        "--sweep", action="store_true", help="the op's block configurations: which are best in time and VMEM"
    )
    modes.add_argument(
        "--validate",
        nargs="?",
        const="abd",
        metavar="PARTS",
        help="how good the estimates are: parts of a, b, c, d, e (default abd)",
    )
    add.add_argument(
        "--baselines", type=Path, metavar="FOLDER", help="where the baseline files lie (default: in tops-bench)"
    )
    add.add_argument("--html", type=Path, metavar="FILE", help="with --explain: write the loop's timeline here")
    add.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="FOLDER",
        help="with --sweep: keep winners as tuned configurations, FOLDER/<target>/<op>.json (default: tune in the workspace)",
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 where something was refused that must compile, broke, or got worse."""
    settings = Settings(args.limit, args.jobs)
    try:
        if args.vary and (args.save or args.check or args.write or args.validate):
            raise UsageError("--vary asks for rows that no file holds: not with --save, --check, --write or --validate")
        if args.validate:
            from tops_bench.aot import validate

            return validate.run(args.validate, _targets(args), settings, as_json=args.json, ops=args.ops)
        selection = _selection(args)
        if args.explain or args.sweep:
            if not args.ops:
                raise UsageError("--explain and --sweep need an OP")
            from tops_bench.aot import explain, sweep

            if args.explain:
                return explain.run(selection, settings, args.html, as_json=args.json)
            write = sweep.workspace_folder() if args.write == Path() else args.write
            return sweep.run(selection, settings, write=write, as_json=args.json)
        planned = matrix.plan(selection)
        rows = running.rows(planned, settings)
        return _report(args, selection, rows)
    except (ToolchainError, FileError, OSError) as error:  # no compiler, or no room for dumps or for what is written
        output.complain(f"tops-bench aot: {error}")
        return 1
    except (LookupError, ValueError) as error:
        raise UsageError(str(error).strip("'\"")) from None


def _report(args: argparse.Namespace, selection: Selection, rows: Sequence[Row]) -> int:
    findings: list[baseline.Finding] = []
    notes: list[str] = []
    if args.check:
        findings, notes = _check(args, selection, rows)
    if args.json:
        output.say_json(
            {
                "rows": [dataclasses.asdict(row) for row in rows],
                "findings": [dataclasses.asdict(one) for one in findings],
                "notes": notes,
            }
        )
    else:
        if not args.check:
            table.say_rows(rows)
        if findings:
            table.say_findings(findings)
        for note in notes:
            output.say(note)
        if args.check and not findings and not notes:
            output.say(
                f"as saved: {sum(baseline.is_kernel(row) for row in rows)} kernel rows on {', '.join(selection.targets)}"
            )
    if args.save:
        versions = {name: toolchain.versions(targets.target(name)) for name in selection.targets}
        complete = _is_complete(args, selection)
        for path in baseline.save(rows, versions, args.baselines, complete=complete):
            output.complain(f"wrote {path}")
    broken = [row for row in rows if row.status in ("crashed", "timeout", "fault")]
    unmet = [row for row in rows if row.status == "refused" and baseline.is_kernel(row)] if not args.check else []
    return 1 if findings or notes or broken or unmet else 0


def _is_complete(args: argparse.Namespace, selection: Selection) -> bool:
    """Whether every row of the matrix was asked for."""
    some = selection.ops or selection.dtypes or selection.workloads or args.contender or selection.quick
    return not some and args.which == "both"


def _check(
    args: argparse.Namespace, selection: Selection, rows: Sequence[Row]
) -> tuple[list[baseline.Finding], list[str]]:
    """Findings, and what kept a target from being checked."""
    complete = _is_complete(args, selection)
    findings, notes = [], []
    for name in selection.targets:
        try:
            saved = baseline.load(name, args.baselines)
        except FileError as error:
            notes.append(f"{name}: no baseline: {error}. Write one with `tops-bench aot --save --target {name}`")
            continue
        other = baseline.other_versions(saved, toolchain.versions(targets.target(name)))
        if other:
            notes.append(
                f"{name}: re-save needed: made with another toolchain ({other}). Run `tops-bench aot --save --target {name}`"
            )
            continue
        findings += baseline.check(saved, rows, complete=complete)
    return findings, notes


def _targets(args: argparse.Namespace) -> tuple[str, ...]:
    if args.target:
        return tuple(targets.target(name.strip()).name for name in args.target.split(","))
    return _QUICK_TARGETS if args.quick else targets.TPU_TARGETS


def _selection(args: argparse.Namespace) -> Selection:
    checking = args.save or args.check
    return Selection(
        ops=tuple(args.ops),
        targets=_targets(args),
        passes=PASSES if args.which == "both" else (args.which,),
        dtypes=tuple(args.dtype.split(",")) if args.dtype else (),
        workloads=tuple(args.workload),
        # A baseline file holds kernels alone: nothing else need be compiled for it.
        contenders=tuple(args.contender)
        or (("pallas_tpu", "pallas_gpu") if checking or args.explain or args.sweep else ()),
        references=not checking,
        quick=args.quick,
        vary=variants.parse(args.vary),
    )
