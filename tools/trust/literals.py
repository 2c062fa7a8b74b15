"""Strings that name another stage's module, path or command: whatever function they are handed to, it reaches across.

Prose may speak of any stage ("run tops-tests certify"); a string that IS a module, a path or code may not.
"""

import ast
import re
from collections.abc import Iterator

from tools.trust.edges import forbidden
from tools.trust.fault import Fault
from tools.trust.names import Names, literal
from tools.trust.source import Module, Repository, docstrings
from tools.trust.stages import PACKAGES, Stage, by_package

_MODULE = re.compile(r"(?:^|(?<=[:\s;]))(tops_[a-z]+(?:\.[A-Za-z_]\w*)*)(?=$|:[\w.]+$)")
_CODE = re.compile(r"\b(?:import|from)\s+(tops_[a-z]+(?:\.\w+)*)|-m\s+(tops_[a-z]+)\b|\b(tops_[a-z]+(?:\.\w+)+)\(")
_PATH = re.compile(r"(?:^|[/\\])(tops[-_][a-z]+)(?:[/\\]|$)")
_LAUNCHERS = (
    "subprocess",
    "os.system",
    "os.popen",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "asyncio.create_subprocess",
)
_BOUND_FOR_PATHS = ("pathlib", "os.path", "importlib", "builtins.open", "io.open", "numpy.load", "glob")


def check(repository: Repository, module: Module, names: Names) -> Iterator[Fault]:
    documentation = docstrings(module.tree)
    launching = _arguments_of(module.tree, names, _LAUNCHERS)
    opening = _arguments_of(module.tree, names, _BOUND_FOR_PATHS)
    for node in ast.walk(module.tree):
        text = None if node in documentation else literal(node)
        if text is None or "tops" not in text:
            continue
        for target in _targets(text, node in launching, node in opening):
            why = _why(repository, module.stage, target)
            if why:
                yield Fault(
                    module.path, getattr(node, "lineno", 0), "literal-reach", f"the string {_short(text)} names {target}: {why}",
                    "Take what is needed as an argument, or import it where this stage may see it. See CONTRIBUTING.md, "
                    f"stage {module.stage.name}.",
                )  # fmt: skip


def _targets(text: str, launched: bool, opened: bool) -> set[str]:
    """What a string names that code could reach by it: dotted names, and packages for paths and commands."""
    found = {match[1] for match in _MODULE.finditer(text)} if re.fullmatch(r"\S+", text) else set()
    found |= {name for match in _CODE.finditer(text) for name in match.groups() if name}
    path = _PATH.search(text)
    if path and ("/" in text or "\\" in text or opened) and " " not in text:
        found.add(f"{path[1].replace('-', '_')}/")
    words = set(text.replace("-", "_").split())
    if launched:
        found |= {f"{stage.package}/" for stage in PACKAGES if stage.package in words}
    return found


def _why(repository: Repository, stage: Stage, target: str) -> str:
    """A path or command into a package (it ends in "/") is barred even where its public root may be imported."""
    if not target.endswith("/"):
        return forbidden(stage, target, repository.module_names)
    package = target[:-1]
    other = by_package(package)
    if other is None or other is stage:
        return ""
    return (
        forbidden(stage, package, repository.module_names)
        or f"the files and commands of {package} are that stage's own"
    )


def _arguments_of(tree: ast.Module, names: Names, functions: tuple[str, ...]) -> set[ast.AST]:
    """Every node inside the arguments of a call of one of these."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            meant = names.resolve(node.func)
            if any(name.startswith(functions) for name in meant):
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                found.update(inner for argument in arguments for inner in ast.walk(argument))
    return found


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
