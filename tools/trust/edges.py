"""What a file names of other packages, in any form: import statements (lazy, guarded and relative ones too), attribute chains
on an imported package, and dynamic imports of a literal. import-linter adds the indirect chains; it sees statements alone."""

import ast
import dataclasses
import sys
import tomllib
from collections.abc import Iterator

from tools.trust.fault import Fault
from tools.trust.finding import Finding, Kind
from tools.trust.names import Names
from tools.trust.source import Module, Repository, walk_outermost
from tools.trust.stages import ROOT_ONLY, Stage, by_package

_TEST_TOOLS = frozenset({"pytest", "hypothesis"})  # what the isolated run of a stage's tests adds to its dependencies
_UNDECLARED = Kind(
    "undeclared-import",
    "is imported, and the package's pyproject.toml does not declare it",
    "Declare the dependency, or do without; the manifest has the standard library alone.",
    in_tests=True,
)
_SHIPS_WITH = {"jaxlib": "jax"}  # import name -> the distribution whose dependency it is, in lockstep
KERNEL_LANGUAGES = (
    "jax.experimental.pallas",
    "jax._src.pallas",
    "jax.experimental.mosaic",
    "jax._src.tpu_custom_call",
    "triton",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    target: str  # dotted: a module, or a name in one
    line: int
    is_module: bool  # surely a module: `import a.b`


def edges(module: Module, names: Names) -> Iterator[Edge]:
    for node in walk_outermost(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Edge(alias.name, node.lineno, True)
        elif isinstance(node, ast.ImportFrom):
            base = names.absolute(node.module or "", node.level)
            yield Edge(base, node.lineno, True)
            for alias in node.names:
                yield Edge(f"{base}.{alias.name}", node.lineno, False)
        elif isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
            for target in names.resolve(node):
                yield Edge(target, node.lineno, False)


def check(repository: Repository, module: Module, names: Names) -> Iterator[Fault | Finding]:
    declared = _declared(repository, module)
    seen = set()
    for edge in edges(module, names):
        for found in _faults(repository, module, edge, declared):
            check = found.check if isinstance(found, Fault) else found.kind.check
            if (found.line, check) not in seen:  # `from a import b` names both a and a.b
                seen.add((found.line, check))
                yield found
    yield from _stars(module, names)


def _faults(repository: Repository, module: Module, edge: Edge, declared: frozenset[str]) -> Iterator[Fault | Finding]:
    stage, top = module.stage, edge.target.split(".")[0]
    if not top:
        yield Fault(
            module.path, edge.line, "import-boundary", f"a relative import leaves the package: {edge.target}",
            "Import siblings by their own name, as far as the stage may see them.",
        )  # fmt: skip
        return
    why = forbidden(stage, edge.target, repository.module_names, edge.is_module)
    if why:
        yield Fault(
            module.path,
            edge.line,
            "import-boundary",
            f"{stage.package} must not use {edge.target}: {why}",
            _advice(stage, top),
        )
    known = (
        top == stage.package or by_package(top) or top in sys.stdlib_module_names or top in ("builtins", "__future__")
    )
    if edge.is_module and not known and top not in declared:
        absolute = stage.third_party is not None and not module.is_test  # users install these packages
        yield Finding(module.path, edge.line, "", top, _UNDECLARED, absolute=absolute, anywhere=True)


def forbidden(stage: Stage, target: str, modules: frozenset[str], is_module: bool = False) -> str:
    """Why a stage must not use a dotted name; empty where it may. Matches at a dot: tops_bench is not tops_b."""
    package = target.split(".")[0]
    if package == "tools":
        return "the tools judge the packages and are no part of them"
    if by_package(package) is None or package == stage.package:
        return ""
    sight = stage.sight(package)
    if sight is None:
        return "this stage does not see that one"
    if ROOT_ONLY in sight.hidden:
        parts = target.split(".")
        inner = [".".join(parts[:count]) for count in range(2, len(parts) + 1)]
        private = any(part.startswith("_") and not part.startswith("__") for part in parts[1:2])
        if private or (is_module and inner) or any(name in modules for name in inner):
            return f"only the public root of {package} is seen from here"
        return ""
    hidden = next((name for name in sight.hidden if within(target, name)), None)
    return f"{hidden} is hidden from this stage" if hidden else ""


def within(target: str, name: str) -> bool:
    return target == name or target.startswith(f"{name}.")


def _advice(stage: Stage, package: str) -> str:
    if package == "tools":
        return "Move what is needed into the package."
    seen = ", ".join(
        sight.package + (" (its public root)" if ROOT_ONLY in sight.hidden else f" (not {', '.join(sight.hidden)})" if sight.hidden else "")
        for sight in stage.sees
    )  # fmt: skip
    return f"{stage.package} may import {seen or 'no sibling'}. See CONTRIBUTING.md, stage {stage.name}: what belongs to another stage goes there."


def _stars(module: Module, names: Names) -> Iterator[Fault]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            base = names.absolute(node.module or "", node.level)
            yield Fault(
                module.path, node.lineno, "star-import", f"from {base} import * hides what is used", "Import each name."
            )


def _declared(repository: Repository, module: Module) -> frozenset[str]:
    names = declared_dependencies(repository, module.stage)
    extra = _TEST_TOOLS if module.is_test else frozenset()
    ships = {name for name, distribution in _SHIPS_WITH.items() if distribution in names}
    return frozenset({name.replace("-", "_") for name in names} | ships | extra)


def declared_dependencies(repository: Repository, stage: Stage) -> frozenset[str]:
    """Distribution names in [project] dependencies and in its extras."""
    path = f"{stage.folder}pyproject.toml"
    if path not in repository.files:
        return frozenset()
    try:
        project = tomllib.loads(repository.text(path)).get("project", {})
    except tomllib.TOMLDecodeError:
        return frozenset()  # the packaging check says so
    lines = [
        *project.get("dependencies", ()),
        *(line for extra in project.get("optional-dependencies", {}).values() for line in extra),
    ]
    return frozenset(requirement_name(line) for line in lines)


def requirement_name(line: str) -> str:
    end = next((index for index, sign in enumerate(line) if not (sign.isalnum() or sign in "-_.")), len(line))
    return line[:end].lower().replace("_", "-")
