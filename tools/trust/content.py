"""What a stage's code must not hold, whoever it imports: each rule keeps one stage from doing another's work."""

import ast
import functools
import re
import tomllib
from collections.abc import Callable, Iterator

from tools.trust.edges import KERNEL_LANGUAGES, within
from tools.trust.fault import Fault
from tools.trust.finding import Finding, Kind
from tools.trust.names import Names, literal
from tools.trust.source import Module, Repository, docstrings, scopes, walk_outermost
from tools.trust.stages import KERNELS, MANIFEST

Rule = Callable[[Repository, Module, Names], Iterator[Fault | Finding]]


def check(repository: Repository, module: Module, names: Names) -> Iterator[Fault | Finding]:
    if module.stage is not KERNELS:
        yield from no_pallas(repository, module, names)
    for rule in () if module.is_test else _RULES.get(module.stage.name, ()):
        yield from rule(repository, module, names)


_COMPARING = re.compile(r"assert\w*|allclose|isclose|array_equal|array_equiv|testing")
_LIBRARIES = ("numpy", "jax", "chex", "unittest", "pytest", "optax")


def bench_asserts_nothing(_: Repository, module: Module, names: Names) -> Iterator[Fault]:
    do = (
        "Whether a result is right is the test stage's to say: read its certificate. Raise an error with op, argument, got and "
        "expected for a wrong use."
    )
    for node, found in _references(module, names):
        comparing = any(
            any(_COMPARING.fullmatch(part) for part in name.split(".")[1:])
            for name in found
            if name.split(".")[0] in _LIBRARIES
        )
        if comparing or any(re.match(r"(self\.)?assert\w+$", name.rpartition(".")[2]) for name in found):
            yield Fault(module.path, _line(node), "bench-asserts-nothing", f"{min(found)} compares results", do)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assert):
            yield Fault(module.path, node.lineno, "bench-asserts-nothing", "an assert statement", do)
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"assert\w+", node.attr):
            yield Fault(module.path, node.lineno, "bench-asserts-nothing", f".{node.attr} compares results", do)


_CLOCKS = ("time", "timeit", "cProfile", "profile", "jax.profiler", "jax._src.profiler", "resource", "os.times", "psutil", "pyinstrument",
           "line_profiler", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "jax.monitoring",
           "jax.experimental.profiler", "pstats", "yappi")  # fmt: skip
_CLOCK = Kind(
    "no-clocks",
    "takes the time",
    "Timing and profiling belong to tops_bench. A certificate's date comes from the one function that stamps it.",
)


def no_clocks(_: Repository, module: Module, names: Names) -> Iterator[Finding]:
    around = scopes(module.tree)
    for node, found in _references(module, names):
        for name in found:
            if any(name == clock or name.startswith(f"{clock}.") for clock in _CLOCKS):
                anywhere = isinstance(node, ast.Import | ast.ImportFrom)
                yield Finding(module.path, _line(node), around.get(node, ""), name, _CLOCK, anywhere=anywhere)


_NOT_OF_WORKLOADS = frozenset(
    [
        "ref",
        "reference",
        "oracle",
        "golden",
        "expected",
        "check",
        "tolerance",
        "tolerances",
        "tol",
        "atol",
        "rtol",
        "flops",
        "flop",
        "nbytes",
        "bytes",
        "bandwidth",
        "roofline",
        "baseline",
    ]
)
_CALLED = frozenset(
    ["flops", "bytes", "memory", "check", "ref", "oracle", "tolerance", "allclose", "isclose", "array_equal", "binding"]
)


