"""One process works on a unit, the others wait; whoever dies is no hindrance. Processes are forked from one that imported the package."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tops_kernels.runtime import locking, storing

# Prints a list: for each repetition who began, who ended, how all children ended, how many stored units are whole.
_RACE = r"""
import json, os, signal, sys, time, warnings
from pathlib import Path
warnings.simplefilter("ignore")  # jax warns of any fork; no backend was started and there is one thread
import numpy as np
from tops_kernels.runtime import artifacts, units
from tops_kernels.runtime.spec import spec

root, children, repetitions, kill = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "kill"
asked = spec("rms_norm", {"x": np.ones((4, 8), np.float32)}, target="cpu")

def said(what):
    handle = os.open(os.environ["TOPS_WORKSPACE"] + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{what} {os.getpid()}\n".encode())
    os.close(handle)

def compiler(wanted):
    said("begin")
    try:
        os.close(os.open(os.environ["TOPS_WORKSPACE"] + ".first", os.O_CREAT | os.O_EXCL))
        time.sleep(60 if kill else 0.2)  # the first one is killed in its sleep
    except FileExistsError:
        time.sleep(0.05)
    said("end")
    return artifacts.Unit(wanted, (((4, 8), "float32"),), True, b"code" * 1000)

found = []
for repetition in range(repetitions):
    os.environ["TOPS_WORKSPACE"] = str(root / f"workspace-{repetition}")
    log = Path(os.environ["TOPS_WORKSPACE"] + ".log")
    pids = []
    start = time.monotonic()
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 0 if units.ensure(asked, compiler=compiler).code == b"code" * 1000 else 2
            finally:
                os._exit(status)
        pids.append(pid)
    if kill:
        while not log.exists() or "begin" not in log.read_text():
            time.sleep(0.005)
        time.sleep(0.02)
        os.kill(int(log.read_text().split()[1]), signal.SIGKILL)
    statuses = sorted(os.waitpid(pid, 0)[1] for pid in pids)
    words = log.read_text().split()[::2]
    unit = artifacts.find(asked)
    left = sorted(path.suffix for path in artifacts.path_of(asked).parent.iterdir())
    found.append({"begun": words.count("begin"), "ended": words.count("end"), "statuses": statuses,
                  "whole": unit is not None, "left": left, "seconds": time.monotonic() - start})
print(json.dumps(found))
"""

# A child forked by the owner outlives it and still holds the lock file open.
_ORPHAN = r"""
import os, signal, sys, time
from pathlib import Path
from tops_kernels.runtime.locking import locked
path = Path(sys.argv[1])
owner = os.fork()
if owner == 0:
    with locked(path):
        orphan = os.fork()
        if orphan == 0:
            time.sleep(600)
            os._exit(0)
        path.with_name("orphan").write_text(str(orphan))
        os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(owner, 0)
with locked(path):
    path.with_name("taken over").touch()
os.kill(int(path.with_name("orphan").read_text()), signal.SIGKILL)
"""


def _race(tmp_path: Path, children: int, repetitions: int, how: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", _RACE, str(tmp_path), str(children), str(repetitions), how],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_of_sixteen_processes_that_want_one_unit_one_compiles_it(tmp_path: Path) -> None:
    for found in _race(tmp_path, 16, 2, "all live"):
        assert (found["begun"], found["ended"]) == (1, 1)
        assert found["statuses"] == [0] * 16
        assert found["whole"]
        assert found["left"] == [".unit"]


@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_an_owner_that_is_killed_keeps_nobody_waiting(tmp_path: Path, times: int) -> None:
    repetitions = _race(tmp_path, 16, times, "kill")
    assert len(repetitions) == times
    for found in repetitions:  # the one killed would have slept for a minute
        assert (found["begun"], found["ended"]) == (2, 1)
        assert found["statuses"] == [0] * 15 + [9]
        assert found["whole"]
        assert found["left"] == [".unit"]


def test_a_lock_that_a_dead_owners_child_still_holds_is_taken_over(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ORPHAN, str(tmp_path / "lock")],
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert (tmp_path / "taken over").exists()


def test_who_waits_is_told_whom_for(tmp_path: Path) -> None:
    told: list[str] = []

    class EnoughError(Exception):
        pass

    def waiting(text: str) -> None:
        told.append(text)
        raise EnoughError

    with (
        locking.locked(tmp_path / "lock"),
        pytest.raises(EnoughError),
        locking.locked(tmp_path / "lock", waiting),
    ):
        raise AssertionError("both hold it")
    assert told == [f"process {os.getpid()} has it since 0 s"]
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_another_process_has_now_is_a_dead_owners() -> None:
    me = locking._myself()
    assert not locking.is_dead(me)
    assert locking.is_dead(me | {"started": "1"})
    assert locking.is_dead(me | {"pid": 2**22 - 1, "started": "1"})
    assert not locking.is_dead(me | {"pid": 2**22 - 1, "host": "elsewhere"})
    assert not locking.is_dead({})


def test_without_a_place_for_the_lock_the_work_is_done_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storing, "_warned", set())
    (tmp_path / "file").write_text("")
    with locking.locked(tmp_path / "file" / "lock"), locking.locked(tmp_path / "file" / "lock"):
        pass
    assert len(caplog.records) == 1
