"""The audit run: one stage's own tests under a hook that sees every import and every file opened, child processes included.

    uv run python -m tools.audit bench
    uv run python -m tools.audit kernels -- -q -k dispatch

Status 0: the tests pass and reach no other stage's file; 1: they fail, or they do; 2: used wrongly.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also run as a file, from a base revision's copy

from tools import audit_hook
from tools.trust.fault import Fault, render, unique
from tools.trust.stages import PACKAGES, ROOT_ONLY, Stage, by_name

ROOT = Path(__file__).resolve().parents[1]
AUDITED = ("bench", "kernels")
_SITECUSTOMIZE = """\
import os, runpy
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([{path!r}, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))
runpy.run_path({hook!r})["install"](dict(os.environ), {path!r})
"""
_NO_TESTS = 5  # pytest's status where it collected nothing


def rules(stage: Stage, root: Path) -> dict[str, list[str]]:
    """What a stage's suite must not open or import: every package it does not see, the tests of every other, the tools."""
    folders, modules = [root / "tools", root / ".github"], ["tools"]
    for other in PACKAGES:
        if other is stage:
            continue
        folders.append(root / other.folder / "tests")
        sight = stage.sight(other.package)
        if sight is None:
            folders.append(root / other.folder)
            modules.append(other.package)
        elif ROOT_ONLY not in sight.hidden:  # behind a public root its inner modules load, and must
            modules += sight.hidden
            folders += [root / other.folder / "src" / name.replace(".", "/") for name in sight.hidden]
    real = [os.path.realpath(folder) for folder in folders]
    files = [f"{name}.py" for name in real if os.path.isfile(f"{name}.py")]
    return {
        "folders": [*(f"{name}/" for name in real), *files],
        "modules": modules,
        "exempt": [os.path.realpath(audit_hook.__file__)],
    }


def run(stage: Stage, root: Path, command: Sequence[str]) -> tuple[int, list[Fault]]:
    """Runs a command under the audit of a stage: its status, and what it reached."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        site = _SITECUSTOMIZE.format(path=folder, hook=os.path.realpath(audit_hook.__file__))
        (Path(folder) / "sitecustomize.py").write_text(site, encoding="utf-8")
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        rule = json.dumps(rules(stage, root))
        environment = {**os.environ, "PYTHONPATH": path, audit_hook.LOG: str(log), audit_hook.RULES: rule}
        status = subprocess.run(
            command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
        ).returncode
        if not log.exists():
            return status, [
                Fault("", 0, "audit", "the hook was not loaded", "Python must run its sitecustomize: no -S, -I.")
            ]
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    do = f"The {stage.name} stage does not see that: see CONTRIBUTING.md, {stage.name}. Take what is needed as an argument."
    return status, unique(
        Fault("", 0, "audit", f"{line['what']} ({line['test'] or ' '.join(line['argv'])})", do) for line in lines
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.audit", description="Run a stage's own tests under an audit of imports and opened files.",
        epilog="example:\n  uv run python -m tools.audit bench\n  uv run python -m tools.audit kernels -- -k dispatch\n\nWhat follows -- goes to pytest.\n", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("stage", choices=AUDITED, help="whose tests")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    parser.add_argument("--json", action="store_true", help="print the faults as JSON")
    arguments = sys.argv[1:] if argv is None else list(argv)
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    args = parser.parse_args(arguments[:cut])
    stage = by_name(args.stage)
    tests = args.root / stage.folder / "tests"
    if not tests.is_dir():
        parser.error(f"{tests}: no such folder")
    # No cache: pytest would open files of a former run, of any stage. With -n, xdist's workers are children and audited too.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(tests), *arguments[cut + 1 :]]
    status, faults = run(stage, args.root.resolve(), command)
    print(
        json.dumps([dataclasses.asdict(fault) for fault in faults])
        if args.json
        else render(faults, [f"audit {stage.name}"])
    )
    if status not in (0, _NO_TESTS):
        print(f"the tests of {stage.name} fail (pytest's status {status})", file=sys.stderr)
    return 1 if faults or status else 0


if __name__ == "__main__":
    sys.exit(main())
