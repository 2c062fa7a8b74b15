"""What changed in the manifest between a git revision and now."""

import dataclasses
import re
import subprocess
from pathlib import Path

from tops_manifest._reader import parse_toml
from tops_manifest.canonical import contract_digest_of
from tops_manifest.changes import Change, contract_changes
from tops_manifest.cost import Cost
from tops_manifest.digest import row_data
from tops_manifest.errors import Fault, ManifestError
from tops_manifest.table import cost_text
from tops_manifest.tree import PACKAGE, Entry, Tree, load, parse

_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./~^@{}+-]{0,199}\Z")  # never an option
_TIMEOUT_S = 60


class RevisionError(Exception):
    """The revision cannot be read: there is no such one, no git, or no checkout."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpDiff:
    """One op that is not as it was."""

    op: str
    kind: str  # added | removed | changed
    version: tuple[int | None, int | None]  # before, now
    contract: tuple[Change, ...] = ()
    workloads: tuple[str, ...] = ()
    cost: tuple[str, ...] = ()
    unversioned: bool = False  # the contract's digest changed under its version

    @property
    def breaking(self) -> bool:
        """Whether a call that was right before may fail or mean something else now."""
        return self.kind == "removed" or any(change.breaking for change in self.contract)


def diff(tree: Tree, revision: str) -> tuple[list[OpDiff], list[Fault]]:
    """The ops that differ, by name, and the faults of files that cannot be compared. Raises RevisionError."""
    if tree.root is None:
        raise RevisionError("tops-manifest is installed alone here; diff needs a git checkout (--root DIR)")
    before, faults = _at(tree.root, revision)
    now, faults_now = load(tree)
    bad = {Path(fault.file).stem for fault in faults + faults_now}
    found = []
    for name in sorted((before.keys() | now.keys()) - bad):
        one = _op_diff(name, before.get(name), now.get(name))
        if one is not None:
            found.append(one)
    return found, faults + faults_now


def _op_diff(name: str, old: Entry | None, new: Entry | None) -> OpDiff | None:
    if old is None or new is None:
        before, now = (None if entry is None else entry.op.version for entry in (old, new))
        return OpDiff(name, "added" if old is None else "removed", (before, now))
    contract = contract_changes(old.op, new.op)
    is_other = contract_digest_of(old.op) != contract_digest_of(new.op)
    if is_other and all(change.key.startswith("op.") for change in contract):
        contract.append(Change("contract", False, "said in other words that no caller sees, like another letter"))
    found = OpDiff(
        name,
        "changed",
        (old.op.version, new.op.version),
        tuple(contract),
        tuple(_row_changes(old, new)),
        tuple(_cost_changes(old.cost, new.cost)),
        is_other and new.op.version <= old.op.version,
    )
    same = not (found.contract or found.workloads or found.cost) and old.op.version == new.op.version
    return None if same else found


def _row_changes(old: Entry, new: Entry) -> list[str]:
    was, now = {row.name: row_data(row) for row in old.rows}, {row.name: row_data(row) for row in new.rows}
    found = [f"{name}: removed" for name in sorted(was.keys() - now.keys())]
    found += [f"{name}: added" for name in sorted(now.keys() - was.keys())]
    for name in sorted(was.keys() & now.keys()):
        parts = [part for part in was[name] if was[name][part] != now[name][part]]
        if parts:
            found.append(f"{name}: {', '.join(f'{part} {was[name][part]} -> {now[name][part]}' for part in parts)}")
    return found


def _cost_changes(old: Cost, new: Cost) -> list[str]:
    pairs = (("fwd", old.fwd, new.fwd), ("vjp", old.vjp, new.vjp))
    texts = [(which, was and cost_text(was), now and cost_text(now)) for which, was, now in pairs]
    return [f"{which}: {was or 'none'} -> {now or 'none'}" for which, was, now in texts if was != now]


def _at(root: Path, revision: str) -> tuple[dict[str, Entry], list[Fault]]:
    """The manifest at a revision: every file that is sound, and the faults of the others."""
    if not _REVISION.match(revision):
        raise RevisionError(
            f"{revision!r} is no git revision; give a commit, branch or tag, like HEAD~1 or origin/main"
        )
    commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    sha = commit.decode().strip()
    listed = _git(root, "ls-tree", "-r", "-z", "--name-only", sha, "--", f"{PACKAGE.as_posix()}/ops/").decode()
    entries: dict[str, Entry] = {}
    faults: list[Fault] = []
    for path in filter(None, listed.split("\0")):
        stem, file = Path(path).stem, f"ops/{Path(path).name} at {revision}"
        if not path.endswith(".toml"):
            continue
        try:
            entries[stem] = parse(parse_toml(_git(root, "cat-file", "blob", f"{sha}:{path}"), file), file, stem)
        except ManifestError as error:
            faults += error.faults
    return entries, faults


def _git(root: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RevisionError(f"git cannot be run: {error}") from error
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip() or "no such revision here"
        raise RevisionError(f"git {arguments[0]} {arguments[-1]}: {told}")
    return done.stdout
