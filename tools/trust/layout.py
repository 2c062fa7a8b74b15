"""What the tree holds, whatever is written inside: an owner for each file, no plugin, no configuration and no file of a kind
that the other checks cannot read."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from tools.trust import codeowners
from tools.trust.edges import requirement_name
from tools.trust.fault import Fault
from tools.trust.finding import Finding, Kind
from tools.trust.source import Repository
from tools.trust.stages import BENCH, PACKAGES, Stage, by_package, stage_of

BASELINES = "tops.baselines"  # the one entry-point group: tops_bench registers, tops_tests checks
_CONFTEST = Kind(
    "conftest",
    "changes the tests around it, and stands where no import shows it",
    "Import what a test needs, or write a fixture in the test's own file. A conftest that must be is a line in "
    "tools/trust/allowlist.txt with its reason, in a change of its own.",
    in_tests=True,
)
_HOOKS = ("sitecustomize.py", "usercustomize.py")
_PYTEST_FILES = ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "setup.py")
_SOURCE_KINDS = (".py", ".toml", ".json", ".lock", ".md")  # all of them text that a check or a person reads
_TOP = ("pyproject.toml", "README.md", "LICENSE")
_TEST_KINDS = (*_SOURCE_KINDS, ".txt", ".sh")


def findings(repository: Repository) -> Iterator[Finding]:
    """What the allowlist may permit: each conftest.py."""
    for path in repository.files:
        if PurePosixPath(path).name == "conftest.py":
            yield Finding(path, 0, "", "conftest", _CONFTEST)


def check(repository: Repository) -> Iterator[Fault]:
    yield from codeowners.check(repository)
    for path in repository.files:
        name, stage = PurePosixPath(path).name, stage_of(path)
        if stage is None:
            yield Fault(
                path, 0, "one-stage", "no stage owns this file, or more than one does",
                "Put it in a package, in tools/ or .github/, or name it in tools/trust/stages.py (a change of the tools).",
            )  # fmt: skip
        if (repository.root / path).is_symlink():
            yield Fault(
                path, 0, "file-kind", "a symbolic link: it brings in files that another stage owns", "Write the file."
            )
        if name in _HOOKS or name.endswith(".pth"):
            yield Fault(path, 0, "file-kind", f"{name} runs code at every start of Python", "Call what is to run.")
        if name in _PYTEST_FILES:
            yield Fault(
                path, 0, "package-config", f"{name} changes how tests are found and run",
                "The root pyproject.toml, table tool.pytest, holds for all packages.",
            )  # fmt: skip
        if stage is not None and stage.package:
            yield from _file_kind(path, name, stage)
    for stage in PACKAGES:
        yield from _pyproject(repository, stage)


def _file_kind(path: str, name: str, stage: Stage) -> Iterator[Fault]:
    inside = path.removeprefix(stage.folder)
    if inside in _TOP:
        return
    if inside.startswith("src/") and not inside.startswith(f"src/{stage.package}/"):
        yield Fault(
            path, 0, "foreign-package", f"src/ of {stage.distribution} holds {stage.package} alone: this would stand in for another package",
            f"Put it below src/{stage.package}/.",
        )  # fmt: skip
    if name == "py.typed":
        return
    kinds = _TEST_KINDS if inside.startswith("tests/") else _SOURCE_KINDS
    if not inside.startswith(("src/", "tests/")):
        yield Fault(path, 0, "file-kind", f"beside src/ and tests/ a package holds {', '.join(_TOP)}", "Move it.")
    elif not name.endswith(kinds):
        yield Fault(
            path, 0, "file-kind", f"a package holds {', '.join(kinds)} and py.typed",
            "Data that code reads is TOML or JSON; arrays (.npz) are computed, not stored.",
        )  # fmt: skip


def _pyproject(repository: Repository, stage: Stage) -> Iterator[Fault]:
    path = f"{stage.folder}pyproject.toml"
    if path not in repository.files:
        yield Fault(path, 0, "package-config", "missing", "Each package has its own pyproject.toml.")
        return
    try:
        data = tomllib.loads(repository.text(path))
    except tomllib.TOMLDecodeError as error:
        yield Fault(path, 0, "package-config", f"no valid TOML: {error}", "Mend it.")
        return
    project = data.get("project", {})
    for what in (*_entry_points(project, stage), *_tool_tables(data, stage)):
        yield Fault(
            path, 0, "package-config", what, "See CONTRIBUTING.md: a package's pyproject declares, and changes no tool."
        )
    yield from _dependencies(path, data, project, stage)


def _entry_points(project: Mapping[str, Any], stage: Stage) -> Iterator[str]:
    command = stage.distribution
    for name, value in project.get("scripts", {}).items():
        if name != command or value != f"{stage.package}.cli:main":
            yield f"script {name} = {value!r}; expected {command} = {stage.package}.cli:main alone"
    for group, points in project.get("entry-points", {}).items():
        if group != BASELINES or stage is not BENCH:
            yield f"entry-point group {group!r}: it makes code run in other stages' processes"
            continue
        for name, value in points.items():
            if not value.startswith("tops_bench.baselines."):
                yield f"{BASELINES}: {name} = {value!r}; expected a module of tops_bench.baselines"
    if "gui-scripts" in project or "dynamic" in project:
        yield "gui-scripts and dynamic fields: not declared, so not seen"


def _tool_tables(data: Mapping[str, Any], stage: Stage) -> Iterator[str]:
    tool = data.get("tool", {})
    for table in sorted(set(tool) - {"hatch", "uv"}):
        yield f"table tool.{table}: tools are configured in the root pyproject.toml"
    if set(tool.get("uv", {})) - {"sources"}:
        yield "table tool.uv: expected sources alone"
    for name, source in tool.get("uv", {}).get("sources", {}).items():
        if source != {"workspace": True}:
            yield f"tool.uv.sources.{name} = {source!r}; expected a sibling of the workspace"
    expected = {"build": {"targets": {"wheel": {"packages": [f"src/{stage.package}"]}}}}
    if tool.get("hatch", expected) != expected:
        yield f"table tool.hatch: expected wheel packages = [src/{stage.package}] alone: no hook, no file from elsewhere"
    backend = data.get("build-system", {})
    if backend.get("build-backend") != "hatchling.build" or "backend-path" in backend:
        yield f"build-system {backend!r}; expected hatchling.build"


def _dependencies(path: str, data: Mapping[str, Any], project: Mapping[str, Any], stage: Stage) -> Iterator[Fault]:
    groups = [*project.get("optional-dependencies", {}).values(), *data.get("dependency-groups", {}).values()]
    lines = [*project.get("dependencies", []), *(line for group in groups for line in group if isinstance(line, str))]
    for name in sorted({requirement_name(line) for line in lines}):
        sibling = by_package(name.replace("-", "_"))
        if sibling is not None and (sibling is stage or stage.sight(sibling.package) is None):
            do = "What belongs to another stage goes there. See CONTRIBUTING.md."
            yield Fault(path, 0, "dependencies", f"{stage.distribution} depends on {name}, which it must not see", do)
        elif sibling is None and stage.third_party is not None and name not in stage.third_party:
            allowed = ", ".join(stage.third_party) or "nothing"
            do = "Do without: users install this package, and its dependencies are theirs too."
            yield Fault(
                path, 0, "dependencies", f"{stage.distribution} depends on {name}; third parties allowed: {allowed}", do
            )
