"""The trust model's checks, each by name. Data on stdout; status 0: no fault, 1: a fault, 2: used wrongly."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.trust import codeowners, contracts, purity, static
from tools.trust.fault import Fault, render, unique
from tools.trust.source import Repository

ROOT = Path(__file__).resolve().parents[2]
_CHECKS: dict[str, tuple[str, Callable[[Path], list[Fault]]]] = {
    "static": (
        "what the files say: imports in any form, reach, content, layout, owners",
        lambda root: static.check(Repository(root)),
    ),
    "contracts": ("import-linter's contracts, indirect chains included", contracts.check),
    "purity": ("importing tops_kernels changes nothing that belongs to others", purity.check),
}


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if not (args.root / "packages").is_dir():
        print(f"{args.root}: no packages/ here; --root names a checkout of the repository", file=sys.stderr)
        return 2
    if args.check == "codeowners":
        return _codeowners(args.root, args.write)
    chosen = list(_CHECKS) if args.check == "all" else [args.check]
    faults = unique(fault for name in chosen for fault in _CHECKS[name][1](args.root))
    print(json.dumps([dataclasses.asdict(fault) for fault in faults]) if args.json else render(faults, chosen))
    return 1 if faults else 0


def _codeowners(root: Path, write: bool) -> int:
    if write:
        (root / codeowners.PATH).write_text(codeowners.text(), encoding="utf-8")
        return 0
    print(codeowners.text(), end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.trust", description=__doc__, epilog="example:\n  uv run python -m tools.trust all\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="check", required=True)
    for name, text in {**{name: text for name, (text, _) in _CHECKS.items()}, "all": "all of these"}.items():
        one = commands.add_parser(
            name, help=text, description=text, epilog=f"example:\n  uv run python -m tools.trust {name} --json\n",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        one.add_argument("--root", type=Path, default=ROOT, help="the checkout to judge (default: this one)")
        one.add_argument("--json", action="store_true", help="print the faults as JSON")
    text = "print .github/CODEOWNERS as the stages have it"
    owners = commands.add_parser(
        "codeowners", help=text, description=text, epilog="example:\n  uv run python -m tools.trust codeowners --write\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    owners.add_argument("--root", type=Path, default=ROOT, help="the checkout to write to (default: this one)")
    owners.add_argument("--write", action="store_true", help="write the file instead")
    owners.add_argument("--json", action="store_true", help="no effect: the file is text")
    return parser


if __name__ == "__main__":
    sys.exit(main())
