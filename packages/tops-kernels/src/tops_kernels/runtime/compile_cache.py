"""JAX's persistent compilation cache, in the workspace, for a stretch of code.

JAX has the mechanism; what it lacks is here. Its own files are written in place, so a process that is killed leaves half of one under
a name that is never written again; they carry no checksum; programs that compile in under a second are not kept; and where the cache
is can be set for the whole process only. So JAX is handed a store of ours, and the thresholds are set for this thread alone.
"""

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tops_kernels.runtime.storing import read_whole, sweep, warn_once, write_whole
from tops_kernels.runtime.variables import CACHE
from tops_kernels.runtime.workspace import folder

_MAX_BYTES = 2 << 30  # of one program
_ENDING = ".xla"
_lock = threading.Lock()
_open = 0  # blocks that are open, in all threads: JAX has one cache a process


@contextlib.contextmanager
def compile_cache() -> Iterator[None]:
    """Within the block, each program that JAX compiles is kept in the workspace, and one that is there already is not compiled.

        with tops_kernels.compile_cache():
            y = tops_kernels.rms_norm(x)  # compiles nothing in the second process

    Calling an op writes nothing by itself: this is how to ask for it. jax.config is not changed. Programs lowered within carry no source
    lines, so profiles show names alone. JAX has one cache a process: what other threads compile meanwhile goes through it too, but programs
    of under a second are not kept for them. A thread that compiles opens a block of its own.

    Nothing happens with TOPS_CACHE=0, with jax's own cache switched off (jax_enable_compilation_cache), or with a directory of the
    user's own (jax_compilation_cache_dir): then theirs is kept, with their thresholds.
    """
    import jax

    # Private: jax has no public way to set these for a stretch of code, nor to hand it another store. Both lines of the lock have them.
    from jax._src import compilation_cache as jax_cache
    from jax._src import config

    options = jax.config.values
    if not CACHE.value() or options["jax_compilation_cache_dir"] or not options["jax_enable_compilation_cache"]:
        yield
        return
    global _open
    with (
        config.persistent_cache_min_compile_time_secs(0.0),
        config.persistent_cache_min_entry_size_bytes(-1),
        # Where the sources lie is no part of a program. The second: a Pallas kernel for TPU carries its own lines, which JAX does not
        # take out of the key.
        config.compilation_cache_include_metadata_in_key(False),
        config.traceback_in_locations_limit(0),
    ):
        with _lock:
            if not _open:
                _install(jax_cache)
            _open += 1
        try:
            yield
        finally:
            with _lock:
                _open -= 1
                if not _open:
                    jax_cache.reset_cache()  # what JAX compiles next, it does as if we had not been


def _install(jax_cache: Any) -> None:
    if not hasattr(jax_cache, "_cache"):
        warn_once("compile cache", "this jax keeps its compilation cache elsewhere; going on without one")
        return
    jax_cache.reset_cache()
    root = folder("xla")
    sweep(root)
    jax_cache._cache = Store(root)


class Store:
    """What JAX asks of a cache: programs by key, here whole or absent, and checked."""

    def __init__(self, root: Path) -> None:
        self._path = root  # jax names it in its log

    def get(self, key: str) -> bytes | None:
        """The program; None where there is none or it is damaged."""
        data = read_whole(self._file(key), _MAX_BYTES)
        if data is None:
            return None
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            warn_once(f"program {key}", f"{self._file(key)} is damaged; ignored, and written anew")
            return None
        return data[32:]

    def put(self, key: str, value: bytes) -> None:
        """Warns where it cannot be written, and goes on."""
        write_whole(self._file(key), hashlib.sha256(value).digest() + value)

    def _file(self, key: str) -> Path:
        """JAX's key starts with the function's name, which may be anything."""
        name = re.sub(r"[^A-Za-z0-9_]+", "_", key.rpartition("-")[0])[:60]
        return self._path / f"{name}-{hashlib.sha256(key.encode()).hexdigest()}{_ENDING}"
