"""tops-kernels env: versions, variables, devices and caches, for a bug report."""

import argparse

from tops_kernels.commands import Subparsers, parser, say


def add(subparsers: Subparsers) -> None:
    added = parser(
        subparsers, "env", "versions, variables, devices and caches, for a bug report", "tops-kernels env --json"
    )
    added.add_argument("--no-devices", action="store_true", help="do not start jax to ask for its devices")


def run(args: argparse.Namespace) -> int:
    from tops_kernels.runtime.report import report

    say(report(devices=not args.no_devices), as_json=args.json)
    return 0
