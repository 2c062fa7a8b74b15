"""tops-bench report: Markdown and roofline charts from records."""

import argparse
from pathlib import Path

from tops_bench import output, records
from tops_bench.commands import Subparsers, UsageError, parser


def add_parser(subparsers: Subparsers) -> None:
    added = parser(
        subparsers,
        "report",
        "Turn records into a page of Markdown with a roofline chart (SVG and PNG) each.",
        "tops-bench report record.json -o report",
    )
    added.add_argument("records", nargs="+", metavar="RECORD", type=Path, help="written by `tops-bench run --json`")
    added.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write to")
    added.add_argument("--json", action="store_true", help="print the files' names as JSON")


def run(args: argparse.Namespace) -> int:
    from tops_bench import report  # matplotlib takes half a second to load, and no other command needs it

    if args.output.exists() and not args.output.is_dir():
        raise UsageError(f"-o: {args.output} is a file; expected a folder")
    written = report.write([records.read(path) for path in args.records], args.output)
    if args.json:
        output.say_json({"written": [str(path) for path in written]})
    else:
        for path in written:
            output.say(str(path))
    return 0
