"""The subcommands of tops-bench: a module each, with `add_parser(subparsers)` and `run(args) -> int`."""

import argparse
from typing import Any, Protocol

Subparsers = Any  # argparse's own type of it is private


class Command(Protocol):
    """A subcommand. `run` returns 0 (well) or 1 (a fault found) and raises UsageError for a wrong use, which exits 2."""

    def add_parser(self, subparsers: Subparsers, /) -> None: ...

    def run(self, args: argparse.Namespace, /) -> int: ...


class UsageError(Exception):
    """Wrong use: what was given, and what was expected."""


def parser(subparsers: Subparsers, name: str, text: str, example: str) -> argparse.ArgumentParser:
    """A subparser in the style of the house."""
    added: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=text.replace("%", "%%"),  # argparse fills in %(prog)s and the like
        description=text.replace("%", "%%"),
        epilog=f"example:\n  {example}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return added
