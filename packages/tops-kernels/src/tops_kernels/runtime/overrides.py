"""Block configurations for a stretch of code: how tuning and schedule analysis ask for another one than the heuristic's."""

import contextlib
import contextvars
from collections.abc import Hashable, Iterator

# (op, pass) -> configuration. A context variable: threads and tasks do not see each other's.
_CURRENT: contextvars.ContextVar[tuple[tuple[str, str, Hashable], ...]] = contextvars.ContextVar(
    "tops_config", default=()
)

Override = tuple[tuple[str, Hashable], ...]  # (pass, configuration) pairs: hashable, so part of what is compiled


def current(op: str) -> Override:
    """What is asked for one op, by pass; static, so that another configuration is another compilation."""
    entries = _CURRENT.get()
    return tuple((which, config) for name, which, config in entries if name == op) if entries else ()


def chosen(override: Override, which: str) -> Hashable | None:
    """The configuration asked for one pass; None leaves it to the heuristic."""
    return dict(override).get(which)


@contextlib.contextmanager
def use_config(op: str, which: str, config: Hashable) -> Iterator[None]:
    """Within the block, `op` runs `which` ("fwd" or "vjp") with `config` where its kernel takes one.

    Args:
      op: an op's name.
      which: "fwd" or "vjp".
      config: what `tops_kernels.configurations` gave for the same op and pass.
    """
    kept = tuple(entry for entry in _CURRENT.get() if entry[:2] != (op, which))
    token = _CURRENT.set((*kept, (op, which, config)))
    try:
        yield
    finally:
        _CURRENT.reset(token)
