"""A small workspace to judge: the five packages with nothing in them but what a test writes."""

from pathlib import Path

from tools.trust import codeowners, static
from tools.trust.fault import Fault
from tools.trust.source import Repository
from tools.trust.stages import PACKAGES

_PYPROJECT = """\
[project]
name = "{name}"
version = "0.1.0"
dependencies = [{dependencies}]

[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["src/{package}"]
"""


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def workspace(root: Path) -> Path:
    for stage in PACKAGES:
        siblings = [sight.package.replace("_", "-") for sight in stage.sees]
        needs = ", ".join(
            f'"{name}"' for name in [*siblings, *([] if stage.package == "tops_manifest" else ["jax", "numpy"])]
        )
        text = _PYPROJECT.format(name=stage.distribution, dependencies=needs, package=stage.package)
        write(root, f"{stage.folder}pyproject.toml", text)
        write(root, f"{stage.folder}src/{stage.package}/__init__.py", "")
    write(root, codeowners.PATH, codeowners.text())
    return root


def faults(root: Path, path: str = "") -> list[Fault]:
    """Every fault, or those of one file."""
    return [fault for fault in static.check(Repository(root)) if path in ("", fault.path)]


def shown(root: Path, path: str = "") -> list[str]:
    return [f"{fault.line} {fault.check}" for fault in faults(root, path)]
