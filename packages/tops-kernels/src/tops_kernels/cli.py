"""The command `tops-kernels`: what is here, what runs where, and what a bug report needs."""

import argparse
from collections.abc import Sequence

from tops_kernels.commands import (
    Command,
    UsageError,
    blocklist,
    build,
    complain,
    env,
    install,
    replay,
    support,
    trace,
    tune,
)
from tops_kernels.commands import list as listing
from tops_kernels.runtime.variables import VariableError

COMMANDS: tuple[Command, ...] = (
    listing,
    support,
    env,
    build,
    install,
    replay,
    trace,
    blocklist,
    tune,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 fine, 1 a fault found or something cannot run, 2 used wrongly."""
    parser = argparse.ArgumentParser(
        prog="tops-kernels",
        description="What is here, what runs where.",
        epilog="example: tops-kernels support rms_norm --backend pallas_tpu --target v5e",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    runs: dict[str, Command] = {}
    for command in COMMANDS:
        command.add(subparsers)
        runs |= {name: command for name in subparsers.choices if name not in runs}
    args = parser.parse_args(argv)
    try:
        return runs[args.command].run(args)
    except (UsageError, VariableError) as error:
        complain(f"tops-kernels {args.command}: {error}")
        return 2
    except KeyboardInterrupt:
        complain(f"tops-kernels {args.command}: interrupted")
        return 130
