"""tops-tests: certify | verify | list | tolerances."""

import argparse
import dataclasses
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

import tops_manifest
from tops_manifest import Op
from tops_tests import certificates, certify, conformance, ratchet, waivers
from tops_tests.certify import Outcome

_EXAMPLE = """example:
  tops-tests certify rms_norm --quick && tops-tests verify
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 (all well), 1 (a fault was found) or, from argparse, leaves with 2 (used wrongly)."""
    parser = _parser()
    args = parser.parse_args(argv)
    match args.command:
        case "certify":
            return _certify(parser, args)
        case "verify":
            return _verify(args)
        case "list":
            return _list(args)
        case _:
            return _tolerances(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tops-tests", description=__doc__, epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, example: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=f"example:\n  {example}\n",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.add_argument("--json", action="store_true", help="print JSON instead of a table")
        return added

    run = command(
        "certify", "Hold every implementation and baseline against the oracle; write certificates.",
        "tops-tests certify matmul --quick",
    )  # fmt: skip
    run.add_argument("ops", nargs="*", metavar="OP", help="ops to certify (default: all)")
    run.add_argument(
        "--quick", action="store_true", help="the first rows of each op, smaller, and one draw: seconds an op"
    )
    run.add_argument("--platform", choices=("cpu", "gpu", "tpu"), help="run there (default: where jax runs)")
    command(
        "verify", "Say of every certificate whether it holds here and now, and why not.", "tops-tests verify --json"
    )
    command("list", "List ops, implementations and conformance checks.", "tops-tests list")
    locks = command(
        "tolerances", "Show the tolerances, or hold them to tolerances.lock.", "tops-tests tolerances --check"
    )
    which = locks.add_mutually_exclusive_group()
    which.add_argument("--check", action="store_true", help="fail where they differ from the lock or loosened")
    which.add_argument("--lock", action="store_true", help="write the lock; refused where they loosened unexplained")
    locks.add_argument("--against", type=Path, metavar="FILE", help="with --check: the lock of another revision too")
    locks.add_argument("--changelog", type=Path, metavar="FILE", help="default: CHANGELOG.md of the workspace")
    return parser


def _certify(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    known = {op.name: op for op in tops_manifest.ops() if op.status == "implemented"}
    unknown = [name for name in args.ops if name not in known]
    if unknown:
        parser.error(f"no implemented op {unknown[0]!r}; known: {', '.join(known)}")
    if args.platform is not None:
        platform = "cuda" if args.platform == "gpu" else args.platform
        jax.config.update("jax_platforms", platform)  # type: ignore[no-untyped-call]  # jax has no types for it
        try:
            jax.default_backend()
        except RuntimeError as error:
            parser.error(f"--platform {args.platform}: jax has none here: {error}")
    ops = [known[name] for name in dict.fromkeys(args.ops)] or list(known.values())
    faults = waiver_faults(list(known.values()))
    try:
        outcomes = _run_with_progress(ops, quick=args.quick)
    except OSError as error:
        print(
            f"tops-tests certify: certificates cannot be written: {error}; set TOPS_WORKSPACE to a folder that can be",
            file=sys.stderr,
        )
        return 1
    if args.json:
        print(
            json.dumps({"outcomes": [_as_data(one) for one in outcomes], "waivers": _waiver_data(), "faults": faults})
        )
    else:
        _print_outcomes(outcomes, faults)
    return 1 if faults or any(one.fault for one in outcomes) else 0


def _run_with_progress(ops: Sequence[Op], *, quick: bool) -> list[Outcome]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    outcomes = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("certify", total=len(certify.jobs(ops, quick=quick)))
        for outcome in certify.run(ops, quick=quick, started=lambda what: progress.update(task, description=what)):
            progress.advance(task)
            outcomes.append(outcome)
    return outcomes


def _as_data(outcome: Outcome) -> dict[str, object]:
    return {"status": outcome.status, **dataclasses.asdict(outcome)}


def _waiver_data() -> list[dict[str, object]]:
    return [{**dataclasses.asdict(one), "expires": one.expires.isoformat()} for one in waivers.read()[0]]


def waiver_faults(ops: Sequence[Op]) -> list[str]:
    """Everything wrong with waivers.toml today."""
    found, faults = waivers.read()
    checks = [check.name for check in conformance.CHECKS]
    maps = {op.name: op.kernel_map for op in ops}
    return [*faults, *waivers.faults(found, maps, checks, datetime.date.today())]


def _print_outcomes(outcomes: Sequence[Outcome], faults: Sequence[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("op", "pass", "workload", "implementation", "error / tolerance", "verdict"):
        table.add_column(heading, overflow="fold")
    for one in outcomes:
        errors = "  ".join(f"{name} {e.measured:.1e}/{e.tolerance:.0e}" for name, e in one.errors.items())
        implementation = one.implementation + (" (interpreted)" if one.interpreted else "")
        table.add_row(one.op, one.which, one.label, implementation, errors, one.status)
    # Wide enough for a row a line when nobody watches: a pipe has no width of its own.
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    for one in outcomes:
        if one.fault or one.skipped:
            print(f"{one.status}: {one.op} {one.which} {one.label} {one.implementation}: {one.fault or one.skipped}")
    for fault in faults:
        print(f"FAULT: {fault}")
    counts = {status: sum(one.status == status for one in outcomes) for status in ("certified", "FAULT", "skipped")}
    print(
        f"{counts['certified']} certified, {counts['FAULT'] + len(faults)} faults, {counts['skipped']} skipped; "
        f"{waivers.summary(waivers.read()[0])}; in {certificates.folder()}"
    )


def _verify(args: argparse.Namespace) -> int:
    results = {path: certificates.invalid(path) for path in certificates.all_paths()}
    if args.json:
        print(
            json.dumps(
                [
                    {"file": str(path.relative_to(certificates.folder())), "valid": not why, "why": why}
                    for path, why in results.items()
                ]
            )
        )
    else:
        for path, why in results.items():
            print(
                f"{'INVALID' if why else 'valid'}: {path.relative_to(certificates.folder())}{': ' if why else ''}{why}"
            )
        bad = sum(map(bool, results.values()))
        print(f"{len(results) - bad} valid, {bad} invalid; {waivers.summary(waivers.read()[0])}")
        if not results:
            print(f"no certificates in {certificates.folder()}: run `tops-tests certify`", file=sys.stderr)
    return 1 if any(results.values()) else 0


def _list(args: argparse.Namespace) -> int:
    ops = [{"op": op.name, "status": op.status, "kernel_map": list(op.kernel_map)} for op in tops_manifest.ops()]
    checks = [{"check": one.name, "scope": one.scope, "slow": one.slow, "doc": one.doc} for one in conformance.CHECKS]
    if args.json:
        print(json.dumps({"ops": ops, "checks": checks, "waivers": _waiver_data()}))
        return 0
    for op in ops:
        print(f"{op['op']}  {op['status']}  {', '.join(map(str, op['kernel_map']))}")
    print()
    for check in checks:
        print(f"{check['check']}  per {check['scope']}{'  slow' if check['slow'] else ''}")
    print(waivers.summary(waivers.read()[0]))
    return 0


def _tolerances(args: argparse.Namespace) -> int:
    changelog = args.changelog or ratchet.find_changelog()
    faults: list[str] = []
    try:
        if args.lock:
            ratchet.update(changelog)
        elif args.check:
            faults = ratchet.check(changelog, args.against)
    except ratchet.LockError as error:
        faults = str(error).splitlines()
    table = ratchet.Lock.of_the_table().tolerances
    if args.json:
        print(json.dumps({"tolerances": dict(table), "faults": faults}))
        return 1 if faults else 0
    for fault in faults:
        print(fault)
    if not faults:
        for key, value in table.items():
            print(f"{key}  {value:g}")
    return 1 if faults else 0
