"""manifest.lock: the digests of every op as they were last agreed on, so that no contract changes unseen or unversioned."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from tops_manifest._reader import Reader, read_toml
from tops_manifest.digest import Digests
from tops_manifest.errors import Fault
from tops_manifest.model import STATUSES
from tops_manifest.tree import LOCK, Entry

_HEAD = """\
# Written by `tops-manifest lock`; do not edit. Digests are sha256 of the canonical form of each part of ops/<op>.toml.
schema = 1
"""
_PARTS = ("contract", "listing", "workloads", "cost")
_HEX = frozenset("0123456789abcdef")
_RELOCK = "run `tops-manifest lock`"


def read(path: Path) -> dict[str, Digests]:
    """What is locked, by op; nothing where there is no lock yet. Raises ManifestError for a lock that was edited or half merged."""
    if not path.exists() and not path.is_symlink():
        return {}
    top = Reader(LOCK, read_toml(path, LOCK))
    top.known(("schema", "ops"))
    top.integer("schema", 1, 1)
    result = {name: _digests(at) for name, at in top.sub("ops", required=False).named_subs()}
    top.raise_faults()
    return result


def _digests(at: Reader) -> Digests:
    at.known(("version", "status", *_PARTS))
    parts = {part: at.text(part) for part in _PARTS}
    for part, value in parts.items():
        if isinstance(at.table.get(part), str) and not (len(value) == 64 and _HEX.issuperset(value)):
            at.fault(part, value, "64 hex digits")
    return Digests(version=at.integer("version", 1, 1_000_000), status=at.choice("status", STATUSES), **parts)


def text(digests: Mapping[str, Digests]) -> str:
    """The file's content: one table an op, sorted."""
    lines = [_HEAD]
    for name in sorted(digests):
        lines.append(f"[ops.{name}]")
        lines += [
            f"{key} = {value}" if isinstance(value, int) else f'{key} = "{value}"'
            for key, value in dataclasses.asdict(digests[name]).items()
        ]
        lines.append("")
    return "\n".join(lines)


def write(path: Path, content: str) -> None:
    """Whole or not at all: an interrupted write leaves the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(content, encoding="utf-8", newline="\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def version_faults(locked: Mapping[str, Digests], entries: Mapping[str, Entry], unread: frozenset[str]) -> list[Fault]:
    """What no lock may accept: a contract changed under its version, a version going down, an op gone that was not deprecated.

    `unread`: ops whose file is there and at fault.
    """
    faults = []
    for name, old in sorted(locked.items()):
        file = f"ops/{name}.toml"
        if name in unread:
            continue
        if name not in entries:
            if old.status != "deprecated":
                expected = 'the op to stay: set status = "deprecated" and lock that first, remove it in a later version'
                faults.append(Fault(file, "(file)", "nothing there", expected))
            continue
        new = entries[name].digests()
        if new.version < old.version:
            faults.append(Fault(file, "op.version", str(new.version), f"{old.version} or more: that is locked"))
        elif new.contract != old.contract and new.version == old.version:
            expected = f"{old.version + 1}: the contract is not the one that was locked as version {old.version}"
            faults.append(Fault(file, "op.version", str(new.version), expected))
    return faults


def stale(locked: Mapping[str, Digests], entries: Mapping[str, Entry], unread: frozenset[str]) -> list[Fault]:
    """Where the lock and the files differ."""
    faults = []
    for name in sorted(locked.keys() | entries.keys()):
        if name in unread:
            continue
        if name not in entries:
            faults.append(Fault(LOCK, f"ops.{name}", "locked", f"nothing: ops/{name}.toml is gone; {_RELOCK}"))
        elif name not in locked:
            faults.append(Fault(LOCK, f"ops.{name}", "nothing", f"the digests of ops/{name}.toml; {_RELOCK}"))
        else:
            old, new = dataclasses.asdict(locked[name]), dataclasses.asdict(entries[name].digests())
            for key in (key for key in old if old[key] != new[key]):
                expected = f"{str(new[key])[:12]}, as ops/{name}.toml has it; {_RELOCK}"
                faults.append(Fault(LOCK, f"ops.{name}.{key}", str(old[key])[:12], expected))
    return faults
