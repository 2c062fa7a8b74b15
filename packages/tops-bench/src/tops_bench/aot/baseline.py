"""The saved figures of a target and the check against them: `--save` writes, `--check` compares.

One JSON file a target, small: figures alone, and the versions that made them. With the same versions a figure repeats exactly, so
any growth is the change's doing; with others nothing can be said, and the check says that instead.
"""

import dataclasses
import importlib.resources
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tops_bench import files
from tops_bench.aot.matrix import Row

SCHEMA = 1
GROWTH = 0.05
# What may not grow, and by how much at least before it counts: 64 cycles or 4 KiB are no regression of anything.
WATCHED: Mapping[str, float] = {
    "seconds": 1e-7, "cycles": 64, "vmem_bytes": 4096, "spills": 4, "registers": 8, "ptx_bytes": 4096
}  # fmt: skip
_ASSEMBLED = ("spills", "registers")  # on a GPU these are a machine's ptxas' word, and not every machine has one
_KEPT = (
    "seconds", "cycles", "cycles_low", "dma_bytes", "vmem_bytes", "spills", "bundles", "registers", "ptx_bytes", "assembler"
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Saved:
    """A target's file."""

    target: str
    versions: Mapping[str, str]
    rows: Mapping[str, Mapping[str, Any]]  # key -> figures, or {"refused": reason}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something that got worse; old and new as they read."""

    target: str
    key: str
    what: str
    old: str
    new: str


def folder() -> Path:
    """Where the files lie: package data, so that an installed tops-bench has them too."""
    return Path(str(importlib.resources.files("tops_bench.aot").joinpath("baselines")))


def path(target: str, where: Path | None = None) -> Path:
    return (where or folder()) / f"{target}.json"


def is_kernel(row: Row) -> bool:
    """Rows of tops' own kernels are kept and checked; baselines are the table's business."""
    return row.op != "reference" and row.contender.startswith("pallas_")


def figures(row: Row) -> dict[str, Any]:
    """What is kept of a row."""
    if row.status != "compiled":
        return {"refused": row.reason}
    return {name: _short(row.figures[name]) for name in _KEPT if row.figures.get(name) is not None}


def _short(value: Any) -> Any:
    """Ten digits: what a repeat must give again."""
    return float(f"{value:.10g}") if isinstance(value, float) else value


def save(
    rows: Iterable[Row],
    versions: Mapping[str, Mapping[str, str]],
    where: Path | None = None,
    *,
    complete: bool = True,
) -> list[Path]:
    """Writes the files of the targets that `rows` name. Raises files.FileError where one cannot be written.

    `complete`: these are all rows there are. Otherwise a file of the same toolchain keeps the others that it has.
    """
    written = []
    by_target: dict[str, dict[str, Any]] = {}
    for row in rows:
        if is_kernel(row):
            by_target.setdefault(row.target, {})[row.key] = figures(row)
    for target, kept in by_target.items():
        if not complete and path(target, where).exists():
            old = load(target, where)
            if not other_versions(old, versions[target]):
                kept = {**old.rows, **kept}
        files.write(
            path(target, where),
            files.dumps({"schema": SCHEMA, "target": target, "versions": dict(versions[target]), "rows": kept}),
        )
        written.append(path(target, where))
    return written


def load(target: str, where: Path | None = None) -> Saved:
    """Raises files.FileError where the file is missing or not one of these."""
    place = path(target, where)
    data = files.read_object(place)
    if (
        data.get("schema") != SCHEMA
        or not isinstance(data.get("rows"), dict)
        or not isinstance(data.get("versions"), dict)
    ):
        raise files.FileError(f"{place}: not a baseline of schema {SCHEMA}. Write it anew with `tops-bench aot --save`")
    return Saved(str(data.get("target", target)), data["versions"], data["rows"])


def other_versions(saved: Saved, versions: Mapping[str, str]) -> str:
    """How this toolchain differs from the one the file was made with; "" where it does not."""
    names = sorted(set(saved.versions) | set(versions))
    return ", ".join(
        f"{name} {saved.versions.get(name, 'absent')} -> {versions.get(name, 'absent')}"
        for name in names
        if saved.versions.get(name) != versions.get(name)
    )


def check(saved: Saved, rows: Sequence[Row], *, complete: bool = True) -> list[Finding]:
    """What got worse. `complete`: every row of the matrix was compiled, so that one that is missing is a finding."""
    found = []
    present = {row.key: row for row in rows if row.target == saved.target and is_kernel(row)}
    for key, old in saved.rows.items():
        row = present.get(key)
        if row is None:
            if complete:
                found.append(Finding(saved.target, key, "row", "present", "missing"))
            continue
        found += _worse(saved.target, key, old, row)
    for key, row in present.items():
        if key not in saved.rows:
            found.append(Finding(saved.target, key, "row", "not in the baseline", "new: run `tops-bench aot --save`"))
        elif row.status != "compiled" and "refused" not in saved.rows[key]:
            continue  # found above
    return found


def _worse(target: str, key: str, old: Mapping[str, Any], row: Row) -> list[Finding]:
    if row.status != "compiled":
        same_kind = "refused" in old and row.status == "refused"
        return (
            []
            if same_kind
            else [
                Finding(
                    target, key, "compiles", "yes" if "refused" not in old else "refused", f"{row.status}: {row.reason}"
                )
            ]
        )
    if "refused" in old:
        return []  # it compiles now: better
    new = figures(row)
    found = []
    for name, least in WATCHED.items():
        if name in _ASSEMBLED and old.get("assembler") != new.get("assembler"):
            continue
        before, after = float(old.get(name, 0)), float(new.get(name, 0))
        if after > before * (1 + GROWTH) and after - before > least:
            found.append(
                Finding(
                    target,
                    key,
                    name,
                    f"{before:g}",
                    f"{after:g} (+{(after / before - 1):.1%})" if before else f"{after:g}",
                )
            )
    return found
