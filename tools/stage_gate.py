#!/usr/bin/env python3
"""The stage gate: whether one change may touch the stages it touches, and whether the judges it brings along still agree.

    python tools/stage_gate.py origin/main HEAD                 # rules, and the base replay where it is due
    python tools/stage_gate.py origin/main HEAD --no-replay     # rules alone: seconds, standard library only

The judge is the base's copy of tools/: this one hands over to it. A workflow starts the base's copy itself, since a change could
rewrite this file. Status 0: may land; 1: may not, and why; 2: used wrongly.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a file, from wherever this copy lies

from tools.trust import gate, replay  # noqa: E402  the path comes first
from tools.trust.fault import render  # noqa: E402
from tools.trust.revision import Git, RevisionError  # noqa: E402

_SELF = "tools/stage_gate.py"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    args = _parser().parse_args(arguments)
    git = Git(args.repository.resolve())
    try:
        if not args.is_judge:
            status = _hand_over(git, git.resolve(args.base), arguments)
            if status is not None:
                return status
        verdict = gate.judge(git, args.base, args.head)
        faults = list(verdict.faults)
        if verdict.needs_replay and not faults and not args.no_replay:
            override = replay.Override(tuple(args.label), args.review_decision == "APPROVED")
            faults += replay.check(git, verdict.base, args.head, override, built=not args.in_place)
    except RevisionError as error:
        print(
            f"stage gate: {error}\nA shallow clone has no merge base: fetch the history (fetch-depth: 0).",
            file=sys.stderr,
        )
        return 2
    due = verdict.needs_replay and (args.no_replay or bool(verdict.faults))
    if args.json:
        found = [dataclasses.asdict(fault) for fault in faults]
        print(json.dumps({"faults": found, "stages": dict(verdict.stages), "base": verdict.base, "replay_due": due}))
    else:
        for stage, files in verdict.stages.items():
            print(f"{stage}: {len(files)} file{'s' if len(files) > 1 else ''}")
        print(render(faults, ["stage gate"]))
        if due:
            print("kernels ride with their judges: the base replay is still due (leave out --no-replay)")
    return 1 if faults else 0


def _hand_over(git: Git, base: str, arguments: Sequence[str]) -> int | None:
    """Runs the base's copy in this one's place. None where this copy is the base's, or the base has none."""
    if git.text(base, _SELF) is None:
        print("stage gate: the base has no gate yet; this copy judges", file=sys.stderr)
        return None
    with tempfile.TemporaryDirectory() as folder:
        git.export(base, Path(folder), ["tools"])
        if _same(Path(folder) / "tools", ROOT / "tools"):
            return None
        print("stage gate: the tools differ from the base's; the base's copy judges", file=sys.stderr)
        command = [sys.executable, os.path.join(folder, _SELF), *arguments, "--repository", str(git.root), "--is-judge"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def _same(one: Path, other: Path) -> bool:
    names = {path.relative_to(one) for path in one.rglob("*.py")}
    return all((other / name).is_file() and (other / name).read_bytes() == (one / name).read_bytes() for name in names)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stage_gate.py", description="Judge a change by the stages it touches.",
        epilog="example:\n  python tools/stage_gate.py origin/main HEAD --no-replay\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("base", metavar="BASE", help="the revision the change is to land on")
    parser.add_argument("head", metavar="HEAD", help="the revision to judge")
    parser.add_argument("--repository", type=Path, default=Path.cwd(), help="the repository with both (default: here)")
    parser.add_argument("--no-replay", action="store_true", help="leave the base replay out")
    parser.add_argument(
        "--in-place", action="store_true", help="replay with this interpreter instead of from built wheels"
    )
    parser.add_argument("--label", action="append", default=[], help="a label of the pull request; repeat for more")
    parser.add_argument(
        "--review-decision",
        default="",
        metavar="WORD",
        help="of the pull request: APPROVED where every owner asked agrees",
    )
    parser.add_argument("--is-judge", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
