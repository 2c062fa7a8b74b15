"""What a name stands for: aliases, attribute chains, getattr with a literal and literal strings, as far as a reader can tell.

Flow plays no part: a name that stands for `importlib` anywhere in a file does so everywhere in it. That reports more
than runs, never less.
"""

import ast
import builtins

from tools.trust.source import Module

_IMPORTERS = ("importlib.import_module", "importlib.__import__", "builtins.__import__", "__import__")
_OF_A_MODULE = ("__builtins__", "__path__", "__loader__", "__spec__", "__cached__")
_BINDING = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.arguments, ast.withitem)
_ROUNDS = 4  # an alias of an alias of an alias: what a person would write; each round follows one step


class Names:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.aliases: dict[str, set[str]] = {}
        for node in ast.walk(module.tree):
            self._note_import(node)
        binding = [node for node in ast.walk(module.tree) if isinstance(node, _BINDING)]
        for _ in range(_ROUNDS):
            for node in binding:
                self._note_assignment(node)

        self.choices = _choices(module.tree)

    def _note_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                self.aliases.setdefault(name, set()).add(alias.name if alias.asname else name)
        elif isinstance(node, ast.ImportFrom):
            base = self.absolute(node.module or "", node.level)
            for alias in node.names:
                if alias.name != "*":
                    self.aliases.setdefault(alias.asname or alias.name, set()).add(f"{base}.{alias.name}")

    def _note_assignment(self, node: ast.AST) -> None:
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args][-len(node.defaults) :] if node.defaults else []
            given = [*zip(positional, node.defaults, strict=True), *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
            pairs = [(ast.Name(argument.arg), default) for argument, default in given if default is not None]
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            pairs = [(node.optional_vars, node.context_expr)]
        for target, value in pairs:
            self._bind(target, value)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            meant = self.resolve(value)
            if meant:
                self.aliases.setdefault(target.id, set()).update(meant)
        elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
            for inner, part in zip(target.elts, value.elts, strict=False):
                self._bind(inner, part)

    def absolute(self, name: str, level: int, package: str | None = None) -> str:
        """A relative import's target, from the file's own package. One that climbs too far keeps its dots."""
        if not level:
            return name
        parts = (self.module.package if package is None else package).split(".")
        if level > len(parts) or not parts[0]:
            return "." * level + name
        return ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])

    def resolve(self, node: ast.AST) -> set[str]:
        """Dotted names that an expression may stand for; builtins as builtins.<name>; empty where it cannot be told."""
        if isinstance(node, ast.Name):
            known = self.aliases.get(node.id, set())
            # A builtin stays suspect even where the file binds the name as well.
            return known | ({f"builtins.{node.id}"} if hasattr(builtins, node.id) or node.id in _OF_A_MODULE else set())
        if isinstance(node, ast.Attribute):
            return {f"{base}.{node.attr}" for base in self.resolve(node.value)}
        if isinstance(node, ast.IfExp):
            return self.resolve(node.body) | self.resolve(node.orelse)
        if isinstance(node, ast.BoolOp):
            return set().union(*(self.resolve(value) for value in node.values))
        if isinstance(node, ast.NamedExpr):
            return self.resolve(node.value)
        if isinstance(node, ast.Subscript):
            return self._resolve_lookup(node)
        if isinstance(node, ast.Call):
            return self._resolve_call(node)
        return set()

    def _resolve_call(self, call: ast.Call) -> set[str]:
        function = self.resolve(call.func)
        if "builtins.getattr" in function and len(call.args) >= 2:
            attribute = literal(call.args[1])
            return {f"{base}.{attribute}" for base in self.resolve(call.args[0])} if attribute else set()
        if function & set(_IMPORTERS) and call.args:
            target = self.import_target(call)
            if target is None:
                return set()
            whole = "importlib.import_module" in function
            return {target if whole or _has_fromlist(call) else target.split(".")[0]}
        return set()

    def _resolve_lookup(self, node: ast.Subscript) -> set[str]:
        """sys.modules["x"], vars(x)["y"], x.__dict__["y"]."""
        key = literal(node.slice)
        if key is None:
            return set()
        if "sys.modules" in self.resolve(node.value):
            return {key}
        base: ast.expr | None = None
        if isinstance(node.value, ast.Attribute) and node.value.attr == "__dict__":
            base = node.value.value
        elif isinstance(node.value, ast.Call) and "builtins.vars" in self.resolve(node.value.func) and node.value.args:
            base = node.value.args[0]
        return {f"{name}.{key}" for name in self.resolve(base)} if base is not None else set()

    def import_target(self, call: ast.Call) -> str | None:
        """The module that import_module or __import__ is asked for; None where it is not a literal."""
        arguments = {keyword.arg: keyword.value for keyword in call.keywords}
        first = call.args[0] if call.args else arguments.get("name")
        name = None if first is None else literal(first)
        if name is None:
            return None
        level = len(name) - len(name.lstrip("."))
        if not level:
            return name
        package = call.args[1] if len(call.args) > 1 else arguments.get("package")
        own = isinstance(package, ast.Name) and package.id in ("__package__", "__name__")
        text = self.module.package if own else None if package is None else literal(package)
        return None if text is None else self.absolute(name.lstrip("."), level, text)


