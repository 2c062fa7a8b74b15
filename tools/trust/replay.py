"""The base replay: the judges as they were (manifest, workloads, tests of the merge base) on the kernels as they are to be.

A change of kernels may bring new tests along, or mend old ones. It may not need to: what the old tests held must hold still.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.trust import ratchets
from tools.trust.fault import Fault
from tools.trust.revision import Git
from tools.trust.stages import KERNELS, MANIFEST, TESTS, WORKLOADS

LABEL = "contract-change"
JUDGES = (MANIFEST, WORKLOADS, TESTS)
_SUITE = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"{TESTS.folder}tests")
_CERTIFY = ("-m", "tops_tests", "certify", "--quick")


@dataclasses.dataclass(frozen=True, slots=True)
class Override:
    """What lets a change pass whose replay fails, as the hosting site tells it: never what the change itself says."""

    labels: tuple[str, ...] = ()
    approved: bool = False  # the review decision: every code owner asked has approved


def check(
    git: Git,
    base: str,
    head: str,
    override: Override = Override(),
    *,
    built: bool = True,
    commands: Sequence[Sequence[str]] = (_SUITE, _CERTIFY),
) -> list[Fault]:
    """`base` is the merge base. `built`: from wheels in a fresh environment; otherwise from the folders, by this interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        git.export(base, tree, [*(stage.folder for stage in JUDGES), "pyproject.toml", "uv.lock", "CHANGELOG.md"])
        git.export(head, tree, [KERNELS.folder])
        run = _built(tree) if built else _in_place(tree)
        failed = [(command, status) for command in commands if (status := run(command))]
    if not failed:
        return []
    missing = _not_overridden(git, base, head, override)
    if not missing:
        print("base replay: fails, and is overridden by label, approval and version", file=sys.stderr)
        return []
    what = "; ".join(f"{' '.join(command[1:])} ends with {status}" for command, status in failed)
    do = (
        "Mend the kernel: what was promised holds still. Where a test was wrong, mend it in a change of the tests alone, first. "
        f"A promise that is to change needs all of: {'; '.join(missing)}."
    )
    what = f"the tests as they were fail on the kernels as they are to be: {what}"
    return [Fault("", 0, "base-replay", what, do)]


def _not_overridden(git: Git, base: str, head: str, override: Override) -> list[str]:
    missing = []
    if LABEL not in override.labels:
        missing.append(f"the label {LABEL}")
    if not override.approved:
        missing.append("an owner's approval")

    def old(path: str) -> str | None:
        return git.text(base, path)

    def new(path: str) -> str | None:
        return git.text(head, path)

    touched = {path for change in git.changes(base, head) for path in change.paths}
    for stage in (KERNELS, TESTS, WORKLOADS):
        if any(path.startswith(stage.folder) for path in touched) and not ratchets.is_bumped(old, new, stage.folder):
            missing.append(f"a higher version of {stage.distribution}")
    return missing


Run = Callable[[Sequence[str]], int]


def _runner(python: Path, tree: Path, environment: Mapping[str, str]) -> Run:
    def run(command: Sequence[str]) -> int:
        print(f"base replay: {' '.join(command)}", file=sys.stderr)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "TOPS_"))}
        workspace = {"TOPS_WORKSPACE": str(tree / "workspace")}
        return subprocess.run(
            [python, *command],
            cwd=tree,
            env={**clean, **workspace, **environment},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            check=False,
        ).returncode

    return run


def _in_place(tree: Path) -> Run:
    path = os.pathsep.join(str(tree / stage.folder / "src") for stage in (*JUDGES, KERNELS))
    return _runner(Path(sys.executable), tree, {"PYTHONPATH": path})


def _built(tree: Path) -> Run:
    """Wheels of the four in an environment of their own, third parties at the base's locked versions."""
    uv = os.environ.get("UV") or shutil.which("uv") or "uv"

    def do(*arguments: str | Path) -> None:
        subprocess.run([uv, *arguments], cwd=tree, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True)

    do("export", "--frozen", "--all-packages", "--no-emit-workspace", "--no-hashes", "--quiet", "-o", "constraints.txt")
    for stage in (*JUDGES, KERNELS):
        do("build", "--wheel", "--no-sources", "--quiet", "-o", "dist", tree / stage.folder)
        shutil.rmtree(tree / stage.folder / "src")  # what runs is what was built
    do("venv", "--quiet", "--python", sys.executable, "env")
    python = tree / "env" / "bin" / "python"
    do("pip", "install", "--quiet", "--python", python, "-c", "constraints.txt", *sorted((tree / "dist").glob("*.whl")))
    return _runner(python, tree, {"PYTHONPATH": ""})
