"""The audit hook itself. audit.py writes a sitecustomize.py that runs this file in the suite's process and in every Python child.

It imports nothing of the repository, and of the standard library only what an interpreter has loaded by then anyway: it runs
before everything else. What it finds it appends to the log, a JSON line each, and then refuses by an exception; the log
decides, since code under test may swallow the exception.
"""

import json
import os
import sys
import threading

LOG, RULES = "TOPS_AUDIT_LOG", "TOPS_AUDIT_RULES"
_busy = threading.local()


class CrossingError(PermissionError):
    """The suite of one stage reached for another stage's file or module."""


class Hook:
    def __init__(self, rules: dict[str, list[str]], log: str, path: str) -> None:
        self.folders = tuple(rules["folders"])  # real paths, each ending in "/"
        self.modules = tuple(rules["modules"])
        self.exempt = frozenset(rules["exempt"])  # files that may be opened all the same
        self.path = path  # the folder of sitecustomize.py: what a child must have on PYTHONPATH
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        # `import` names a module before it is looked for; `open` comes for every file, the sources and caches of imports included.
        if event not in _EVENTS or getattr(_busy, "now", False) or getattr(sys, "is_finalizing", bool)():
            return
        _busy.now = True
        try:
            found = self._judge(event, args)
        finally:
            _busy.now = False
        if found:
            raise CrossingError(found)

    def _judge(self, event: str, args: tuple[object, ...]) -> str:
        found = ""
        if event == "import":
            name = str(args[0])
            found = next((f"imports {name}" for module in self.modules if f"{name}.".startswith(f"{module}.")), "")
        elif event == "open":
            found = self._opened(args[0])
        elif event in _PATHS:
            found = next(filter(None, (self._opened(one) for one in args[:2])), "")
        elif event in _PROCESSES:
            found = self._started(event, args)
        if found:
            line = {
                "what": found,
                "process": os.getpid(),
                "argv": sys.argv[:3],
                "test": os.environ.get("PYTEST_CURRENT_TEST", ""),
            }
            os.write(self.log, (json.dumps(line) + "\n").encode())
        return found

    def _opened(self, path: object) -> str:
        if not isinstance(path, str | bytes | os.PathLike):
            return ""  # a descriptor: its opening was an event of its own
        real = os.path.realpath(os.fsdecode(path))
        if real in self.exempt:
            return ""
        # An installed copy counts too: site-packages/tops_tests/oracles/gla.py. Its metadata does not: pytest reads all there is.
        installed = real.partition("/site-packages/")[2].replace(".py", "/").replace("/", ".")
        inside = real.startswith(self.folders) or installed.startswith(tuple(f"{module}." for module in self.modules))
        return f"opens {real}" if inside else ""

    def _started(self, event: str, args: tuple[object, ...]) -> str:
        """A child that names another stage's files, or one that starts Python without this hook."""
        words = [os.fsdecode(word) for part in args for word in _words(part)]
        start = (
            os.fsdecode(args[2])
            if event == "subprocess.Popen" and isinstance(args[2], str | bytes | os.PathLike)
            else "."
        )
        for word in words:
            path = os.path.realpath(os.path.join(start, word)) + "/"
            named = next(
                (folder for folder in self.folders if folder.rstrip("/") in word or path.startswith(folder)), None
            )
            named = named or next(
                (name for name in self.modules if name.startswith("tops_") and name in word.split()), None
            )
            if named:
                return f"starts a process that names {named}"
        if event == "subprocess.Popen" and any("python" in os.path.basename(word) for word in words[:2]):
            environment = args[3] if len(args) > 3 else None
            has = environment is None or (
                isinstance(environment, dict) and self.path in str(environment.get("PYTHONPATH", ""))
            )
            flags = "".join(
                word[1:] for word in words[1:6] if word.startswith("-") and not word.startswith("--") and len(word) < 5
            )
            if not has or set(flags) & set("SEI"):
                return "starts a Python that this audit does not reach: keep PYTHONPATH in its environment, and no -S, -E, -I"
        return ""


def _words(part: object) -> list[str | bytes]:
    if isinstance(part, str | bytes):
        return [part]
    return [word for word in part if isinstance(word, str | bytes)] if isinstance(part, list | tuple) else []


_PATHS = (
    "os.link",
    "os.symlink",
    "os.rename",
    "shutil.copyfile",
    "shutil.copytree",
    "shutil.move",
    "sqlite3.connect",
    "ctypes.dlopen",
)
_PROCESSES = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn")
_EVENTS = frozenset({"import", "open", *_PATHS, *_PROCESSES})


def install(environment: dict[str, str], path: str) -> None:
    """Adds the hook for good: an audit hook cannot be taken off."""
    sys.addaudithook(Hook(json.loads(environment[RULES]), environment[LOG], path))
