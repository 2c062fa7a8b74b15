"""The five packages, as their own pyproject files describe them. The release and wheel tools read this, so neither keeps a list."""

import dataclasses
import functools
import os
import pathlib
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]


class ToolError(Exception):
    """What a tool cannot go on from; the message is for the person who ran it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Package:
    name: str  # tops-kernels
    version: str
    folder: pathlib.Path
    requirements: tuple[str, ...]  # as written in [project] dependencies
    command: bool  # it has a console script, named after itself

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def source(self) -> pathlib.Path:
        return self.folder / "src" / self.module

    def files(self) -> frozenset[str]:
        """Every source file, relative to src/: what a wheel must hold, no less and no more."""
        found = (p for p in self.source.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        return frozenset(p.relative_to(self.source.parent).as_posix() for p in found)


def packages(root: pathlib.Path = ROOT) -> Mapping[str, Package]:
    """Name -> package, in the order of the alphabet."""
    found: dict[str, Package] = {}
    for pyproject in sorted(root.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        name = project["name"]
        found[name] = Package(
            name=name,
            version=project["version"],
            folder=pyproject.parent,
            requirements=tuple(project["dependencies"]),
            command=name in project.get("scripts", {}),
        )
    return found


def requirement_name(requirement: str) -> str:
    """The distribution a requirement names: `tops-manifest>=0.1,<0.2` is tops-manifest."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    if match is None:
        raise ToolError(f"requirement {requirement!r} starts with no name")
    return match[0].lower().replace("_", "-").replace(".", "-")


def siblings(package: Package, known: Mapping[str, Package]) -> tuple[Package, ...]:
    """The packages of this workspace that `package` needs directly."""
    return tuple(known[name] for name in map(requirement_name, package.requirements) if name in known)


@functools.cache
def uv() -> str:
    found = os.environ.get("UV") or shutil.which("uv")  # `uv run` sets UV to itself
    if found is None:
        raise ToolError("uv is not on PATH: pip install uv")
    return found


def run(
    *command: str | pathlib.Path,
    cwd: pathlib.Path = ROOT,
    env: Mapping[str, str] | None = None,
    drop: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run to the end and hand back what it said; the caller judges the status. `drop` names variables the child must not see."""
    environment = {k: v for k, v in os.environ.items() if k not in drop} | dict(env or {})
    return subprocess.run(
        [os.fspath(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
