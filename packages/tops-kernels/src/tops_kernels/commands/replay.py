"""tops-kernels replay: runs a dumped call again, elsewhere, compares, and makes it smaller."""

import argparse
from pathlib import Path

from tops_kernels.commands import Subparsers, UsageError, parser
from tops_kernels.runtime.support import GPU_TARGETS, TPU_TARGETS


def add(subparsers: Subparsers) -> None:
    added = parser(
        subparsers,
        "replay",
        "run a dumped call again: elsewhere, compared, or made smaller",
        "tops-kernels replay ~/.cache/tops/dumps/20261201-120000-gla-4711-0badcafe --backend xla --compare",
    )
    added.add_argument("dump", help="the dump's folder, or its name in the workspace's dumps/")
    added.add_argument("--backend", help="a kernel_map key (default: the recorded one)")
    added.add_argument("--interpret", action="store_true", help="run the kernel in Pallas' interpreter, on any machine")
    added.add_argument(
        "--races", action="store_true", help="in the TPU interpreter that looks for races; fails where it finds one"
    )
    added.add_argument(
        "--target",
        choices=["cpu", *TPU_TARGETS, *GPU_TARGETS],
        help="do not run: compile ahead of time for this chip, which need not be here",
    )
    added.add_argument(
        "--compare",
        action="store_true",
        help="with the recorded outputs and with the xla path; fails where one differs",
    )
    added.add_argument(
        "--tolerance", type=float, help="of floats, times the largest value expected (default: by dtype)"
    )
    added.add_argument("--shrink", action="store_true", help="search for a smaller call that still fails, and dump it")
    added.add_argument(
        "--limit",
        type=float,
        default=120.0,
        help="seconds that one call may take with --shrink or --target (default: 120)",
    )
    added.add_argument(
        "-o", "--output", type=Path, help="folder of the smaller dump (default: beside the dump, -small)"
    )
    added.add_argument(
        "--here", action="store_true", help=argparse.SUPPRESS
    )  # in this process: what the children are told


def run(args: argparse.Namespace) -> int:
    """0: it ran, and nothing differs. 1: it failed, or something differs. 2: no dump that can be replayed, or wrong use."""
    if args.target and (args.interpret or args.races or args.compare):
        raise UsageError("--target compiles and does not run: it goes with none of --interpret, --races and --compare")
    if args.tolerance is not None and not args.tolerance >= 0:
        raise UsageError(f"--tolerance is {args.tolerance}; expected a number of 0 or more")
    if args.output and not args.shrink:
        raise UsageError("-o goes with --shrink")
    from tops_kernels.commands import replaying

    return replaying.replay(args)
