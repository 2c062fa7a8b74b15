"""The repository's files as the checks see them: tracked files, and the Python modules of each package, parsed once."""

import ast
import dataclasses
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tools.trust.fault import Fault
from tools.trust.stages import PACKAGES, Stage


@dataclasses.dataclass(frozen=True, slots=True)
class Module:
    """One Python file of a package, in its src or in its tests."""

    path: str  # relative to the root
    stage: Stage
    name: str  # dotted; empty for a test, which nothing imports
    tree: ast.Module

    @property
    def is_test(self) -> bool:
        return not self.name

    @property
    def package(self) -> str:
        """What a relative import starts from."""
        return self.name if self.path.endswith("/__init__.py") else self.name.rpartition(".")[0]


class Repository:
    """A checkout, or an unpacked revision. Files are read once; make a new one after a change."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._texts: dict[str, str] = {}

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """Every file that is tracked or would be (not ignored); in a folder that is no checkout, every file."""
        if (self.root / ".git").exists():
            command = ["git", "-C", str(self.root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
            listed = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")
            return tuple(
                sorted(
                    name
                    for name in set(listed)
                    if name and (self.root / name).is_symlink() | (self.root / name).exists()
                )
            )
        found = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_symlink() or path.is_file())
        return tuple(sorted(str(path) for path in found if "__pycache__" not in path.parts))

    def text(self, path: str) -> str:
        if path not in self._texts:
            self._texts[path] = (self.root / path).read_text(encoding="utf-8")
        return self._texts[path]

    @functools.cached_property
    def parsed(self) -> tuple[tuple[Module, ...], tuple[Fault, ...]]:
        """The modules, and a fault for each file that does not parse."""
        modules, faults = [], []
        for stage in PACKAGES:
            for path in self.files:
                if (
                    path.startswith(stage.folder)
                    and path.endswith((".py", ".pyi"))
                    and not (self.root / path).is_symlink()
                ):
                    try:
                        tree = _parse(path, self.text(path))
                    except (SyntaxError, ValueError) as error:
                        line = (error.lineno or 0) if isinstance(error, SyntaxError) else 0
                        faults.append(
                            Fault(path, line, "syntax", f"does not parse: {error}", "Nothing unread may pass: mend it.")
                        )
                        continue
                    modules.append(Module(path, stage, _name(path, stage), tree))
        return tuple(modules), tuple(faults)

    @property
    def modules(self) -> tuple[Module, ...]:
        return self.parsed[0]

    @functools.cached_property
    def module_names(self) -> frozenset[str]:
        """Every importable module and package of the workspace."""
        parts = [
            module.name.split(".") for module in self.modules if module.name
        ]  # a folder needs no __init__.py to be one
        return frozenset(".".join(name[:count]) for name in parts for count in range(1, len(name) + 1))


@functools.lru_cache(maxsize=4096)  # revisions of one repository share most of their files
def _parse(path: str, text: str) -> ast.Module:
    return ast.parse(text, path)


def _name(path: str, stage: Stage) -> str:
    src = f"{stage.folder}src/"
    if not path.startswith(src):
        return ""
    return path.removeprefix(src).rpartition(".")[0].removesuffix("/__init__").replace("/", ".")


def docstrings(tree: ast.Module) -> set[ast.AST]:
    """Strings that stand as statements: documentation, which runs nothing."""
    return {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def scopes(tree: ast.Module) -> dict[ast.AST, str]:
    """Node -> qualified name of the function or class around it; "" at the top of the module."""
    result: dict[ast.AST, str] = {}

    def visit(node: ast.AST, scope: str) -> None:
        result[node] = scope
        inner = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{node.name}" if scope else node.name
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(tree, "")
    return result


def walk_outermost(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node once, but of a chain a.b.c only the whole and what is not a name in it."""
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        yield node
        while isinstance(node, ast.Attribute):
            node = node.value
            if not isinstance(node, ast.Attribute):
                if not isinstance(node, ast.Name):
                    stack.append(node)
                break
        else:
            stack.extend(ast.iter_child_nodes(node))
