"""Constructs that reach past what import statements say: dynamic imports, running code, reading files, other processes, looking
into the interpreter, patching what was imported. Banned in every package's src save for allowlist.txt; the ones that import
are banned in the tests folders too."""

import ast
import sys
from collections.abc import Iterator

from tools.trust.banned import (
    BANNED_ATTRIBUTES,
    DYNAMIC,
    FILES,
    INTERPRETER,
    PATCHING,
    PLAIN,
    RESOURCES,
    UNDER_TEST,
    UNUSUAL,
    banned,
    is_handed_on,
)
from tools.trust.edges import forbidden
from tools.trust.finding import Finding, Kind
from tools.trust.names import Names, literal
from tools.trust.source import Module, Repository, docstrings, scopes, walk_outermost


def findings(repository: Repository, module: Module, names: Names) -> Iterator[Finding]:
    yield from _Reader(repository, module, names).findings()


class _Reader:
    def __init__(self, repository: Repository, module: Module, names: Names) -> None:
        self.repository, self.module = repository, module
        self.names, self.scopes = names, scopes(module.tree)
        self.documentation = docstrings(module.tree)
        # hasattr(os, "x") and getattr(os, "x") ask for one thing by name: _getattr judges which.
        asked = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call) and len(node.args) > 1)
        self.asked_by_name = {
            node.args[0]
            for node in asked
            if self._spelled_out(node.args[1]) and names.resolve(node.func) & {"builtins.hasattr", "builtins.getattr"}
        }

    def _spelled_out(self, node: ast.expr) -> set[str]:
        """Every string that an expression may be; empty where it cannot be told."""
        text = literal(node)
        if text is not None:
            return {text}
        return self.names.choices.get(node.id, set()) if isinstance(node, ast.Name) else set()

    def findings(self) -> Iterator[Finding]:
        for node in walk_outermost(self.module.tree):
            for found in self._at(node):
                if found.kind.in_tests or not self.module.is_test or found.absolute:
                    yield found

    def _found(self, node: ast.AST, construct: str, kind: Kind, detail: str = "", absolute: bool = False) -> Finding:
        line, anywhere = getattr(node, "lineno", 0), isinstance(node, ast.Import | ast.ImportFrom)
        return Finding(self.module.path, line, self.scopes.get(node, ""), construct, kind, detail, absolute, anywhere)

    def _at(self, node: ast.AST) -> Iterator[Finding]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._banned(node, {alias.name})
                yield from self._unusual(node, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = self.names.absolute(node.module or "", node.level)
            yield from self._unusual(node, base)
            for alias in node.names:
                yield from self._banned(node, {f"{base}.{alias.name}"})
        elif isinstance(node, ast.Name):
            if node.id == "pytest_plugins":
                yield self._found(node, node.id, DYNAMIC, "loads plugins")
            if isinstance(node.ctx, ast.Load) or node.id == "__path__":
                yield from self._banned(node, self.names.resolve(node))
                if node not in self.asked_by_name:
                    yield from self._module_object(node)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node)
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.Constant):
            yield from self._text(node)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete | ast.For | ast.withitem):
            yield from self._patched(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.AnnAssign | ast.arg):
            yield from self._annotation(node)

    def _banned(self, node: ast.AST, targets: set[str]) -> Iterator[Finding]:
        for target in sorted(targets):
            hit = banned(target)
            if hit:
                name, kind = hit
                yield self._found(node, name.removeprefix("builtins."), kind)

    def _unusual(self, node: ast.AST, name: str) -> Iterator[Finding]:
        top = name.split(".")[0]
        if top in sys.stdlib_module_names and top not in PLAIN and banned(top) is None:
            yield self._found(node, name, UNUSUAL)

    def _module_object(self, node: ast.Name) -> Iterator[Finding]:
        """A bare `sys` or `importlib` that is handed on: what is taken from it then cannot be told."""
        for target in sorted(self.names.aliases.get(node.id, set())):
            if is_handed_on(target):
                yield self._found(node, target, DYNAMIC, "the module itself handed on: unresolvable")

    def _attribute(self, node: ast.Attribute) -> Iterator[Finding]:
        targets = self.names.resolve(node)
        yield from self._banned(node, targets)
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            owners = self.names.resolve(inner.value)
            # files.read_bytes(path) of a module of ours: what it does is judged there.
            is_own = BANNED_ATTRIBUTES.get(inner.attr) is FILES and bool(owners & self.repository.module_names)
            if (
                inner.attr in BANNED_ATTRIBUTES
                and not is_own
                and not any(banned(f"{owner}.{inner.attr}") for owner in owners)
            ):
                yield self._found(inner, f".{inner.attr}", BANNED_ATTRIBUTES[inner.attr])
            if inner.attr == "__dict__" and any(self._is_import(owner) for owner in owners):
                yield self._found(inner, ".__dict__", INTERPRETER, f"of {sorted(owners)[0]}")
            inner = inner.value

    def _call(self, node: ast.Call) -> Iterator[Finding]:
        function = self.names.resolve(node.func)
        if function & {"importlib.import_module", "importlib.__import__", "builtins.__import__"}:
            yield self._dynamic(node, function)
        if "builtins.getattr" in function and len(node.args) >= 2:
            yield from self._getattr(node)
        if any(keyword.arg == "fromfile_prefix_chars" for keyword in node.keywords):
            yield self._found(node, "fromfile_prefix_chars", FILES)
        if function & set(RESOURCES) and node.args:
            yield from self._resources(node, sorted(function & set(RESOURCES))[0])
        text = literal(node)
        if text is not None:
            yield from self._sniff(node, text)

    def _dynamic(self, node: ast.Call, function: set[str]) -> Finding:
        target = self.names.import_target(node)
        construct = sorted(function)[0].removeprefix("builtins.")
        if target is None:
            return self._found(node, construct, DYNAMIC, "its argument is not a literal: unresolvable")
        why = forbidden(self.module.stage, target, self.repository.module_names, is_module=True)
        return self._found(node, construct, DYNAMIC, f"of {target}" + (f": {why}" if why else ""), absolute=bool(why))

    def _getattr(self, node: ast.Call) -> Iterator[Finding]:
        owners, known = self.names.resolve(node.args[0]), self._spelled_out(node.args[1])
        for name in sorted(known):
            yield from self._banned(node, {f"{owner}.{name}" for owner in owners})
            if name in BANNED_ATTRIBUTES and not any(banned(f"{owner}.{name}") for owner in owners):
                yield self._found(node, f".{name}", BANNED_ATTRIBUTES[name], "by getattr")
        if not known:
            owner = min(owners, default="a value")
            what = f"on {owner} with a name that is not a literal: unresolvable"
            yield self._found(node, "getattr", INTERPRETER, what)

    def _is_import(self, target: str) -> bool:
        """Whether a dotted name is surely a module or something in one (not a builtin or a local)."""
        return not target.startswith("builtins.") or target == "builtins.__builtins__"

    def _resources(self, node: ast.Call, function: str) -> Iterator[Finding]:
        anchor = node.args[0]
        package = (
            self.module.package
            if isinstance(anchor, ast.Name) and anchor.id in ("__package__", "__name__")
            else literal(anchor)
        )
        if package is None:
            meant = self.names.resolve(anchor)
            package = min(meant) if meant else None
        if package is None:
            yield self._found(node, function, FILES, "its argument is not a literal: unresolvable")
        elif package.split(".")[0] != self.module.stage.package:
            yield self._found(
                node, function, FILES, f"of another package, {package}", absolute=package.startswith("tops_")
            )

    def _text(self, node: ast.Constant) -> Iterator[Finding]:
        if isinstance(node.value, str) and node not in self.documentation:
            yield from self._sniff(node, node.value)

    def _sniff(self, node: ast.AST, text: str) -> Iterator[Finding]:
        if not self.module.is_test and self.module.stage.name != "tests" and text in UNDER_TEST:
            yield self._found(node, text, INTERPRETER, "asks whether a test is running")

    def _patched(self, node: ast.AST) -> Iterator[Finding]:
        for target in _targets(node):
            while isinstance(target, ast.Subscript):
                target = target.value
            if not isinstance(target, ast.Attribute):
                continue
            owners = {owner for owner in self.names.resolve(target.value) if self._is_import(owner)}
            if owners:
                yield self._found(target, "assignment", PATCHING, f"to {min(owners)}.{target.attr}")

    def _annotation(self, node: ast.AST) -> Iterator[Finding]:
        """A string annotation is code that typing may run."""
        annotations = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for annotation in annotations:
            if not isinstance(annotation, ast.Constant) or not isinstance(annotation.value, str):
                continue
            text = annotation.value
            if "__import__" in text or "(" in text:
                yield self._found(annotation, "annotation", DYNAMIC, f"that calls something: {text!r}")


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        found = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor | ast.comprehension):
        found = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        found = [node.optional_vars]
    else:
        found = []
    return [part for target in found for part in _parts(target)]


def _parts(target: ast.expr) -> list[ast.expr]:
    """Through tuples, lists and stars, however deep."""
    if isinstance(target, ast.Tuple | ast.List):
        return [part for element in target.elts for part in _parts(element)]
    return _parts(target.value) if isinstance(target, ast.Starred) else [target]
