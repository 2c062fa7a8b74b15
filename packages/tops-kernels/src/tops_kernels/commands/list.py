"""tops-kernels list: the ops and their implementations."""

import argparse

import tops_manifest
from tops_kernels.commands import Subparsers, parser, say
from tops_kernels.runtime.sources import source_digest


def add(subparsers: Subparsers) -> None:
    parser(subparsers, "list", "the ops and their implementations", "tops-kernels list --json")


def run(args: argparse.Namespace) -> int:
    rows: list[dict[str, object]] = [
        {
            "op": op.name,
            "version": op.version,
            "status": op.status,
            "implementation": key,
            "source": source_digest(op.name, key),
        }
        for op in tops_manifest.ops()
        if op.status != "planned"
        for key in op.kernel_map
    ]
    say(rows, as_json=args.json)
    return 0
