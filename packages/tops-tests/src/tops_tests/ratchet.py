"""tolerances.lock and its ratchet: tolerances tighten freely and loosen only with a new, explained version."""

import dataclasses
import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from tops_tests import tolerances

LOCK = Path(__file__).with_name("tolerances.lock")
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


class LockError(ValueError):
    """A lock file that cannot be read, or a lock that may not be written."""


@dataclasses.dataclass(frozen=True, slots=True)
class Lock:
    version: str  # of tops-tests when it was written
    tolerances: Mapping[str, float]

    @classmethod
    def of_the_table(cls) -> "Lock":
        return cls(version("tops-tests"), tolerances.as_data())


def read(path: Path = LOCK) -> Lock:
    """Raises LockError, naming file and fault."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LockError(f"{path.name}: {error}; run `tops-tests tolerances --lock`") from error
    if not isinstance(data, dict) or set(data) != {"version", "tolerances"} or not isinstance(data["tolerances"], dict):
        raise LockError(f"{path.name}: expected an object of `version` and `tolerances`; got {str(data)[:80]}")
    numbers = data["tolerances"]
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise LockError(f"{path.name}: {key}: got {value!r}; expected a number in [0, 1)")
    if not isinstance(data["version"], str) or not _VERSION.match(data["version"]):
        raise LockError(f"{path.name}: version: got {data['version']!r}; expected major.minor.patch")
    return Lock(data["version"], {key: float(value) for key, value in numbers.items()})


def write(lock: Lock, path: Path = LOCK) -> None:
    path.write_text(json.dumps(dataclasses.asdict(lock), indent=1, sort_keys=True) + "\n")


def loosened(old: Lock, new: Lock) -> list[str]:
    """What `new` lets pass that `old` did not: a larger tolerance, or an entry gone. (A new entry binds more, not less.)"""
    result = []
    for key, value in old.tolerances.items():
        if key not in new.tolerances:
            result.append(f"{key}: {value:g} -> removed")
        elif new.tolerances[key] > value:
            result.append(f"{key}: {value:g} -> {new.tolerances[key]:g}")
    return result


def faults(new: Lock, old: Lock, changelog: Path | None) -> list[str]:
    """Why `new` may not follow `old`; none where nothing loosened, or where a new version says so."""
    changes = loosened(old, new)
    if not changes:
        return []
    if _number(new.version) <= _number(old.version):
        return [
            f"tolerances: {change} without a new version (tops-tests {old.version}): tighten the kernel, or bump "
            "tops-tests and say why in its changelog section"
            for change in changes
        ]
    section = None if changelog is None else changelog_section(changelog, new.version)
    if not section or "tolerance" not in section.lower():
        return [
            f"tolerances: {change}: CHANGELOG.md, tops-tests {new.version}, has no line that speaks of the tolerance"
            for change in changes
        ]
    return []


def check(changelog: Path | None, against: Path | None = None) -> list[str]:
    """The table against the lock beside it, and both against another revision's lock where one is given."""
    table, lock = Lock.of_the_table(), read()
    found = faults(table, lock, changelog)
    if not found and table.tolerances != lock.tolerances:
        changed = sorted(set(table.tolerances.items()) ^ set(lock.tolerances.items()))
        keys = ", ".join(dict.fromkeys(key for key, _ in changed))
        found.append(f"tolerances.lock is behind the table ({keys}): run `tops-tests tolerances --lock`")
    if against is not None:
        found += faults(table, read(against), changelog)
    return found


def update(changelog: Path | None) -> None:
    """Writes the lock. Raises LockError where the ratchet forbids it."""
    table = Lock.of_the_table()
    if LOCK.exists():
        found = faults(table, read(), changelog)
        if found:
            raise LockError("\n".join(found))
    write(table)


def find_changelog(start: Path = LOCK) -> Path | None:
    """The workspace's CHANGELOG.md above the package; None in an installed copy."""
    for folder in start.parents:
        if (folder / "CHANGELOG.md").is_file() and (folder / "packages").is_dir():
            return folder / "CHANGELOG.md"
    return None


def changelog_section(path: Path, release: str) -> str | None:
    """The text under `## tops-tests`, `### <release>`; None where there is no such section."""
    package = re.search(r"^## tops-tests\n(.*?)(?=^## |\Z)", path.read_text(), re.MULTILINE | re.DOTALL)
    if package is None:
        return None
    found = re.search(rf"^### {re.escape(release)}\b[^\n]*\n(.*?)(?=^### |\Z)", package[1], re.MULTILINE | re.DOTALL)
    return None if found is None else found[1]


def _number(text: str) -> tuple[int, ...]:
    match = _VERSION.match(text)
    if match is None:
        raise LockError(f"version {text!r}; expected major.minor.patch")
    return tuple(int(part) for part in match.groups())
