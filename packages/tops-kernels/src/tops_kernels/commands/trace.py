"""tops-kernels trace: calls as definitions and workloads for flashinfer-bench."""

import argparse
from pathlib import Path

from tops_kernels.commands import Subparsers, UsageError, parser, say


def add(subparsers: Subparsers) -> None:
    added = parser(
        subparsers,
        "trace",
        "definitions and workloads in flashinfer-bench's schema, of all ops or of the calls that TOPS_TRACE saw",
        "TOPS_TRACE=seen python train.py; tops-kernels trace definitions --from seen",
    )
    added.add_argument("folder", type=Path, metavar="DIR", help="where they are written, or lie already")
    added.add_argument(
        "--from",
        type=Path,
        dest="source",
        metavar="DIR",
        help="a folder that TOPS_TRACE was (default: the ops' contracts)",
    )
    added.add_argument(
        "--check", action="store_true", help="write nothing; fail where DIR holds other files than would be written"
    )


def run(args: argparse.Namespace) -> int:
    """0: written, or as they should be. 1: --check found others."""
    from tops_kernels.runtime import traces

    if args.source is not None and not args.source.is_dir():
        raise UsageError(f"--from {args.source} is no folder; run a program with TOPS_TRACE={args.source} first")
    try:
        wanted = traces.contracts() if args.source is None else traces.again(args.source)
        if args.check:
            faults = traces.differing(args.folder, wanted)
            say([{"file": path, "is": what} for path, what in faults], as_json=args.json)
            return 1 if faults else 0
        traces.write(args.folder, wanted)
    except (traces.TraceError, OSError) as error:
        raise UsageError(str(error)) from error
    say([{"file": path, "is": "written"} for path in wanted], as_json=args.json)
    return 0
