"""Implementations that are known to fail somewhere: not chosen there, refused where they are insisted on, until the row is gone.

The rows are the package's own file blocklist.json, read when the first call is traced; docs/tuning.md has its form. A row past its
date still holds, as behaviour must not change with the day: a test fails then, so that somebody looks.
"""

import contextlib
import contextvars
import dataclasses
import datetime
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tops_kernels.runtime.chip import GPU_TARGETS, TPU_TARGETS, chip_name
from tops_kernels.runtime.versions import check_range, in_range, version

SCHEMA = 1
# Where an implementation is compiled: platform -> chips, as `support` calls them.
_CHIPS: Mapping[str, tuple[str, ...]] = {"tpu": TPU_TARGETS, "cuda": GPU_TARGETS}
_PLATFORM_OF = {"pallas_tpu": "tpu", "pallas_gpu": "cuda"}
_LIFTED: contextvars.ContextVar[bool] = contextvars.ContextVar("tops_blocklist_lifted", default=False)
_FIELDS = ("op", "implementation", "target", "versions", "issue", "expires", "call")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """One row."""

    op: str
    implementation: str  # a kernel; the xla path cannot be blocked: it is what is left
    target: str  # a platform ("tpu", "cuda") or a chip
    versions: tuple[tuple[str, str], ...]  # package -> range; all must hold where it is installed; none: always
    issue: str  # a link, or what goes wrong
    expires: str  # the day by which somebody looks at it again, YYYY-MM-DD
    call: str  # what to compile to see it fail: JSON {"pass", "inputs": {name: [shape, dtype]}, "params"}

    @property
    def is_current(self) -> bool:
        """Whether it is about the versions installed here. A package that is not here is taken to be one of those."""
        return all(not version(package) or in_range(version(package), text) for package, text in self.versions)

    def expired(self, today: datetime.date) -> bool:
        return datetime.date.fromisoformat(self.expires) < today

    def __str__(self) -> str:
        span = ", ".join(f"{package} {text}" for package, text in self.versions) or "every version"
        return f"{self.op} {self.implementation} on {self.target} ({span}; looked at again by {self.expires}): {self.issue}"


def parse(content: bytes) -> tuple[Blocked, ...]:
    """Raises ValueError naming the row and the fault."""
    data = json.loads(content)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("rows"), list):
        raise ValueError(f"blocklist: expected schema {SCHEMA} and rows")
    return tuple(_row(row, f"blocklist: rows[{at}]") for at, row in enumerate(data["rows"]))


def _row(data: Any, at: str) -> Blocked:
    if not isinstance(data, dict) or set(data) != set(_FIELDS):
        raise ValueError(f"{at}: expected {', '.join(_FIELDS)}")
    for name in ("op", "implementation", "target", "issue", "expires"):
        if not isinstance(data[name], str) or not data[name]:
            raise ValueError(f"{at}: {name} is {data[name]!r}; expected a text")
    platform = _PLATFORM_OF.get(data["implementation"])
    if platform is None:
        raise ValueError(
            f"{at}: implementation is {data['implementation']!r}; expected one of {', '.join(_PLATFORM_OF)}"
        )
    if data["target"] not in (platform, *_CHIPS[platform]):
        wanted = ", ".join((platform, *_CHIPS[platform]))
        raise ValueError(f"{at}: target is {data['target']!r}; expected one of {wanted}")
    if not isinstance(data["versions"], dict):
        raise ValueError(f"{at}: versions is {data['versions']!r}; expected package = range")
    for text in data["versions"].values():
        check_range(str(text))
    datetime.date.fromisoformat(data["expires"])  # its own message names the text
    call = data["call"]
    if not isinstance(call, dict) or set(call) != {"pass", "inputs", "params"}:
        raise ValueError(f"{at}: call is {call!r}; expected pass, inputs and params, for --verify")
    versions = tuple((str(package), str(text)) for package, text in sorted(data["versions"].items()))
    plain = {name: data[name] for name in ("op", "implementation", "target", "issue", "expires")}
    return Blocked(**plain, versions=versions, call=json.dumps(call, sort_keys=True))


@functools.lru_cache(maxsize=1)
def rows() -> tuple[Blocked, ...]:
    """The package's rows, in the order of the file."""
    from importlib import resources

    return parse(resources.files("tops_kernels").joinpath("blocklist.json").read_bytes())


def blocked(op: str, implementation: str, target: str) -> Blocked | None:
    """The row that keeps an implementation from a target, a platform or a chip. A platform is not kept by a row of one of its chips."""
    platform = _PLATFORM_OF.get(implementation, "")
    for row in rows():
        if (row.op, row.implementation) == (op, implementation) and row.target in (target, platform) and row.is_current:
            return row
    return None


def blocked_where_traced(op: str, implementation: str, *, insisted: bool = False) -> Blocked | None:
    """The row that keeps an implementation from the chip that is traced for.

    Where that chip is not known (an export from another machine) every row of the platform counts, since the program may go to that
    chip; with `insisted` only those of the whole platform.
    """
    if not rows() or _LIFTED.get():
        return None
    on = chip_name(implementation)
    if on or insisted:
        return blocked(op, implementation, on)
    found = (row for row in rows() if (row.op, row.implementation) == (op, implementation) and row.is_current)
    return next(found, None)


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """Within it nothing is blocked: for a process of its own that looks whether a row still fails. What jax has traced before stays."""
    token = _LIFTED.set(True)
    try:
        yield
    finally:
        _LIFTED.reset(token)