def workloads_only_draw(_: Repository, module: Module, names: Names) -> Iterator[Fault]:
    do = "A workload draws inputs and no more: references, checks and tolerances go to tops_tests, flops and bytes to the manifest's cost."
    for node in ast.walk(module.tree):
        defined = _defined(node)
        words = {
            word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", defined or "")
        }  # of snake_case and CamelCase
        if words & _NOT_OF_WORKLOADS:
            yield Fault(module.path, _line(node), "workloads-only-draw", f"the name {defined!r} in tops_workloads", do)
        elif isinstance(node, ast.Attribute) and node.attr in _CALLED:
            yield Fault(module.path, node.lineno, "workloads-only-draw", f".{node.attr} in tops_workloads", do)
        elif isinstance(node, ast.Call) and "builtins.getattr" in names.resolve(node.func) and len(node.args) > 1:
            attribute = literal(node.args[1])
            if attribute in _CALLED:
                yield Fault(module.path, node.lineno, "workloads-only-draw", f".{attribute} in tops_workloads", do)
        elif isinstance(node, ast.Assert):
            yield Fault(module.path, node.lineno, "workloads-only-draw", "an assert statement in tops_workloads", do)


def no_workload_tables(repository: Repository, module: Module, _: Names) -> Iterator[Fault]:
    names, shapes, dimensions = _manifest_rows(repository)
    documentation = docstrings(module.tree)
    for node in ast.walk(module.tree):
        row = None
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            row = next((name for name in names if name in node.value), None)
        elif isinstance(node, ast.Tuple | ast.List):
            row = shapes.get(tuple(_integers(node)))
        elif isinstance(node, ast.Dict):
            keys = [literal(key) for key in node.keys if key is not None]
            row = _dims([*zip(keys, node.values, strict=False)], dimensions)
        elif isinstance(node, ast.Call):
            row = _dims([(keyword.arg, keyword.value) for keyword in node.keywords], dimensions)
        if row:
            yield Fault(
                module.path, _line(node), "no-workload-tables", f"a workload's shape in kernel code: {row}", _ROWS_DO
            )


def _integers(node: ast.Tuple | ast.List) -> list[int]:
    flat: list[int] = []
    for element in node.elts:
        if isinstance(element, ast.Tuple | ast.List):
            flat += _integers(element)
        elif isinstance(element, ast.Constant) and type(element.value) is int:
            flat.append(element.value)
        else:
            return []
    return flat


def _dims(pairs: list[tuple[str | None, ast.expr]], dimensions: frozenset[str]) -> str | None:
    """Two dimensions or more with literal sizes: a row of a workload table, of the manifest's or of one's own."""
    found = [
        name for name, value in pairs if name in dimensions and isinstance(value, ast.Constant | ast.List | ast.Tuple)
    ]
    return f"sizes of {', '.join(map(str, found))}" if len(found) >= 2 else None


@functools.lru_cache(maxsize=4)  # once a repository, not once a module
def _manifest_rows(repository: Repository) -> tuple[frozenset[str], dict[tuple[int, ...], str], frozenset[str]]:
    """Row names; the sizes of each row in order -> its name; all dimension names."""
    names: set[str] = set()
    shapes: dict[tuple[int, ...], str] = {}
    dimensions: set[str] = set()
    for path in repository.files:
        if not (path.startswith(MANIFEST.folder) and path.endswith(".toml") and "/ops/" in path):
            continue
        try:
            rows = tomllib.loads(repository.text(path)).get("workloads", [])
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            continue  # tops-manifest check names the fault
        for row in rows if isinstance(rows, list) else []:
            sizes: list[int] = []
            for dimension, size in row.get("dims", {}).items():
                dimensions.add(dimension)
                sizes += size if isinstance(size, list) else [size]
            names.add(str(row.get("name")))
            if len(sizes) >= 2 and max(sizes) >= 1024:  # (1, 128) is a tile as well as a row
                shapes[tuple(sizes)] = f"row {row.get('name')}, sizes {sizes}"
    return frozenset(names - {"None"}), shapes, frozenset(dimensions)


def data_files(repository: Repository) -> Iterator[Fault]:
    """Tuned block sizes are data, and name shapes; the rows they are judged by they do not name."""
    rows, _, _ = _manifest_rows(repository)
    for path in repository.files:
        if path.startswith(KERNELS.folder) and "/src/" in path and not path.endswith((".py", ".typed")):
            found = next((row for row in sorted(rows) if row in repository.text(path)), None)
            if found:
                yield Fault(path, 0, "no-workload-tables", f"kernel data names a workload row: {found}", _ROWS_DO)


