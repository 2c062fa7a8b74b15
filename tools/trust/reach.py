"""Constructs that reach past what import statements say: dynamic imports, running code, reading files, other processes, looking
into the interpreter, patching what was imported. Banned in every package's src save for allowlist.txt; the ones that import
are banned in the tests folders too."""

import ast
import dataclasses
from collections.abc import Iterator

from tools.trust.edges import forbidden
from tools.trust.fault import Fault
from tools.trust.names import Names, literal
from tools.trust.source import Module, Repository, docstrings, scopes, walk_outermost


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    check: str
    why: str
    do: str
    in_tests: bool = False  # banned in tests folders too


DYNAMIC = Kind(
    "dynamic-import",
    "imports or runs what no reader of the import statements sees",
    "Import it by a statement, where the stage may see it; otherwise take the value as an argument.",
    in_tests=True,
)
FILES = Kind(
    "file-read",
    "reads files, and nothing says which",
    "Ask the package that owns the data for it; for the package's own data use importlib.resources.files(__package__). "
    "A read that must be is a line in tools/trust/allowlist.txt with its reason, in a change of its own.",
)
PROCESS = Kind(
    "process",
    "starts a process or native code, which no check follows",
    "Call the function. Where a process must be, it is a line in tools/trust/allowlist.txt with its reason, in a change of its own.",
)
INTERPRETER = Kind(
    "introspection",
    "looks into the interpreter: at callers, at live objects, at another module's inside",
    "Take what is needed as an argument. Code that behaves otherwise under test is not tested.",
)
PATCHING = Kind(
    "patching",
    "changes something that another module owns",
    "Pass the other behaviour as an argument; nothing imported is assigned to.",
)

