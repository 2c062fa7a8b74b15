"""Revisions of the repository as git has them, read without trusting anything in the checkout."""

import dataclasses
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path


class RevisionError(Exception):
    """git cannot answer: a wrong revision, a shallow clone, no repository."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One changed path. A rename has two names; otherwise old and new are the same."""

    old: str
    new: str
    mode: str = "100644"  # of the new file; 000000 where it is gone

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.old, self.new)))


@dataclasses.dataclass(frozen=True, slots=True)
class Git:
    root: Path

    def run(self, *arguments: str, data: bytes | None = None, environment: Mapping[str, str] | None = None) -> str:
        command = ["git", "-C", str(self.root), "-c", "core.quotepath=off", *arguments]
        ran = subprocess.run(
            command, input=data, capture_output=True, check=False, env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL if data is None else None,
        )  # fmt: skip
        if ran.returncode:
            raise RevisionError(f"git {' '.join(arguments[:3])}: {ran.stderr.decode(errors='replace').strip()}")
        return ran.stdout.decode(errors="surrogateescape")

    def resolve(self, revision: str) -> str:
        return self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()

    def merge_base(self, base: str, head: str) -> str:
        return self.run("merge-base", base, head).strip()

    def changes(self, base: str, head: str) -> list[Change]:
        """What differs between two commits; a moved file, even one that was edited on the way, has both its names."""
        fields = self.run("diff-tree", "-r", "-z", "--no-ext-diff", "-M40%", "-l0", base, head).split("\0")
        found = []
        while len(fields) > 1:
            meta, path = fields.pop(0), fields.pop(0)
            new = fields.pop(0) if meta.split()[4][0] in "RC" else path
            found.append(Change(path, new, meta.split()[1]))
        return found

    def text(self, revision: str, path: str) -> str | None:
        """A file's text at a revision; None where it has no such file."""
        if not self.run("ls-tree", "--name-only", revision, "--", path).strip():
            return None
        return self.run("cat-file", "blob", f"{revision}:{path}")

    def export(self, revision: str, folder: Path, paths: Sequence[str] = ()) -> None:
        """Writes a revision's files. Not by `git archive`: an attribute in the revision itself may hide files from that."""
        with tempfile.TemporaryDirectory() as scratch:
            index = {"GIT_INDEX_FILE": os.path.join(scratch, "index")}
            self.run("read-tree", revision, environment=index)
            names = self.run("ls-files", "-z", "--cached", "--", *paths, environment=index)
            self.run(
                "checkout-index", "-z", "--stdin", "--quiet", f"--prefix={folder.resolve()}/",
                data=names.encode(errors="surrogateescape"), environment=index,
            )  # fmt: skip
