"""tops-kernels install: a bundle's units into the workspace, each checked."""

import argparse

from tops_kernels.commands import Subparsers, complain, parser, say


def add(subparsers: Subparsers) -> None:
    added = parser(
        subparsers,
        "install",
        "install a bundle of compiled units, checked against its checksums",
        "tops-kernels install bundle.tar",
    )
    added.add_argument("bundle", metavar="BUNDLE", help="a folder, a .tar file, a URL, or a name on TOPS_MIRROR")


def run(args: argparse.Namespace) -> int:
    from tops_kernels.runtime.bundles import BundleError
    from tops_kernels.runtime.installing import install

    try:
        done = install(args.bundle)
    except BundleError as error:
        complain(f"tops-kernels install: {error}")
        return 1
    rows: list[dict[str, object]] = [{"unit": name, "installed": True, "reason": ""} for name in done.names]
    rows += [{"unit": name, "installed": False, "reason": why} for name, why in done.ignored]
    say(rows, as_json=args.json)
    return 0 if done.names or not done.ignored else 1
