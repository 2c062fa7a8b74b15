"""The manifest as a set of files: the installed package's, or a checkout's, with its lock and its generated table."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from tops_manifest import contract, cost, workloads
from tops_manifest._reader import Reader, read_toml
from tops_manifest.cost import Cost
from tops_manifest.digest import Digests, digests_of
from tops_manifest.errors import Fault, ManifestError
from tops_manifest.model import Op
from tops_manifest.workloads import Row

PACKAGE = Path("packages/tops-manifest/src/tops_manifest")  # within a checkout
TABLE = Path("docs/ops.md")
LOCK = "manifest.lock"


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """Where the files are. `root` is the checkout; None where the package is installed alone."""

    package: Path
    root: Path | None

    @property
    def ops(self) -> Path:
        """The folder of TOML files."""
        return self.package / "ops"

    @property
    def lock(self) -> Path:
        """manifest.lock: inside the package, so that a wheel carries it."""
        return self.package / LOCK

    @property
    def table(self) -> Path | None:
        """docs/ops.md; None where the package is installed alone."""
        return None if self.root is None else self.root / TABLE


def installed() -> Tree:
    """The package that is running, and the checkout it lies in, if it does."""
    package = Path(__file__).resolve().parent
    root = package.parents[len(PACKAGE.parts) - 1] if len(package.parts) > len(PACKAGE.parts) else package
    return Tree(package, root if root / PACKAGE == package and (root / "pyproject.toml").is_file() else None)


def checkout(root: Path) -> Tree:
    """A checkout elsewhere. Raises FileNotFoundError where `root` is none."""
    if not (root / PACKAGE / "ops").is_dir():
        raise FileNotFoundError(f"{root} is no checkout of tops: it has no {PACKAGE / 'ops'}")
    return Tree(root / PACKAGE, root)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """All that one file says."""

    op: Op
    cost: Cost
    rows: tuple[Row, ...]

    def digests(self) -> Digests:
        """As manifest.lock holds them."""
        return digests_of(self.op, self.cost, self.rows)


def parse(table: Mapping[str, object], file: str, stem: str) -> Entry:
    """Reads all three parts of a file's content. Raises ManifestError with every fault of all of them."""
    top = Reader(file, table)
    op = contract.read(top, stem)
    entry = Entry(op, cost.read(top, op), workloads.read(top, op))
    if not top.faults:  # a row is only worth binding where the contract is sound
        workloads.check_rows(top, entry.rows)
    if not top.faults:
        cost.check_cases(top, entry.cost, [case for row in entry.rows for case in row.cases()])
    top.raise_faults()
    return entry


def load(tree: Tree) -> tuple[dict[str, Entry], list[Fault]]:
    """Every file that is sound, by op, and the faults of the others."""
    entries: dict[str, Entry] = {}
    faults: list[Fault] = []
    try:
        paths = sorted(tree.ops.iterdir())
    except OSError as error:
        return {}, [Fault(tree.ops.name, "(folder)", error.strerror or str(error), "a folder of TOML files")]
    for path in paths:
        file = contract.file_name(path)
        if path.suffix != ".toml":
            faults.append(Fault(file, "(file)", repr(path.name), "TOML files alone in this folder"))
            continue
        try:
            entries[path.stem] = parse(read_toml(path, file), file, path.stem)
        except ManifestError as error:
            faults += error.faults
    if not paths:
        faults.append(Fault(tree.ops.name, "(folder)", "no files", "a TOML file for each op"))
    return entries, faults
