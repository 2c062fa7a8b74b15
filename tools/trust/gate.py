"""The stage gate: which stages a change touches, whether they may ride together, and how to split it where they may not."""

import dataclasses
import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.trust import allow, ratchets, static
from tools.trust.fault import Fault, unique
from tools.trust.revision import Change, Git
from tools.trust.source import Repository
from tools.trust.stages import KERNELS, SHARED, STAGES, TESTS, WORKLOADS, Stage, by_name, stage_of

_LANDS = (
    "tools",
    "manifest",
    "workloads",
    "tests",
    "kernels",
    "bench",
)  # the order in which parts of a split change land


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    faults: tuple[Fault, ...]
    stages: Mapping[str, tuple[str, ...]]  # stage -> its changed files
    base: str  # the merge base, which the change is held against
    needs_replay: bool


def judge(git: Git, base: str, head: str, cache: static.Cache | None = None) -> Verdict:
    """Everything but the replay. `base` and `head` are revisions. Raises RevisionError."""
    base, head = git.resolve(base), git.resolve(head)
    start = git.merge_base(base, head)
    changes = git.changes(start, head)
    by_stage = _by_stage(changes)
    stages = frozenset(by_stage) - {SHARED.name}
    changed = sorted({path for change in changes for path in change.paths})
    old, new = functools.partial(git.text, start), functools.partial(git.text, head)
    faults = [*_owned(changes), *_moved(changes), *_mixed(by_stage, stages), *ratchets.check(old, new, changed, stages)]
    if "tools" not in stages:
        faults += _static(git, base, head, cache)
    kernels_with_judges = KERNELS.name in stages and bool(stages & {TESTS.name, WORKLOADS.name})
    return Verdict(tuple(unique(faults)), by_stage, start, kernels_with_judges)


def _by_stage(changes: Sequence[Change]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for change in changes:
        for path in change.paths:
            stage = stage_of(path)
            if stage is not None:
                found.setdefault(stage.name, set()).add(path)
    return {stage.name: tuple(sorted(found[stage.name])) for stage in STAGES if stage.name in found}


def _owned(changes: Sequence[Change]) -> Iterator[Fault]:
    for change in changes:
        if change.mode in ("120000", "160000"):
            yield Fault(change.new, 0, "file-kind", "a symbolic link or a submodule", "Write the file itself.")
        for path in change.paths:
            if stage_of(path) is None:
                yield Fault(
                    path, 0, "one-stage", "no stage owns this path",
                    "Put the file in a package, in tools/ or .github/; a new place is a line in tools/trust/stages.py, in a change of its own.",
                )  # fmt: skip


def _moved(changes: Sequence[Change]) -> Iterator[Fault]:
    for change in changes:
        old, new = stage_of(change.old), stage_of(change.new)
        if old is not new and old is not None and new is not None:
            yield Fault(
                change.new, 0, "rename-across-stages", f"was {change.old}: it leaves the {old.name} stage for {new.name}",
                f"A file keeps its stage. Write what {new.name} needs there, in a change of that stage; remove the other in a change of {old.name}.",
            )  # fmt: skip


def _mixed(by_stage: Mapping[str, tuple[str, ...]], stages: frozenset[str]) -> Iterator[Fault]:
    alone = [by_name(name) for name in _LANDS if name in stages]
    if all(other.name in stage.rides_with or other is stage for stage in alone for other in alone):
        return
    lines = []
    for stage in alone:
        files = by_stage[stage.name]
        shown = [*files[:8], *([f"... and {len(files) - 8} more"] if len(files) > 8 else [])]
        lines.append(f"{stage.name} ({stage.owner}): " + ", ".join(shown))
    yield Fault(
        "",
        0,
        "stage-gate",
        "one change, stages that must not ride together\n      " + "\n      ".join(lines),
        _split(alone),
    )


def _split(stages: Sequence[Stage]) -> str:
    """How to make several changes of one."""
    groups: list[list[Stage]] = []
    for stage in stages:
        if groups and all(stage.name in other.rides_with for other in groups[-1]):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    commands = [
        f"git switch -c {'-'.join(stage.name for stage in group)} BASE && git restore --source=HEAD_OF_THIS --staged --worktree "
        f"{' '.join(path for stage in group for path in stage.paths[: None if stage.package else 4])} && git commit"
        for group in groups
    ]
    return (
        "Split it, a pull request each, landed in this order (CHANGELOG.md lines go with their package):\n      "
        + "\n      ".join(commands)
    )


def _static(git: Git, base: str, head: str, cache: static.Cache | None) -> list[Fault]:
    """The head's files by these rules and the base's allowlist."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        git.export(head, tree)
        return static.check(Repository(tree), allowlist=git.text(base, allow.PATH) or "", cache=cache)