# Dotted names, each with everything below it. Modules stand here whole where no part of them is harmless.
BANNED: dict[str, Kind] = {
    **dict.fromkeys(
        ["builtins.__import__", "builtins.exec", "builtins.eval", "builtins.compile", "builtins.globals", "builtins.__builtins__",
         "builtins.vars.__dict__", "builtins.__loader__", "builtins.__spec__",
         "importlib.import_module", "importlib.__import__", "importlib.reload", "importlib.util", "importlib.machinery", "importlib.abc",
         "importlib._bootstrap", "importlib._bootstrap_external", "importlib.metadata.entry_points", "importlib.metadata.EntryPoint",
         "importlib.metadata.distribution", "importlib.metadata.distributions", "importlib.metadata.files",
         "importlib.metadata.packages_distributions", "importlib.metadata.Distribution", "importlib_metadata", "importlib_resources",
         "sys.modules", "sys.meta_path", "sys.path", "sys.path_hooks", "sys.path_importer_cache", "sys.addaudithook", "site",
         "runpy", "pkgutil", "pkg_resources", "imp", "zipimport", "pydoc", "doctest", "code", "codeop", "timeit", "pdb", "bdb", "trace",
         "cProfile", "profile", "logging.config", "typing.get_type_hints", "typing.ForwardRef", "inspect.get_annotations",
         "pytest.importorskip", "pickle", "marshal", "shelve", "copyreg", "cloudpickle", "dill", "numpy.f2py", "numpy.ctypeslib",
         "types.FunctionType", "types.CodeType", "operator.attrgetter", "operator.methodcaller",
         "unittest.loader", "unittest.defaultTestLoader", "pluggy", "stevedore"],
        DYNAMIC,
    ),
    **dict.fromkeys(
        ["builtins.open", "io.open", "io.open_code", "io.FileIO", "os.open", "os.fdopen", "os.read", "os.scandir", "os.listdir", "os.walk",
         "os.fwalk", "os.link", "os.symlink", "os.chdir", "os.sendfile", "os.copy_file_range", "codecs.open", "tokenize.open", "fileinput",
         "linecache", "mmap", "shutil", "glob", "zipfile", "tarfile", "gzip", "bz2", "lzma", "sqlite3", "dbm", "configparser",
         "netrc", "numpy.load", "numpy.fromfile", "numpy.loadtxt", "numpy.genfromtxt", "numpy.memmap",
         "numpy.lib.format", "numpy.lib.npyio", "jax.numpy.load", "jax.numpy.fromfile", "inspect.getsource", "inspect.getsourcelines",
         "inspect.getsourcefile", "inspect.getfile", "builtins.__file__", "builtins.__cached__", "builtins.__path__", "tempfile"],
        FILES,
    ),
    **dict.fromkeys(
        ["subprocess", "multiprocessing", "concurrent.futures.ProcessPoolExecutor", "concurrent.futures.process", "pty", "_posixsubprocess",
         "os.system", "os.popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.posix_spawnp", "os.startfile", "os.execv", "os.execve",
         "os.execvp", "os.execvpe", "os.execl", "os.execle", "os.execlp", "os.execlpe", "os.spawnv", "os.spawnve", "os.spawnvp",
         "os.spawnl", "os.spawnle", "os.spawnlp", "os.spawnlpe", "os.spawnvpe", "asyncio.create_subprocess_exec",
         "asyncio.create_subprocess_shell", "asyncio.subprocess", "ctypes", "_ctypes", "cffi", "socket", "socketserver", "http", "urllib.request",
         "ftplib", "xmlrpc", "webbrowser", "jax.ffi", "jax.extend.ffi"],
        PROCESS,
    ),
    **dict.fromkeys(
        ["sys._getframe", "sys._current_frames", "sys._getframemodulename", "sys.settrace", "sys.setprofile", "sys.monitoring", "sys.gettrace",
         "sys.exc_info", "sys.last_traceback", "threading.settrace", "threading.setprofile", "gc", "inspect.stack", "inspect.trace",
         "inspect.currentframe", "inspect.getmodule", "inspect.getouterframes", "inspect.getinnerframes", "inspect.getmembers",
         "inspect.getclosurevars", "traceback.extract_stack", "traceback.walk_stack", "traceback.format_stack", "traceback.print_stack",
         "weakref.getweakrefs", "builtins.vars", "builtins.locals", "builtins.delattr"],
        INTERPRETER,
    ),
    **dict.fromkeys(["unittest.mock", "mock", "builtins.setattr", "atexit"], PATCHING),
}  # fmt: skip
# Attributes that are suspect on anything, as it cannot be told what stands before the dot.
BANNED_ATTRIBUTES: dict[str, Kind] = {
    **dict.fromkeys(["import_module", "__import__", "exec_module", "load_module", "find_spec", "entry_points", "get_data", "run_module"], DYNAMIC),
    **dict.fromkeys(["read_text", "read_bytes", "open", "iterdir", "rglob", "__file__", "__path__", "__cached__"], FILES),
    **dict.fromkeys(
        ["__globals__", "__builtins__", "__subclasses__", "__code__", "__closure__", "__loader__", "__spec__", "f_back", "f_globals",
         "f_locals", "f_builtins", "tb_frame", "gi_frame", "cr_frame", "ag_frame", "__wrapped__", "__defaults__", "__kwdefaults__"],
        INTERPRETER,
    ),
}  # fmt: skip
# Passed on as an object, each of these gives all that is below it.
_MODULES = (
    "importlib",
    "builtins",
    "sys",
    "os",
    "io",
    "inspect",
    "operator",
    "types",
    "unittest",
    "importlib.metadata",
    "importlib.resources",
)
_RESOURCES = ("importlib.resources.files", "importlib.resources.path", "importlib.resources.open_text", "importlib.resources.open_binary",
              "importlib.resources.read_text", "importlib.resources.read_binary", "importlib.resources.contents")  # fmt: skip
