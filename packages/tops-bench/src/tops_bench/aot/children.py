"""Runs jobs in child processes: a crash, a hang or a kill of one is an answer like any other, never the end."""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tops_bench.aot import files, toolchain
from tops_bench.aot.bundles import DumpError

Job = Mapping[str, Any]
Answer = dict[str, Any]

_CHILD_BYTES = 4 << 30  # what a compile of a large program may take
_JOBS_A_CHILD = 40  # then a fresh one: a compiler's memory only grows
_TAIL = 2000


def parallel(limit: int | None = None) -> int:
    """Children at a time: as many as there are cores and memory for."""
    count = min(len(os.sched_getaffinity(0)), max(1, _free_memory() // _CHILD_BYTES))
    return max(1, min(count, limit) if limit else count)


def _free_memory() -> int:
    """Bytes the system could give: what is free, and what it holds as caches."""
    try:
        lines = files.read(Path("/proc/meminfo")).splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (DumpError, StopIteration, IndexError, ValueError):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


class Child:
    """One compiling process and its dump folder."""

    def __init__(self, platform: str, folder: Path, command: Sequence[str] = (), *, located: bool = False) -> None:
        """command: another program in the worker's place, which a test may give; located: see dumps.flags."""
        self.located = located
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close(), as long-lived as the child
        try:
            self.process = self._start(platform, folder, command)
        except OSError:
            self.errors.close()
            raise
        self.held = b""

    def _start(self, platform: str, folder: Path, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            list(command) or [sys.executable, "-m", "tops_bench.aot.worker", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, **toolchain.environment(platform, folder, located=self.located)},
            start_new_session=True,  # so that a kill takes what the compiler started with it
        )

    def ask(self, job: Job, limit: float) -> Answer:
        """Its answer within `limit` seconds, or {"crashed": ...}, {"timeout": ...}; after those the child is gone."""
        try:
            stdin = self.process.stdin
            if stdin is not None:
                stdin.write(json.dumps(job).encode() + b"\n")
                stdin.flush()
        except OSError:  # it ended before it was asked
            return self._crashed()
        line = self._line(time.monotonic() + limit)
        if line is None:
            self.close()
            return {"timeout": f"no answer in {limit:.0f} s"}
        try:
            result = json.loads(line)
        except ValueError:
            return self._crashed()
        return result if isinstance(result, dict) else self._crashed()

    def _line(self, deadline: float) -> bytes | None:
        """One line of its output, b"" where it has ended, None when the time is up."""
        stdout = self.process.stdout
        if stdout is None:
            return b""
        while b"\n" not in self.held:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                return None
            read = os.read(stdout.fileno(), 1 << 20)
            if not read:
                return b""
            self.held += read
        line, _, self.held = self.held.partition(b"\n")
        return line

    def _crashed(self) -> Answer:
        self._end()
        code = self.process.returncode
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit status {code}"
        self.errors.seek(0)
        tail = self.errors.read()[-_TAIL:].decode(errors="replace").strip().splitlines()
        self.close()
        return {"crashed": f"the compiling process ended with {how}" + (f": {tail[-1]}" if tail else "")}

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """Ends it and what it started."""
        self._end()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.errors.close()

    def _end(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(OSError):  # the pipe's other end is gone, with something left to flush
                self.process.stdin.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Pool:
    """Children that take jobs from one queue."""

    def __init__(self, platform: str, scratch: Path, count: int, limit: float, command: Sequence[str] = ()) -> None:
        self.platform, self.scratch, self.count, self.limit, self.command = platform, scratch, count, limit, command
        self.located = False

    def run(self, jobs: Sequence[Job], done: Callable[[int, Answer], None] = lambda *_: None) -> list[Answer]:
        """The answers in the order of the jobs. `done` is called from the children's threads, one call at a time."""
        self.located = any(job.get("explain") for job in jobs)
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(jobs)):
            waiting.put(index)
        answers: list[Answer] = [{} for _ in jobs]
        lock = threading.Lock()

        def work(number: int) -> None:
            child: Child | str | None = None
            asked = 0
            try:
                while True:
                    try:
                        index = waiting.get_nowait()
                    except queue.Empty:
                        return
                    if not isinstance(child, Child) or not child.alive or asked >= _JOBS_A_CHILD:
                        if isinstance(child, Child):
                            child.close()
                        child, asked = self._child(number), 0
                    asked += 1
                    answers[index] = (
                        child.ask(jobs[index], self.limit) if isinstance(child, Child) else {"fault": child}
                    )
                    with lock:
                        done(index, answers[index])
            finally:
                if isinstance(child, Child):
                    child.close()

        threads = [
            threading.Thread(target=work, args=(number,), daemon=True) for number in range(min(self.count, len(jobs)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def _child(self, number: int) -> Child | str:
        """Or why there is none: no such program, no room for its folder."""
        try:
            return Child(self.platform, self.scratch / f"child-{number}", self.command, located=self.located)
        except OSError as error:
            return f"no process could be started: {error}"


@contextlib.contextmanager
def pool(platform: str, *, count: int | None = None, limit: float = 240.0) -> Iterator[Pool]:
    """A pool with a folder of its own for dumps, removed at the end. limit: seconds a job. Raises OSError where there is no room."""
    with tempfile.TemporaryDirectory(prefix="tops-aot-", ignore_cleanup_errors=True) as scratch:
        yield Pool(platform, Path(scratch), parallel(count), limit)
