"""Every environment variable that tops reads: name, default, meaning, what may be in it. The one place that reads them.

They are read when they are needed, never at import; `tops-kernels env` prints them with where each value came from.
"""

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class VariableError(ValueError):
    """A variable holds what it may not; the message names it, what it holds and what it may hold."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variable(Generic[T]):
    """One variable. `default` is text too, read as if it had been set."""

    name: str
    default: str
    meaning: str
    allowed: str  # for people
    read: Callable[[str], T]  # raises ValueError for what is not allowed

    def text(self) -> str:
        """What is set; an empty value counts as not set."""
        return os.environ.get(self.name) or self.default

    def source(self) -> str:
        """Where the value comes from: "environment" or "default"."""
        return "environment" if os.environ.get(self.name) else "default"

    def value(self) -> T:
        """Raises VariableError."""
        text = self.text()
        try:
            return self.read(text)
        except ValueError:
            raise VariableError(
                f"{self.name} is {text!r}; expected {self.allowed}. Set it so, or unset it (default: {self.default or 'empty'})"
            ) from None


def _choice(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return read


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


def _level(text: str) -> int:
    if text not in ("0", "1", "2", "3", "4"):
        raise ValueError
    return int(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError
    return int(text)


def _path(text: str) -> Path | None:
    return Path(text).expanduser().absolute() if text else None


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _url(text: str) -> str:
    if text and not re.match(r"(https?|file)://\S+\Z", text):
        raise ValueError
    return text.rstrip("/")


WORKSPACE = Variable(
    "TOPS_WORKSPACE",
    "",
    "the one directory tops writes to",
    "a path (empty: tops in the user's cache directory)",
    _path,
)
COMPILE = Variable(
    "TOPS_COMPILE",
    "auto",
    "whether a unit that no artifact holds may be compiled",
    "auto, cache-only or forbid",
    _choice("auto", "cache-only", "forbid"),
)
CACHE = Variable("TOPS_CACHE", "1", "whether compiled code is kept in the workspace", "0 or 1", _switch)
OFFLINE = Variable("TOPS_OFFLINE", "0", "1: nothing is ever downloaded", "0 or 1", _switch)
MIRROR = Variable(
    "TOPS_MIRROR",
    "",
    "where bundles named without a URL are downloaded from",
    "a https://, http:// or file:// URL",
    _url,
)
VERIFY = Variable(
    "TOPS_VERIFY", "1", "0: checksums of bundles are not verified (for debugging; warns each time)", "0 or 1", _switch
)
LOG = Variable(
    "TOPS_LOG",
    "0",
    "the call log: 0 off, 1 names, 2 and shapes, 3 and statistics, 4 and dumps",
    "0, 1, 2, 3 or 4",
    _level,
)
LOG_FILE = Variable(
    "TOPS_LOG_FILE", "", "where the call log goes; %p is the process id", "a path (empty: standard error)", str
)
LOG_IN_JIT = Variable(
    "TOPS_LOG_IN_JIT",
    "0",
    "1: statistics and dumps inside jit too, by a callback that keeps compiled code from being cached",
    "0 or 1",
    _switch,
)
DUMP_COUNT = Variable(
    "TOPS_DUMP_COUNT", "100", "how many calls a process dumps at most", "a whole number, 0 or more", _count
)
DUMP_BYTES = Variable(
    "TOPS_DUMP_BYTES", str(4 << 30), "how many bytes a process dumps at most", "a whole number, 0 or more", _count
)
DUMP_INCLUDE = Variable(
    "TOPS_DUMP_INCLUDE", "*", "the ops that are dumped", "names or patterns (*, ?), separated by commas", _patterns
)
DUMP_EXCLUDE = Variable(
    "TOPS_DUMP_EXCLUDE", "", "the ops that are not dumped", "names or patterns (*, ?), separated by commas", _patterns
)
TUNED = Variable(
    "TOPS_TUNED", "1", "whether tuned configurations are looked up; 0: heuristics alone", "0 or 1", _switch
)
TRACE = Variable(
    "TOPS_TRACE", "", "a folder that each call's signature is written to, for tops-kernels trace", "a path", _path
)

VARIABLES = (
    WORKSPACE,
    COMPILE,
    CACHE,
    OFFLINE,
    MIRROR,
    VERIFY,
    LOG,
    LOG_FILE,
    LOG_IN_JIT,
    DUMP_COUNT,
    DUMP_BYTES,
    DUMP_INCLUDE,
    DUMP_EXCLUDE,
    TUNED,
    TRACE,
)

# Not ours: they go to the compilers as they are. Noted in dumps and reports, since they change the code that is made.
XLA_FLAGS = Variable("XLA_FLAGS", "", "XLA's own flags", "as XLA reads them", str)
LIBTPU_INIT_ARGS = Variable("LIBTPU_INIT_ARGS", "", "libtpu's own flags", "as libtpu reads them", str)


def compiler_flags() -> dict[str, str]:
    """The compilers' flags that are set, by name."""
    return {one.name: one.text() for one in (XLA_FLAGS, LIBTPU_INIT_ARGS) if one.source() != "default"}
