"""tops-bench run: times ops against their baselines on this machine."""

import argparse
import contextlib
import os
from pathlib import Path
from typing import get_args

import tops_kernels
import tops_manifest
from tops_bench import output, records, roofline, running
from tops_bench.commands import Subparsers, UsageError, parser
from tops_bench.timing import FULL, QUICK, Effort, Method, compiled_within
from tops_manifest.model import PASSES


def add_parser(subparsers: Subparsers) -> None:
    added = parser(
        subparsers,
        "run",
        "Time ops against their baselines, taking turns; a speed-up is printed only where certificates allow it.",
        "tops-bench run rms_norm --pass fwd --quick --json record.json",
    )
    added.add_argument("ops", nargs="*", metavar="OP", help="ops to time (default: all)")
    added.add_argument("--pass", dest="which", choices=(*PASSES, "both"), default="both", help="default: both")
    added.add_argument("--workload", metavar="NAME", help="one row of the manifest, by name or with its dtypes")
    added.add_argument("--quick", action="store_true", help="smaller rows, fewer and shorter samples")
    added.add_argument(
        "--cache",
        action="store_true",
        help="take compiled programs from the workspace and keep them there (compile times are then of finding them)",
    )
    added.add_argument("--rounds", type=int, metavar="N", help=f"samples a contender (default: {FULL.rounds})")
    added.add_argument("--method", choices=get_args(Method), help="insist on one (default: the best that works here)")
    added.add_argument(
        "--json", nargs="?", const="-", metavar="OUT", help="write the record to OUT; without OUT, to stdout as JSON"
    )


def run(args: argparse.Namespace) -> int:
    known = {op.name: op for op in tops_manifest.ops() if op.status == "implemented"}
    unknown = [name for name in args.ops if name not in known]
    if unknown:
        raise UsageError(f"OP: no implemented op {unknown[0]!r}; known: {', '.join(known)}")
    effort = QUICK if args.quick else FULL
    if args.rounds is not None:
        if args.rounds < 1:
            raise UsageError(f"--rounds: got {args.rounds}; expected 1 or more")
        effort = Effort(args.rounds, effort.sample_seconds)
    ops = [known[name] for name in dict.fromkeys(args.ops)] or list(known.values())
    wanted = running.jobs(ops, PASSES if args.which == "both" else (args.which,), args.workload, quick=args.quick)
    if not wanted:
        names = ", ".join(dict.fromkeys(job.case.row for job in running.jobs(ops, PASSES)))
        raise UsageError(f"nothing to run: no row {args.workload or ''!r} with pass {args.which}; rows: {names}")
    if args.json not in (None, "-"):
        _writable(Path(args.json))
    with (
        compiled_within(tops_kernels.compile_cache if args.cache else contextlib.nullcontext),
        output.progress("bench", len(wanted)) as (started, finished),
    ):
        ceilings = roofline.ceilings(progress=started)
        record = running.run(
            wanted, ceilings, effort=effort, quick=args.quick, method=args.method, started=started, finished=finished
        )
    if args.json == "-":
        output.say_json(record.as_data())
    else:
        output.say_record(record)
    if args.json not in (None, "-"):
        records.write(Path(args.json), record)
        output.complain(f"record written to {args.json}")
    return 1 if any(row.status == "failed" for row in record.rows) else 0


def _writable(path: Path) -> None:
    """Found out before minutes of measuring, not after."""
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise UsageError(f"--json: cannot write {path}: expected a file in a folder that can be written")
