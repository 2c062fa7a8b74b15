"""tops-bench compare: the 95 % rule between two records, or two installed versions in one run."""

import argparse
import contextlib
from pathlib import Path

import tops_manifest
from tops_bench import compare, duel, environments, output, records, running
from tops_bench.commands import Subparsers, UsageError, parser
from tops_bench.compare import Compared
from tops_bench.timing import FULL, QUICK, Effort
from tops_manifest.model import PASSES


def add_parser(subparsers: Subparsers) -> None:
    added = parser(
        subparsers,
        "compare",
        "Fail (1) where a row of HEAD is slower than 95 % of its BASE's speed beyond the noise, or is gone.",
        "tops-bench compare ../tops-main . rms_norm --quick    # two checkouts, in turns\n"
        "  tops-bench compare base.json head.json                # two records of one machine",
    )
    added.add_argument("base", metavar="BASE", help="a record, a Python interpreter, a virtual environment, a checkout")
    added.add_argument("head", metavar="HEAD", help="of the same kind")
    added.add_argument("ops", nargs="*", metavar="OP", help="ops to compare (default: all); not with records")
    added.add_argument("--quick", action="store_true", help="smaller rows, fewer and shorter samples; not with records")
    added.add_argument("--pass", dest="which", choices=(*PASSES, "both"), default="both", help="default: both")
    added.add_argument("--workload", metavar="NAME", help="one row of the manifest")
    added.add_argument("--rounds", type=int, metavar="N", help="samples a side")
    added.add_argument(
        "--all", action="store_true", help="time rows whose sources and jax are the same on both sides too"
    )
    added.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    try:
        base, head = environments.find(args.base), environments.find(args.head)
    except environments.WorkerError as error:
        raise UsageError(str(error)) from error
    if (base is None) != (head is None):
        raise UsageError(
            f"BASE {args.base} and HEAD {args.head}: one is a record; expected two records or two versions"
        )
    if base is None or head is None:
        if args.ops or args.quick or args.workload or args.rounds or args.all:
            raise UsageError(
                "OP, --quick, --workload, --rounds, --all: records are compared whole; they say what was run"
            )
        try:
            found = compare.compare_records(records.read(Path(args.base)), records.read(Path(args.head)))
        except compare.NotComparableError as error:
            raise UsageError(str(error)) from error
    else:
        found = _duel(base, head, args)
    if not found:
        raise UsageError("nothing to compare: no implementation was timed in BASE")
    if args.json:
        output.say_json(compare.as_data(found))
    else:
        _print(found)
    return 1 if any(row.is_fault for row in found) else 0


def _duel(
    base: environments.Environment, head: environments.Environment, args: argparse.Namespace
) -> tuple[Compared, ...]:
    known = {op.name: op for op in tops_manifest.ops() if op.status == "implemented"}
    unknown = [name for name in args.ops if name not in known]
    if unknown:
        raise UsageError(f"OP: no implemented op {unknown[0]!r}; known: {', '.join(known)}")
    if args.rounds is not None and args.rounds < 1:
        raise UsageError(f"--rounds: got {args.rounds}; expected 1 or more")
    effort = QUICK if args.quick else FULL
    # Twice the rounds of a run: the verdict hangs on the interval, not on a picture.
    effort = Effort(args.rounds or 2 * effort.rounds, effort.sample_seconds)
    ops = [known[name] for name in dict.fromkeys(args.ops)] or list(known.values())
    wanted = running.jobs(ops, PASSES if args.which == "both" else (args.which,), args.workload)
    if not wanted:
        raise UsageError(f"--workload: no row {args.workload!r} with pass {args.which}")
    of = {"base": base, "head": head}
    try:
        with (
            output.progress("compare", len(wanted)) as (started, finished),
            contextlib.ExitStack() as stack,
        ):
            return duel.duel(
                lambda side: stack.enter_context(environments.Child(of[side])),
                wanted,
                effort,
                quick=args.quick,
                even_same=args.all,
                started=started,
                finished=finished,
            )
    except environments.WorkerError as error:
        raise UsageError(str(error)) from error


def _print(found: tuple[Compared, ...]) -> None:
    lines = []
    for row in found:
        speed = f"{row.speed.median:.3f} [{row.speed.low:.3f}, {row.speed.high:.3f}]" if row.speed else "-"
        verdict = row.verdict.upper() if row.is_fault else row.verdict
        lines.append(
            (row.op, row.which, row.label, row.contender, output.seconds(row.base_seconds),
             output.seconds(row.head_seconds), speed, verdict, row.how)
        )  # fmt: skip
    output.say_table(
        ("op", "pass", "workload", "contender", "base", "head", "speed of head [95 %]", "verdict", "how"),
        lines,
        ("base", "head"),
    )
    faults = sum(row.is_fault for row in found)
    output.say(f"{len(found)} rows, {faults} faults (slower than 95 % of BASE beyond the noise, failed, or gone)")
