"""JAX's compilation cache in the workspace: on for a block, off without a trace after it."""

import base64
import collections
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tops_kernels
from tops_kernels import compile_cache
from tops_kernels.runtime import storing

EVENTS: collections.Counter[str] = collections.Counter()
X = np.linspace(0, 1, 40, dtype=np.float32).reshape(5, 8)


@pytest.fixture(autouse=True)
def _workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A workspace of its own, nothing of jax's own cache, and a count of what is compiled."""
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setattr(storing, "_warned", set())
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    jax.monitoring.register_event_listener(_count)
    jax.monitoring.register_event_duration_secs_listener(_count)
    yield
    jax.monitoring.unregister_event_listener(_count)
    jax.monitoring.unregister_event_duration_listener(_count)
    jax.config.update("jax_compilation_cache_dir", before)


def _count(event: str, *_: Any, **__: Any) -> None:
    EVENTS[event] += 1


def compiled(work: Callable[[], Any]) -> int:
    """Programs that the compiler made while `work` ran, from none in memory: JAX's event is sent for one from the cache too."""
    jax.clear_caches()
    EVENTS.clear()
    jax.block_until_ready(work())
    return EVENTS["/jax/core/compile/backend_compile_duration"] - EVENTS["/jax/compilation_cache/cache_hits"]


def norm() -> Any:
    return tops_kernels.rms_norm(X, eps=1e-5, backend="xla")


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_the_second_time_nothing_is_compiled_and_the_result_is_the_same(tmp_path: Path) -> None:
    with compile_cache():
        assert compiled(norm) >= 1
        first = np.asarray(norm())
        assert compiled(norm) == 0
        np.testing.assert_array_equal(np.asarray(norm()), first)
    assert files(tmp_path / "workspace" / "xla")


def test_without_it_nothing_is_written_and_afterwards_nothing_is_left(tmp_path: Path) -> None:
    assert compiled(norm) >= 1
    assert not (tmp_path / "workspace").exists()
    before = dict(jax.config.values)
    with compile_cache():
        assert compiled(norm) >= 1
    assert dict(jax.config.values) == before
    count = len(files(tmp_path))
    assert compiled(lambda: tops_kernels.rms_norm(X[:2], backend="xla")) >= 1
    assert compiled(norm) >= 1
    assert len(files(tmp_path)) == count


def test_within_it_other_threads_see_jaxs_options_as_they_were() -> None:
    before, seen = dict(jax.config.values), []
    with compile_cache():
        thread = threading.Thread(target=lambda: seen.append(dict(jax.config.values)))
        thread.start()
        thread.join()
    assert seen == [before]


def test_a_block_within_a_block_and_one_that_fails_leave_the_cache_as_they_found_it(tmp_path: Path) -> None:
    with compile_cache():
        with pytest.raises(ZeroDivisionError), compile_cache():
            _ = 1 / 0
        assert compiled(norm) >= 1
        assert compiled(norm) == 0
    assert compiled(norm) >= 1


@pytest.mark.parametrize("how", ["flip", "cut", "empty", "folder"])
def test_a_damaged_program_is_compiled_again_and_written_anew(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with compile_cache():
        compiled(norm)
        for path in files(tmp_path / "workspace"):
            data = path.read_bytes()
            path.unlink()
            if how == "folder":
                continue
            path.write_bytes({"flip": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:50], "empty": b""}[how])
        assert compiled(norm) >= 1
        assert compiled(norm) == 0


def test_where_a_function_stands_is_no_part_of_its_key() -> None:
    class Here:
        @staticmethod
        def scaled(x: Any) -> Any:
            return x * 2 + 1

    class Below:
        @staticmethod
        def scaled(x: Any) -> Any:
            return x * 2 + 1

    with compile_cache():
        assert compiled(lambda: jax.jit(Here.scaled)(X)) >= 1
        assert compiled(lambda: jax.jit(Below.scaled)(X)) == 0


def test_a_tpu_kernel_carries_no_source_line_into_its_key() -> None:
    def kernel() -> bytes:
        jax.clear_caches()
        lowered = jax.jit(lambda x: tops_kernels.rms_norm(x)).trace(X).lower(lowering_platforms=("tpu",))
        (body,) = re.findall(r"\\22body\\22: *\\22(.*?)\\22", lowered.as_text())
        return base64.b64decode(body)

    # From jax 0.12 on it keeps them out by itself.
    assert (b".py" in kernel()) == (jax.__version_info__ < (0, 12)), (
        "this test could not fail where jax keeps lines out"
    )
    with compile_cache():
        assert b".py" not in kernel()


def test_a_directory_of_the_users_own_is_kept(tmp_path: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "users"))
    with compile_cache():
        assert compiled(norm) >= 1
    assert not (tmp_path / "workspace").exists()
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.mark.parametrize("off", ["TOPS_CACHE=0", "jax"])
def test_it_can_be_switched_off(off: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if off != "jax":
        monkeypatch.setenv("TOPS_CACHE", "0")
    was = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", off != "jax")
    try:
        with compile_cache():
            assert compiled(norm) >= 1
    finally:
        jax.config.update("jax_enable_compilation_cache", was)
    assert not (tmp_path / "workspace").exists()


def test_a_workspace_that_cannot_be_written_costs_the_cache_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "workspace").write_text("in the way")
    with compile_cache():
        assert compiled(norm) >= 1
        assert compiled(norm) >= 1
    assert len([one for one in caplog.records if one.name == "tops_kernels"]) == 1
