"""Block configurations for a stretch of code: how tuning and schedule analysis ask for another one than the heuristic's."""

import contextlib
import contextvars
import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax

# (op, pass) -> configuration. A context variable: threads and tasks do not see each other's.
_CURRENT: contextvars.ContextVar[tuple[tuple[str, str, Hashable], ...]] = contextvars.ContextVar(
    "tops_config", default=()
)

Override = tuple[tuple[str, Hashable], ...]  # (pass, configuration) pairs: hashable, so part of what is compiled


def current(op: str) -> Override:
    """What is asked for one op, by pass; static, so that another configuration is another compilation."""
    entries = _CURRENT.get()
    return tuple((which, config) for name, which, config in entries if name == op) if entries else ()


def chosen(op: str, override: Override, which: str, kinds: Mapping[str, type[Any]]) -> Mapping[str, Hashable | None]:
    """The configuration asked for one pass, by the implementation whose kind it is; None leaves one to its heuristic.

    Args:
      kinds: implementation -> type of its configurations. A call holds a kernel for each platform, and one's blocks must not
        reach another's.
    Raises: TypeError for a configuration that is none of these.
    """
    config = dict(override).get(which)
    found = {key: config if isinstance(config, kind) else None for key, kind in kinds.items()}
    if config is not None and not any(isinstance(config, kind) for kind in kinds.values()):
        wanted = " or ".join(kind.__name__ for kind in kinds.values())
        raise TypeError(f"{op}: configuration is of type {type(config).__name__}; expected {wanted}")
    return found


@contextlib.contextmanager
def use_config(op: str, which: str, config: Hashable) -> Iterator[None]:
    """Within the block, `op` runs `which` ("fwd" or "vjp") with `config` in the kernel whose configuration it is.

    A function that was jitted before is traced again in the block.

    Args:
      op: an op's name.
      which: "fwd" or "vjp".
      config: what `tops_kernels.configurations` gave for the same op and pass.
    """
    with entered(((op, which, config),)):
        yield


@contextlib.contextmanager
def entered(entries: Sequence[tuple[str, str, Hashable]]) -> Iterator[None]:
    """Within the block, (op, what, value) entries hold, each in place of an outer one of the same op and what."""
    asked = {entry[:2] for entry in entries}
    now = (*(entry for entry in _CURRENT.get() if entry[:2] not in asked), *entries)
    token = _CURRENT.set(now)
    try:
        with _seen_by_jit()(now):
            yield
    finally:
        _CURRENT.reset(token)


@functools.cache
def _seen_by_jit() -> Any:
    """Our static argument tells calls of an op apart. A caller's own jitted function around them has no such argument: this does."""
    return jax.make_user_context(())  # type: ignore[no-untyped-call]  # jax has no types for it
