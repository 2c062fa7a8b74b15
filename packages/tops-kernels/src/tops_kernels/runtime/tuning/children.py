"""Child processes that compile candidates: a crash, a hang or a refusal of one is a candidate lost, and nothing else."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

Job = Mapping[str, Any]
Answer = dict[str, Any]

# What a process must have in its environment before jax starts, to compile for a TPU without touching the one that its parent holds.
_TPU = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # any will do: the topology asked for decides
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else parallel children abort on libtpu's lock file
}
_LAST_WORDS = 300


def environment(chip: str) -> dict[str, str]:
    """Variables for a child that compiles for a chip, a platform, or the interpreter."""
    if chip.startswith("sm_") or chip == "cuda":
        return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # its parent has the memory
    return {"JAX_PLATFORMS": "cpu"} if chip == "interpreter" else dict(_TPU)


class Child:
    """One compiling process. It takes a job a line and gives an answer a line."""

    def __init__(self, chip: str, command: Sequence[str] = ()) -> None:
        """command: another program in the worker's place."""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close(), as long-lived as the child
        try:
            self._process = self._start(chip, command)
        except OSError:
            self._errors.close()
            raise
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(self, chip: str, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            list(command) or [sys.executable, "-m", "tops_kernels.runtime.tuning.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment(chip)},
            start_new_session=True,  # so that a kill takes what the compiler started with it
        )

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put(b"")

    def ask(self, job: Job, limit: float) -> Answer:
        """Its answer within `limit` seconds; {"lost": why} where there is none, and then the child is gone."""
        stdin = self._process.stdin
        try:
            if stdin is not None:
                stdin.write(json.dumps(job).encode() + b"\n")
                stdin.flush()
            line = self._lines.get(timeout=limit)
        except OSError:  # it ended before it was asked
            line = b""
        except queue.Empty:
            self.close()
            return {"lost": f"no answer in {limit:g} s"}
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return answer
        self._end()
        self._errors.seek(0)
        words = self._errors.read()[-4000:].decode(errors="replace").strip().splitlines()
        how = f"the compiling process ended ({self._process.returncode})"
        self._errors.close()
        return {"lost": f"{how}: {words[-1][:_LAST_WORDS]}" if words else how}

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Ends it and what it started."""
        self._end()
        self._errors.close()

    def _end(self) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is not None:
            with contextlib.suppress(OSError):  # the pipe's other end is gone, with something left to flush
                stdin.close()
        with contextlib.suppress(OSError):  # all of them are gone; or this system has no groups
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=5)
        if stdout is not None and not self._reader.is_alive():  # else something that escaped holds the pipe open
            stdout.close()


def run(
    jobs: Sequence[Job],
    chip: str,
    *,
    limit: float,
    count: int,
    command: Sequence[str] = (),
    done: Callable[[int, Answer], None] = lambda *_: None,
) -> list[Answer]:
    """The answers in the order of the jobs.

    Args:
      chip: what they compile for. limit: seconds a job, the child's start included. count: children at a time.
      command: see `Child`. done: called with a job's number and answer, one call at a time.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(jobs)):
        waiting.put(index)
    answers: list[Answer] = [{} for _ in jobs]
    lock = threading.Lock()

    def work() -> None:
        child: Child | None = None
        try:
            while True:
                try:
                    index = waiting.get_nowait()
                except queue.Empty:
                    return
                started = time.monotonic()
                try:
                    if child is None or not child.alive:
                        child = Child(chip, command)
                    answers[index] = child.ask(jobs[index], limit - (time.monotonic() - started))
                except OSError as error:
                    answers[index] = {"lost": f"no process could be started: {error}"}
                with lock:
                    done(index, answers[index])
        finally:
            if child is not None:
                child.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(max(1, min(count, len(jobs))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
