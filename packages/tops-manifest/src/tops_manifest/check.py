"""Holds the files against their schema, the lock against the files, and the generated table against both."""

from pathlib import Path

from tops_manifest import lock, table
from tops_manifest.digest import Digests
from tops_manifest.errors import Fault, ManifestError
from tops_manifest.tree import TABLE, Tree, load


def check(tree: Tree) -> list[Fault]:
    """Every fault of every file at once; none where all is well."""
    entries, faults = load(tree)
    unread = _unread(tree, frozenset(entries))
    locked, lock_faults = _locked(tree)
    faults += lock_faults
    if not lock_faults:
        versions = lock.version_faults(locked, entries, unread)
        blamed = {fault.file for fault in versions}  # running lock would not mend these
        faults += versions
        faults += [
            fault
            for fault in lock.stale(locked, entries, unread)
            if f"ops/{fault.key.split('.')[1]}.toml" not in blamed
        ]
    if tree.table is not None and not unread and not any(fault.file.startswith("ops") for fault in faults):
        expected = table.markdown(entries)
        if _text(tree.table) != expected:
            got = "other text" if tree.table.exists() else "nothing there"
            faults.append(Fault(str(TABLE), "(file)", got, "what the manifest says; run `tops-manifest table --write`"))
    return faults


def relock(tree: Tree) -> tuple[list[Fault], dict[str, Digests], dict[str, Digests]]:
    """Writes the lock and the table, unless something is at fault: (faults, what was locked, what is)."""
    entries, faults = load(tree)
    locked, lock_faults = _locked(tree)
    faults += lock_faults
    faults += lock.version_faults(locked, entries, _unread(tree, frozenset(entries)))
    if faults:
        return faults, locked, locked
    now = {name: entry.digests() for name, entry in entries.items()}
    lock.write(tree.lock, lock.text(now))
    if tree.table is not None:
        lock.write(tree.table, table.markdown(entries))
    return [], locked, now


def _locked(tree: Tree) -> tuple[dict[str, Digests], list[Fault]]:
    try:
        return lock.read(tree.lock), []
    except ManifestError as error:
        return {}, list(error.faults)


def _unread(tree: Tree, read: frozenset[str]) -> frozenset[str]:
    """Ops that have a file, and the file is at fault."""
    try:
        return frozenset(path.stem for path in tree.ops.iterdir() if path.suffix == ".toml") - read
    except OSError:
        return frozenset()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
