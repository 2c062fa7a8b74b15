"""Many units at once, each compiler in a process of its own: a crash costs one unit, and a TPU's compiler wants its environment first."""

import collections
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tops_kernels.runtime import memory, targets
from tops_kernels.runtime.spec import Spec, canonical
from tops_kernels.runtime.unit_worker import MARK

_PAUSE = 0.5  # seconds between two looks at the memory


def build(
    specs: Sequence[Spec],
    folder: Path,
    *,
    processes: int | None = None,
    finished: Callable[[Spec, str], None] = lambda *_: None,
) -> Mapping[Spec, str]:
    """Compiles into the workspace and `folder`, several at once as far as cores and memory go.

    Args:
      folder: gets <name>.unit for each that was compiled.
      processes: how many at most; None: by cores and memory.
      finished: called with each unit and its fault, in the order they end.
    Returns: a fault for each unit that failed; empty where all is well.
    """
    queue = collections.deque(sorted(specs, key=lambda one: (targets.platform_of(one.target), one.kind)))
    faults: dict[Spec, str] = {}
    running = [0]
    lock = threading.Lock()

    def work() -> None:
        child: _Child | None = None
        try:
            while True:
                with lock:
                    alone = running[0] == 0
                    if not queue:
                        return
                    if alone or not memory.is_tight():
                        spec = queue.popleft()
                        running[0] += 1
                    else:
                        spec = None
                if spec is None:
                    time.sleep(_PAUSE)
                    continue
                environment = targets.environment(spec.target)
                if child is None or child.environment != environment or child.is_over():
                    if child is not None:
                        child.end()
                    child = _Child(environment, folder)
                fault = child.compile(spec)
                with lock:
                    running[0] -= 1
                    if fault:
                        faults[spec] = fault
                    finished(spec, fault)
        finally:
            if child is not None:
                child.end()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(memory.compilers(processes), len(queue)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults


class _Child:
    """A process of unit_worker.py."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.environment = environment
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tops_kernels.runtime.unit_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "TOPS_UNITS_FOLDER": str(folder)},
        )

    def compile(self, spec: Spec) -> str:
        """The fault; empty where it is well."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(canonical(dataclasses.asdict(spec)).decode() + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith(MARK):
                    answer = json.loads(line.removeprefix(MARK))
                    return str(answer["fault"])
        except (OSError, ValueError) as error:
            return f"its compiler does not answer: {error}"
        return f"its compiler died with status {self._process.wait()}"

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """Lets it go; what it compiles is thrown away."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        with contextlib.suppress(OSError):  # the pipe's other end is gone
            self._process.stdin.close()
