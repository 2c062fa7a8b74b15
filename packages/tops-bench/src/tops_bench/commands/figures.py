"""tops-bench figures: the speeds the library promises, measured here."""

import argparse
import dataclasses

from tops_bench import figures, output
from tops_bench.commands import Subparsers, UsageError, parser


def add_parser(subparsers: Subparsers) -> None:
    added = parser(
        subparsers,
        "figures",
        "Measure the promised figures against jnp on this machine; fail (1) where one is missed beyond the noise.",
        "tops-bench figures matmul eager",
    )
    added.add_argument("names", nargs="*", metavar="FIGURE", help=f"of {', '.join(figures.FIGURES)} (default: all)")
    added.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    unknown = [name for name in args.names if name not in figures.FIGURES]
    if unknown:
        raise UsageError(f"FIGURE: got {unknown[0]!r}; expected one of {', '.join(figures.FIGURES)}")
    names = list(dict.fromkeys(args.names)) or list(figures.FIGURES)
    with output.progress("figures", len(names)) as (started, _):
        found = figures.measure_figures(names, started)
    if args.json:
        output.say_json({"figures": [{**dataclasses.asdict(one), "met": one.met} for one in found]})
    else:
        headings = ("figure", "ratio of times [95 %]", "bound", "ours", "theirs", "method", "verdict")
        lines = [
            (one.name, f"{one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}]", f"{one.bound:g}",
             output.seconds(one.ours_seconds), output.seconds(one.theirs_seconds), one.method, "met" if one.met else "MISSED")
            for one in found
        ]  # fmt: skip
        output.say_table(headings, lines, ("bound", "ours", "theirs"))
    return 0 if all(one.met for one in found) else 1
