"""The subcommands of tops-kernels: a module each, with `add(subparsers)` and `run(args) -> int`.

What a command needs beyond its options (jax, the runtime's rarer modules) is imported in `run`: another command does not pay for it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

Subparsers = Any  # argparse's own type of it is private


class UsageError(Exception):
    """Wrong use: what was given, and what was expected. Exit status 2."""


class Command(Protocol):
    """A subcommand. `add` adds its parser, or several that `run` tells apart by args.command.

    `run` returns 0 (well) or 1 (a fault found) and raises UsageError for a wrong use, which exits 2.
    """

    def add(self, subparsers: Subparsers, /) -> None: ...

    def run(self, args: argparse.Namespace, /) -> int: ...


def parser(subparsers: Subparsers, name: str, text: str, example: str) -> argparse.ArgumentParser:
    """A subparser in the style of the house, with --json."""
    added: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=text.replace("%", "%%"),  # argparse fills in %(prog)s and the like
        description=text.replace("%", "%%"),
        epilog=f"example:\n  {example}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.add_argument("--json", action="store_true", help="for machines")
    return added


def say(rows: Sequence[dict[str, object]], *, as_json: bool) -> None:
    """Rows of the same keys to stdout: a table for people, a JSON list for machines."""
    print(json.dumps(rows, indent=1) if as_json else table(rows))


def complain(text: str) -> None:
    """A line for people, to stderr."""
    print(text, file=sys.stderr, flush=True)


def table(rows: Sequence[dict[str, object]]) -> str:
    """A line a row under one of names; empty without rows."""
    if not rows:
        return ""
    cells = [[str(name) for name in rows[0]], *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )
