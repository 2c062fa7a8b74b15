"""A copy of the repository to break: edited, judged, and put back."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.trust.source import Repository

KERNELS = "packages/tops-kernels/src/tops_kernels/"
BENCH = "packages/tops-bench/src/tops_bench/"
TESTS = "packages/tops-tests/src/tops_tests/"
WORKLOADS = "packages/tops-workloads/src/tops_workloads/"
MANIFEST = "packages/tops-manifest/src/tops_manifest/"
_IDENTITY = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


@dataclass(frozen=True)
class Tree:
    root: Path

    def git(self, *arguments: str) -> str:
        command = [
            "git",
            "-C",
            str(self.root),
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "commit.gpgsign=false",
            *arguments,
        ]
        ran = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.root), **_IDENTITY},
        )
        return ran.stdout.strip()

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def append(self, path: str, text: str) -> None:
        self.write(path, (self.root / path).read_text() + text)

    def replace(self, path: str, old: str, new: str) -> None:
        text = (self.root / path).read_text()
        assert old in text, f"{path} no longer holds {old!r}: mend this attempt"
        self.write(path, text.replace(old, new, 1))

    def commit(self) -> str:
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--no-verify", "-m", "attempt")
        return self.git("rev-parse", "HEAD")

    def restore(self) -> None:
        self.git("reset", "--quiet", "--hard", "clean")
        self.git("clean", "--quiet", "-d", "--force", "-x")


def copy_of(root: Path, folder: Path) -> Tree:
    """Every tracked file, and what would be tracked, as one commit tagged `clean`."""
    tree = Tree(folder)
    for path in Repository(root).files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes((root / path).read_bytes())
        (folder / path).chmod((root / path).stat().st_mode & 0o777)
    tree.git("init", "--quiet")
    tree.commit()
    tree.git("tag", "clean")
    return tree


Edit = Callable[[Tree], None]


@dataclass(frozen=True)
class Attempt:
    """One way around a boundary: what it does to the tree, which check catches it, and a word of what that check advises."""

    name: str
    check: str
    advice: str
    edit: Edit


def adds(path: str, text: str) -> Edit:
    """A new file, or lines at the end of one that is there."""
    return lambda tree: tree.append(path, text) if (tree.root / path).exists() else tree.write(path, text)


def replaces(path: str, old: str, new: str) -> Edit:
    return lambda tree: tree.replace(path, old, new)
