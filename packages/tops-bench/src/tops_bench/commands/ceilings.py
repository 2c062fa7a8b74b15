"""tops-bench ceilings: what this machine can do at best, measured once and kept."""

import argparse
import dataclasses

from tops_bench import machine, output, roofline
from tops_bench.commands import Subparsers, parser


def add_parser(subparsers: Subparsers) -> None:
    added = parser(
        subparsers,
        "ceilings",
        "Show this machine's ceilings (large matmuls, copies); measure them where that has not been done.",
        "tops-bench ceilings --again",
    )
    added.add_argument("--again", action="store_true", help="measure anew")
    added.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    with output.progress("ceilings", 1) as (started, _):
        found = roofline.ceilings(again=args.again, progress=started)
    if args.json:
        output.say_json(found.as_data())
        return 0
    lines = [(f"matmul {dtype}", f"{rate / 1e9:.4g} Gop/s") for dtype, rate in found.matmul.items()]
    lines += [(f"copy of {size >> 10} KiB, in and out", f"{rate / 1e9:.4g} GB/s") for size, rate in found.copy.items()]
    output.say_table(("ceiling", "rate"), lines, ("rate",))
    key = machine.Machine(**dataclasses.asdict(found.machine)).key
    output.say(f"{found.machine}; {found.method}, measured {found.measured}; kept in {roofline.path(key)}")
    return 0
