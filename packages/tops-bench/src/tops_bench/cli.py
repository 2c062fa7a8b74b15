"""Times the ops of tops against what a user would write without them: run | compare | report | figures | ceilings | aot."""

import argparse
import sys
from collections.abc import Sequence

from tops_bench.commands import Command, UsageError, ceilings, compare, figures, report, run
from tops_bench.files import FileError

_EXAMPLE = """example:
  tops-bench run --quick --json record.json && tops-bench report record.json -o report
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 (well), 1 (a fault found) or 2 (used wrongly; argparse leaves with 2 by itself)."""
    commands: dict[str, Command] = {
        "run": run,
        "compare": compare,
        "report": report,
        "figures": figures,
        "ceilings": ceilings,
    }
    aot, why_no_aot = _aot()
    parser = argparse.ArgumentParser(
        prog="tops-bench", description=__doc__, epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subparsers = parser.add_subparsers(dest="command", required=True)
    for command in commands.values():
        command.add_parser(subparsers)
    if aot is not None:
        commands["aot"] = aot
        aot.add_parser(subparsers)
    else:
        subparsers.add_parser("aot", help=f"not in this installation: {why_no_aot}").add_argument("rest", nargs="*")
    args = parser.parse_args(argv)
    if args.command not in commands:
        print(f"tops-bench aot: not in this installation: {why_no_aot}", file=sys.stderr)
        return 2
    try:
        return commands[args.command].run(args)
    except (UsageError, FileError) as error:
        print(f"tops-bench {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"tops-bench {args.command}: interrupted", file=sys.stderr)
        return 130


def _aot() -> tuple[Command | None, str]:
    """The ahead-of-time command, or why it cannot be had: it needs a compiler for a device that is not here."""
    try:
        from tops_bench.aot import command
    except ImportError as error:
        return None, str(error)
    found: Command = command
    return found, ""