_PALLAS = Kind(
    "pallas-outside-kernels",
    "outside of tops_kernels",
    "Kernel code lives in tops_kernels alone; ask the public root of tops_kernels for what is needed here.",
    in_tests=True,
)


def no_pallas(_: Repository, module: Module, names: Names) -> Iterator[Finding]:
    for node, found in _references(module, names):
        for name in found:
            language = next((language for language in KERNEL_LANGUAGES if within(name, language)), None)
            if language:
                yield Finding(module.path, _line(node), "", language, _PALLAS, anywhere=True)


def digests_follow(repository: Repository, module: Module, _: Names) -> Iterator[Fault]:
    """A certificate carries a digest of what an op's files import, and what those import: it follows imports of modules."""
    if not module.name.startswith(("tops_kernels.ops", "tops_kernels.runtime")):
        return
    do = "Write `from tops_kernels.ops.norm import xla` or `from tops_kernels.runtime.x import f`: the module that holds what is used."
    for node in ast.walk(module.tree):
        what = ""
        if isinstance(node, ast.ImportFrom) and node.level and module.name.startswith("tops_kernels.ops"):
            what = "a relative import"
        elif isinstance(node, ast.ImportFrom) and node.module == "tops_kernels":
            hidden = [alias.name for alias in node.names if f"tops_kernels.{alias.name}" not in repository.module_names]
            what = f"{hidden[0]} from the public root" if hidden else ""
        elif isinstance(node, ast.Import) and any(alias.name == "tops_kernels" for alias in node.names):
            what = "the public root"
        if what:
            yield Fault(
                module.path,
                _line(node),
                "kernel-digest",
                f"{what}: the digest that certificates carry does not follow it",
                do,
            )


_ROWS_DO = "Workload rows stand in the manifest and kernels do not know them: choose block sizes by shape, generation and memory."
_KERNEL_WORDS = re.compile(r"pallas|triton|mosaic|pltpu", re.IGNORECASE)


def oracles_know_no_kernels(_: Repository, module: Module, names: Names) -> Iterator[Fault]:
    if not f"{module.name}.".startswith("tops_tests.oracles."):
        return
    do = "An oracle is the definition in NumPy float64, written without sight of any kernel."
    for node, found in _references(module, names):
        hit = next((name for name in found if _KERNEL_WORDS.search(name) or name.split(".")[0] == "tops_kernels"), None)
        if hit:
            yield Fault(module.path, _line(node), "oracles-know-no-kernels", f"{hit} in an oracle", do)
    documentation = docstrings(module.tree)
    for node in ast.walk(module.tree):
        text = None if node in documentation else literal(node)
        if text is not None and _KERNEL_WORDS.search(text):
            yield Fault(
                module.path, _line(node), "oracles-know-no-kernels", f"the string {text[:60]!r} in an oracle", do
            )


def _references(module: Module, names: Names) -> Iterator[tuple[ast.AST, set[str]]]:
    """Imports and uses, as dotted names."""
    for node in walk_outermost(module.tree):
        if isinstance(node, ast.Import):
            yield node, {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = names.absolute(node.module or "", node.level)
            yield node, {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute | ast.Name | ast.Call):
            found = names.resolve(node)
            if found:
                yield node, found


def _defined(node: ast.AST) -> str | None:
    """The name that a node brings in."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    if isinstance(node, ast.alias):
        return (node.asname or node.name).rpartition(".")[2]
    return None


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


_RULES: dict[str, tuple[Rule, ...]] = {
    "bench": (bench_asserts_nothing,),
    "tests": (no_clocks, oracles_know_no_kernels),
    "workloads": (no_clocks, workloads_only_draw),
    "kernels": (no_workload_tables, digests_follow),
}