def _choices(tree: ast.AST) -> dict[str, set[str]]:
    """Name -> the strings it can be, where every place that binds it is a loop over strings spelled out."""
    found: dict[str, set[str]] = {}
    targets: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
            values = [literal(one) for one in node.iter.elts] if isinstance(node.iter, ast.Tuple | ast.List) else [None]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                targets.add(node.target)
                found.setdefault(node.target.id, set()).update(known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node not in targets:
            found.pop(node.id, None)
        elif isinstance(node, ast.arg):
            found.pop(node.arg, None)
    return found


def _has_fromlist(call: ast.Call) -> bool:
    return len(call.args) > 3 or any(keyword.arg == "fromlist" for keyword in call.keywords)


def literal(node: ast.AST) -> str | None:
    """A string that the file spells out: a constant, a sum, an f-string, a join, a format of constants; None otherwise."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bytes):
            return node.value.decode("latin-1")
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod | ast.Div):
        return _binary(node)
    if isinstance(node, ast.JoinedStr):
        parts = [literal(value.value if isinstance(value, ast.FormattedValue) else value) for value in node.values]
        return _joined("", parts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _method(node, node.func)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        text, step = literal(node.value), node.slice.step
        whole = node.slice.lower is None and node.slice.upper is None
        if text is not None and whole and isinstance(step, ast.UnaryOp) and isinstance(step.operand, ast.Constant):
            return text[::-1] if isinstance(step.op, ast.USub) and step.operand.value == 1 else None
    return None


def _binary(node: ast.BinOp) -> str | None:
    left = literal(node.left)
    if left is None:
        return None
    if isinstance(node.op, ast.Mod):
        values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        texts = [literal(value) for value in values]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts) or left.count("%s") != left.count("%") or left.count("%s") != len(known):
            return None
        return left.replace("%s", "{}").format(*known) if "{" not in left else None
    right = literal(node.right)
    if right is None:
        return None
    return f"{left}/{right}" if isinstance(node.op, ast.Div) else left + right


def _method(node: ast.Call, function: ast.Attribute) -> str | None:
    text = literal(function.value)
    if text is None:
        return None
    arguments = [literal(argument) for argument in node.args]
    if function.attr == "join" and len(node.args) == 1 and isinstance(node.args[0], ast.List | ast.Tuple):
        return _joined(text, [literal(element) for element in node.args[0].elts])
    if function.attr == "replace" and len(arguments) == 2 and arguments[0] is not None and arguments[1] is not None:
        return text.replace(arguments[0], arguments[1])
    if function.attr in ("lower", "upper", "strip", "decode", "encode"):
        return {"lower": text.lower(), "upper": text.upper(), "strip": text.strip()}.get(function.attr, text)
    if function.attr == "format" and None not in arguments and not node.keywords:
        try:
            return text.format(*arguments)
        except (IndexError, KeyError, ValueError, AttributeError):
            return None
    return None


def _joined(separator: str, parts: list[str | None]) -> str | None:
    known = [part for part in parts if part is not None]
    return separator.join(known) if len(known) == len(parts) else None
