"""A stored file is whole or absent, whatever happens to the disk or the writer."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tops_kernels.runtime import storing


@pytest.fixture(autouse=True)
def _warned_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "_warned", set())


def test_what_is_written_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    assert storing.write_whole(path, b"one")
    assert storing.write_whole(path, b"two")
    assert storing.read_whole(path, 3) == b"two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_what_is_missing_too_long_or_no_file_reads_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"1234")
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "long", "pipe", "."):
        assert storing.read_whole(tmp_path / name, 3) is None, name


def test_a_full_disk_costs_the_file_and_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    storing.write_whole(tmp_path / "kept", b"before")
    monkeypatch.setattr("os.fsync", full)
    assert not storing.write_whole(tmp_path / "kept", b"after")
    assert not storing.write_whole(tmp_path / "other", b"after")
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"before"
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert "TOPS_WORKSPACE" in caplog.text


def test_a_place_where_a_file_stands_in_the_way_costs_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert not storing.write_whole(tmp_path / "file" / "below", b"")
    assert len(caplog.records) == 1


def test_nothing_is_written_beside_installed_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storing, "_INSTALLED", tmp_path)
    assert not storing.write_whole(tmp_path / "below" / "file", b"")
    assert list(tmp_path.iterdir()) == []
    assert "beside installed code" in caplog.text


def test_a_sweep_removes_old_parts_alone(tmp_path: Path) -> None:
    for name in (".1-a.part", ".2-b.part", "file"):
        (tmp_path / name).write_bytes(b"")
    for name in (".1-a.part", "file"):
        os.utime(tmp_path / name, (0, 0))
    storing.sweep(tmp_path)
    storing.sweep(tmp_path / "missing")
    assert {entry.name for entry in tmp_path.iterdir()} == {".2-b.part", "file"}


# Forks children that store, and kills each at a random moment. Only the module itself is imported: no jax.
_KILLED = r"""
import json, os, random, signal, sys, time, types
from pathlib import Path
package = types.ModuleType("tops_kernels")
package.__path__ = [sys.argv[1]]
sys.modules["tops_kernels"] = package
from tops_kernels.runtime.storing import write_whole

folder, draw, whole, absent, cut = Path(sys.argv[2]), random.Random(7), 0, 0, 0
data = [bytes([number]) * 3_000_000 for number in range(2)]
for number in range(200):
    path = folder / f"unit-{number}"
    child = os.fork()
    if child == 0:
        write_whole(path, data[0])
        write_whole(path, data[1])
        os._exit(0)
    time.sleep(draw.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = path.read_bytes() if path.exists() else None
    whole, absent, cut = whole + (found in data), absent + (found is None), cut + (found not in (None, *data))
print(json.dumps([whole, absent, cut, sum(path.name.startswith(".") for path in folder.iterdir())]))
"""


def test_killed_at_any_moment_of_storing_each_of_200_files_is_whole_or_absent(tmp_path: Path) -> None:
    package = Path(storing.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(package), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    whole, absent, cut, parts = json.loads(done.stdout)
    assert cut == 0
    assert whole + absent == 200
    assert parts >= 10, "hardly any was killed while it wrote: this test could not fail"