_UNDER_TEST = ("PYTEST_CURRENT_TEST", "PYTEST_VERSION", "PYTEST_XDIST_WORKER", "_pytest")


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A banned construct, before the allowlist is asked."""

    path: str
    line: int
    scope: str
    construct: str  # what the allowlist names: "open", ".read_text", "subprocess"
    kind: Kind
    detail: str = ""
    absolute: bool = False  # no allowlist line can permit it
    imported: bool = False  # an import statement: harmless by itself, each use is a finding of its own

    def fault(self) -> Fault:
        detail = f" ({self.detail})" if self.detail else ""
        return Fault(self.path, self.line, self.kind.check, f"{self.construct}{detail} {self.kind.why}", self.kind.do)


def findings(repository: Repository, module: Module, names: Names) -> Iterator[Finding]:
    yield from _Reader(repository, module, names).findings()


class _Reader:
    def __init__(self, repository: Repository, module: Module, names: Names) -> None:
        self.repository, self.module = repository, module
        self.names, self.scopes = names, scopes(module.tree)
        self.documentation = docstrings(module.tree)

    def findings(self) -> Iterator[Finding]:
        for node in walk_outermost(self.module.tree):
            for found in self._at(node):
                if found.kind.in_tests or not self.module.is_test or found.absolute:
                    yield found

    def _found(self, node: ast.AST, construct: str, kind: Kind, detail: str = "", absolute: bool = False) -> Finding:
        line, imported = getattr(node, "lineno", 0), isinstance(node, ast.Import | ast.ImportFrom)
        return Finding(self.module.path, line, self.scopes.get(node, ""), construct, kind, detail, absolute, imported)

    def _at(self, node: ast.AST) -> Iterator[Finding]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._banned(node, {alias.name})
        elif isinstance(node, ast.ImportFrom):
            base = self.names.absolute(node.module or "", node.level)
            for alias in node.names:
                yield from self._banned(node, {f"{base}.{alias.name}"})
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                yield from self._banned(node, self.names.resolve(node))
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

    def _module_object(self, node: ast.Name) -> Iterator[Finding]:
        """A bare `sys` or `importlib` that is handed on: what is taken from it then cannot be told."""
        for target in sorted(self.names.aliases.get(node.id, set())):
            if target in _MODULES:
                yield self._found(node, target, DYNAMIC, "the module itself handed on: unresolvable")

    def _attribute(self, node: ast.Attribute) -> Iterator[Finding]:
        targets = self.names.resolve(node)
        yield from self._banned(node, targets)
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            owners = self.names.resolve(inner.value)
            if inner.attr in BANNED_ATTRIBUTES and not any(banned(f"{owner}.{inner.attr}") for owner in owners):
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
        if function & set(_RESOURCES) and node.args:
            yield from self._resources(node, sorted(function & set(_RESOURCES))[0])
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
        owners, attribute = self.names.resolve(node.args[0]), literal(node.args[1])
        if attribute is not None:
            yield from self._banned(node, {f"{owner}.{attribute}" for owner in owners})
            if attribute in BANNED_ATTRIBUTES and not any(banned(f"{owner}.{attribute}") for owner in owners):
                yield self._found(node, f".{attribute}", BANNED_ATTRIBUTES[attribute], "by getattr")
        elif any(self._is_import(owner) for owner in owners):
            owner = min(owners)
            yield self._found(
                node, "getattr", INTERPRETER, f"on {owner} with a name that is not a literal: unresolvable"
            )

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
        if not self.module.is_test and self.module.stage.name != "tests" and text in _UNDER_TEST:
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
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
        found = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        found = [node.optional_vars]
    else:
        found = []
    return [
        part for target in found for part in (target.elts if isinstance(target, ast.Tuple | ast.List) else [target])
    ]


def banned(target: str) -> tuple[str, Kind] | None:
    """The banned name that a dotted name is or stands below, and its kind."""
    parts = target.split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        if name in BANNED:
            return name, BANNED[name]
    return None
