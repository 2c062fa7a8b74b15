"""What may only move one way, compared between two revisions: tolerances, contracts, locked dependencies, the README's commands.

The packages' own commands hold each tree against its lock (`tops-manifest check`, `tops-tests tolerances --check`). A change that
edits table and lock together passes those; it does not pass these.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tools.trust.fault import Fault
from tools.trust.stages import MANIFEST, PACKAGES, TESTS

TOLERANCES = f"{TESTS.folder}src/tops_tests/tolerances.lock"
OPS = f"{MANIFEST.folder}src/tops_manifest/ops/"
UV_LOCK, README, CHANGELOG = "uv.lock", "README.md", "CHANGELOG.md"
Text = Callable[[str], str | None]  # path -> text of one revision; None where it has no such file
_COMMAND = re.compile(r"^<!-- command: (\S+) -->\n(.*?^```.*?^```)", re.MULTILINE | re.DOTALL)
_NO_CONTRACT = ("version", "status", "doc", "ref", "family", "kernel_map")  # keys of [op] that bind no caller


def check(base: Text, head: Text, changed: list[str], stages: frozenset[str]) -> Iterator[Fault]:
    yield from tolerances(base, head)
    yield from contracts(base, head, changed)
    if "tools" not in stages:
        yield from locked(base, head, changed)
        yield from commands(base, head)


def tolerances(base: Text, head: Text) -> Iterator[Fault]:
    old, new = _numbers(base(TOLERANCES)), _numbers(head(TOLERANCES))
    loosened = [
        f"{key}: {value:g} -> {_shown(new.get(key))}" for key, value in old.items() if not new.get(key, 1.0) <= value
    ]
    if not loosened:
        return
    bumped = is_bumped(base, head, TESTS.folder)
    section = changelog_section(head(CHANGELOG) or "", TESTS.distribution, version(head, TESTS.folder) or "")
    if not bumped or "tolerance" not in section.lower():
        yield Fault(
            TOLERANCES, 0, "tolerance-ratchet", f"loosened: {'; '.join(loosened)}",
            "Mend the kernel. Where the tolerance itself is wrong: bump the version of tops-tests, say why in its section of "
            "CHANGELOG.md (a line with the word tolerance), and let the test stage's owner decide.",
        )  # fmt: skip


def contracts(base: Text, head: Text, changed: list[str]) -> Iterator[Fault]:
    for path in changed:
        if not (path.startswith(OPS) and path.endswith(".toml")):
            continue
        old, new = _contract(base(path)), _contract(head(path))
        if old is None:
            continue  # a new op binds nobody yet
        if new is None:
            what = "the op is gone, or its file is no TOML"
            yield Fault(
                path, 0, "contract-version", what, 'Set status = "deprecated" first; remove it a minor version later.'
            )
        elif old[1] != new[1] and new[0] <= old[0]:
            parts = sorted(key for key in old[1].keys() | new[1].keys() if old[1].get(key) != new[1].get(key))
            yield Fault(
                path, 0, "contract-version", f"the contract changed ({', '.join(parts)}), and op.version is still {new[0]}",
                "Set op.version one higher, run `uv run tops-manifest lock`, and say in CHANGELOG.md what callers must change.",
            )  # fmt: skip


def locked(base: Text, head: Text, changed: list[str]) -> Iterator[Fault]:
    """uv.lock rides with a package whose own dependencies changed; otherwise only the workspace's versions in it may change."""
    if any(
        f"{stage.folder}pyproject.toml" in changed and _requires(base, stage.folder) != _requires(head, stage.folder)
        for stage in PACKAGES
    ):
        return
    old, new = _third_party(base(UV_LOCK)), _third_party(head(UV_LOCK))
    if old != new:
        names = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        yield Fault(
            UV_LOCK, 0, "lock-rides", f"other versions of {', '.join(names)}, and no package's dependencies changed",
            "New versions of dependencies are a change of the tools, alone: `git checkout BASE -- uv.lock && uv lock`.",
        )  # fmt: skip


def commands(base: Text, head: Text) -> Iterator[Fault]:
    """CI runs the README's marked commands: whoever writes them is a judge."""
    old, new = (dict(_COMMAND.findall(text(README) or "")) for text in (base, head))
    changed = sorted(key for key in old if old[key] != new.get(key))
    if changed:
        yield Fault(
            README, 0, "readme-commands", f"the command that CI runs as {', '.join(changed)} changed",
            "That is a change of the tools, alone.",
        )  # fmt: skip


def version(text: Text, folder: str) -> str | None:
    return _project(text, folder).get("version")


def is_bumped(base: Text, head: Text, folder: str) -> bool:
    return _number(version(head, folder)) > _number(version(base, folder))


def changelog_section(text: str, package: str, release: str) -> str:
    """The lines under `## package`, `### release`; empty where there are none."""
    whole = re.search(rf"^## {re.escape(package)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    found = whole and re.search(
        rf"^### {re.escape(release)}\b[^\n]*\n(.*?)(?=^### |\Z)", whole[1], re.MULTILINE | re.DOTALL
    )
    return found[1] if found else ""


def _number(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text or "")[:3])


def _numbers(text: str | None) -> dict[str, float]:
    try:
        data = json.loads(text or "{}")
    except ValueError:
        return {}  # unreadable: to the ratchet every tolerance is gone; tops-tests names the fault
    found = data.get("tolerances", {}) if isinstance(data, dict) else {}
    return {
        key: value for key, value in found.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _shown(value: float | None) -> str:
    return "removed" if value is None else f"{value:g}"


def _contract(text: str | None) -> tuple[int, dict[str, Any]] | None:
    """(op.version, what binds callers)."""
    data = _toml(text)
    if not data:
        return None
    op = {key: value for key, value in data.get("op", {}).items() if key not in _NO_CONTRACT}
    binding = {key: value for key, value in data.items() if key not in ("op", "workloads", "cost", "schema")}
    number = data.get("op", {}).get("version")
    return (number if isinstance(number, int) else 0), {**binding, "op": op}


def _project(text: Text, folder: str) -> Mapping[str, Any]:
    found = _toml(text(f"{folder}pyproject.toml")).get("project", {})
    return found if isinstance(found, dict) else {}


def _requires(text: Text, folder: str) -> object:
    project = _project(text, folder)
    return project.get("dependencies"), project.get("optional-dependencies")


def _third_party(text: str | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for package in _toml(text).get("package", ()):
        if "editable" not in package.get("source", {}) and "virtual" not in package.get("source", {}):
            found[f"{package.get('name')} {package.get('version')}"] = package
    return found


def _toml(text: str | None) -> dict[str, Any]:
    try:
        return tomllib.loads(text or "")
    except tomllib.TOMLDecodeError:
        return {}  # the commands that read the file name the fault
