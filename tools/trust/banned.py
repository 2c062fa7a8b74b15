"""What a package's code may not do without a line in allowlist.txt: the names, and why."""

from tools.trust.finding import Kind

DYNAMIC = Kind(
    "dynamic-import",
    "imports or runs what no reader of the import statements sees",
    "Import it by a statement, where the stage may see it; otherwise take the value as an argument.",
    in_tests=True,
)
FILES = Kind(
    "file-read",
    "reads or writes files, and nothing says which",
    "Ask the package that owns the data for it; for the package's own data use importlib.resources.files(__package__). "
    "An access that must be is a line in tools/trust/allowlist.txt with its reason, in a change of its own.",
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
         "builtins.__loader__", "builtins.__spec__", "builtins.__path__",
         "importlib.import_module", "importlib.__import__", "importlib.reload", "importlib.util", "importlib.machinery", "importlib.abc",
         "importlib._bootstrap", "importlib._bootstrap_external", "importlib.metadata.entry_points", "importlib.metadata.EntryPoint",
         "importlib.metadata.distribution", "importlib.metadata.distributions", "importlib.metadata.files",
         "importlib.metadata.packages_distributions", "importlib.metadata.Distribution", "importlib_metadata", "importlib_resources",
         "sys.modules", "sys.meta_path", "sys.path", "sys.path_hooks", "sys.path_importer_cache", "sys.addaudithook", "site",
         "runpy", "pkgutil", "pkg_resources", "imp", "zipimport", "pydoc", "doctest", "code", "codeop", "timeit", "pdb", "bdb", "trace",
         "cProfile", "profile", "logging.config", "typing.get_type_hints", "typing.ForwardRef", "typing._eval_type", "numpy.testing.runstring", "numpy.testing.rundocs", "numpy.testing.measure",
          "inspect.get_annotations",
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
         "inspect.getsourcefile", "inspect.getfile", "builtins.__cached__", "tempfile", "os.replace", "os.rename", "os.renames", "os.remove",
         "os.unlink", "os.truncate", "os.write", "os.pread", "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt",
         "numpy.DataSource", "argparse.FileType", "logging.FileHandler", "logging.handlers", "inspect.findsource", "inspect.getcomments",
          "numpy.lib._datasource", "jax.numpy.save", "jax.numpy.savez"],
        FILES,
    ),
    **dict.fromkeys(
        ["subprocess", "multiprocessing", "concurrent.futures.ProcessPoolExecutor", "concurrent.futures.process", "pty", "_posixsubprocess",
         "os._exit", "os.abort", "os.kill", "os.killpg", "os.system", "os.popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.posix_spawnp", "os.startfile", "os.execv", "os.execve",
         "os.execvp", "os.execvpe", "os.execl", "os.execle", "os.execlp", "os.execlpe", "os.spawnv", "os.spawnve", "os.spawnvp",
         "os.spawnl", "os.spawnle", "os.spawnlp", "os.spawnlpe", "os.spawnvpe", "asyncio.create_subprocess_exec",
         "asyncio.create_subprocess_shell", "asyncio.subprocess", "ctypes", "_ctypes", "cffi", "socket", "socketserver", "http", "urllib.request",
         "ftplib", "xmlrpc", "webbrowser", "jax.ffi", "jax.extend.ffi"],
        PROCESS,
    ),
    **dict.fromkeys(
        ["sys.argv", "sys.orig_argv", "sys._getframe", "sys._current_frames", "sys._getframemodulename", "sys.settrace", "sys.setprofile", "sys.monitoring", "sys.gettrace",
         "sys.exc_info", "sys.last_traceback", "threading.settrace", "threading.setprofile", "gc", "inspect.stack", "inspect.trace",
         "inspect.currentframe", "inspect.getmodule", "inspect.getouterframes", "inspect.getinnerframes", "inspect.getmembers",
         "inspect.getclosurevars", "traceback.extract_stack", "traceback.walk_stack", "traceback.format_stack", "traceback.print_stack",
         "weakref.getweakrefs", "builtins.vars", "builtins.locals", "builtins.delattr"],
        INTERPRETER,
    ),
    **dict.fromkeys(
        ["unittest.mock", "mock", "builtins.setattr", "atexit", "jax.config.update", "os.putenv", "os.unsetenv", "os.environ.update",
         "os.environ.setdefault", "os.environ.pop", "os.environ.clear", "os.environ.popitem"],
        PATCHING,
    ),
}  # fmt: skip
# Attributes that are suspect on anything, as it cannot be told what stands before the dot.
BANNED_ATTRIBUTES: dict[str, Kind] = {
    **dict.fromkeys(["import_module", "__import__", "exec_module", "load_module", "find_spec", "entry_points", "get_data", "run_module"], DYNAMIC),
    **dict.fromkeys(["read_text", "read_bytes", "open", "iterdir", "rglob", "__file__", "__cached__"], FILES),
    **dict.fromkeys(["write_text", "write_bytes", "unlink", "symlink_to", "hardlink_to", "tofile", "savefig"], FILES),
    **dict.fromkeys(["__path__"], DYNAMIC),
    **dict.fromkeys(
        ["__getattribute__", "__mro__", "__base__", "__bases__", "__globals__", "__builtins__", "__subclasses__", "__code__", "__closure__", "__loader__", "__spec__", "f_back", "f_globals",
         "f_locals", "f_builtins", "tb_frame", "gi_frame", "cr_frame", "ag_frame", "__wrapped__", "__defaults__", "__kwdefaults__"],
        INTERPRETER,
    ),
}  # fmt: skip
# Passed on as an object, each of these gives all that is below it.
HANDED_ON = (
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
RESOURCES = ("importlib.resources.files", "importlib.resources.path", "importlib.resources.open_text", "importlib.resources.open_binary",
              "importlib.resources.read_text", "importlib.resources.read_binary", "importlib.resources.contents")  # fmt: skip
UNDER_TEST = ("pytest", "PYTEST_CURRENT_TEST", "PYTEST_VERSION", "PYTEST_XDIST_WORKER", "_pytest")


# What a package may import of the standard library. The rest is a finding: nobody has thought of what it reaches.
PLAIN = frozenset(
    [
        "__future__",
        "abc",
        "argparse",
        "ast",
        "base64",
        "binascii",
        "bisect",
        "builtins",
        "collections",
        "concurrent",
        "contextlib",
        "contextvars",
        "copy",
        "csv",
        "dataclasses",
        "datetime",
        "decimal",
        "difflib",
        "enum",
        "errno",
        "fnmatch",
        "fractions",
        "functools",
        "graphlib",
        "hashlib",
        "heapq",
        "html",
        "importlib",
        "inspect",
        "io",
        "itertools",
        "json",
        "keyword",
        "logging",
        "math",
        "numbers",
        "operator",
        "os",
        "pathlib",
        "platform",
        "pprint",
        "queue",
        "random",
        "re",
        "shlex",
        "stat",
        "statistics",
        "string",
        "struct",
        "sys",
        "textwrap",
        "threading",
        "time",
        "tomllib",
        "traceback",
        "types",
        "typing",
        "unicodedata",
        "urllib",
        "uuid",
        "warnings",
        "weakref",
        "zlib",
        "zoneinfo",
    ]
)
UNUSUAL = Kind(
    "unusual-import",
    "is a part of the standard library that no other check has an eye on",
    "Do without, or add a line to tools/trust/allowlist.txt that says what for, in a change of its own.",
)
# Reached as an attribute of any module, each is still itself: dataclasses.sys is sys.
_SELVES = frozenset(
    {
        "sys",
        "os",
        "importlib",
        "builtins",
        "subprocess",
        "runpy",
        "inspect",
        "ctypes",
        "pickle",
        "shutil",
        "gc",
        "tempfile",
    }
)


def banned(target: str) -> tuple[str, Kind] | None:
    """The banned name that a dotted name is or stands below, and its kind."""
    parts = target.split(".")
    starts = [0, *(place for place, part in enumerate(parts) if place and part in _SELVES)]
    for start in starts:
        for count in range(len(parts), start, -1):
            name = ".".join(parts[start:count])
            if name in BANNED:
                return name, BANNED[name]
    return None


def is_handed_on(target: str) -> bool:
    """Whether a dotted name is one of the modules that give all that is below them."""
    return target in HANDED_ON or target.rpartition(".")[2] in _SELVES
