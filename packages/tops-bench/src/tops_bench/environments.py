"""Two installed versions side by side: a child process each, which the parent asks in turns."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tops_bench.worker import PROTOCOL

_OWN = (
    "tops-kernels",
    "tops-manifest",
)  # a checkout brings what is compared; rows, inputs and timing stay this bench's


class WorkerError(RuntimeError):
    """An environment that cannot be asked."""


@dataclasses.dataclass(frozen=True, slots=True)
class Environment:
    """How to start a worker there."""

    name: str
    python: Path
    python_path: tuple[Path, ...] = ()  # sources that come before what is installed


def find(text: str) -> Environment | None:
    """What a path names: a Python interpreter, a virtual environment, or a checkout of this repository; None for a file
    that is none (a record). Raises WorkerError for a folder that is none of these, and for what does not exist."""
    path = Path(text)
    if path.is_dir():
        python = path / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if python.exists():
            return Environment(text, python.absolute())
        sources = tuple((path / "packages" / name / "src").absolute() for name in _OWN)
        if all(source.is_dir() for source in sources):
            own = path / ".venv" / python.relative_to(path)
            return Environment(text, own.absolute() if own.exists() else Path(sys.executable), sources)
        raise WorkerError(f"{text}: a folder; expected a virtual environment or a checkout with packages/")
    if not path.exists():
        raise WorkerError(f"{text}: no such file; expected a record, a Python interpreter, a checkout")
    return Environment(text, path.absolute()) if os.access(path, os.X_OK) and path.suffix != ".json" else None


class Child:
    """A running worker."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        # Two processes share one accelerator: neither may take all of its memory.
        variables = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        if environment.python_path:
            paths = [*map(str, environment.python_path), *filter(None, [os.environ.get("PYTHONPATH")])]
            variables["PYTHONPATH"] = os.pathsep.join(paths)
        # A pipe that nobody reads would fill up and stop the worker.
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in __exit__
        try:
            self._process = subprocess.Popen(
                [str(environment.python), "-m", "tops_bench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=variables,
                text=True,
            )
        except OSError as error:
            raise WorkerError(f"{environment.name}: cannot start {environment.python}: {error.strerror}") from error

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process, whatever it is doing."""
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def hello(self) -> dict[str, Any]:
        """What the environment has. Raises WorkerError where it speaks another protocol."""
        answer = self.ask({"do": "hello"})
        if answer.get("protocol") != PROTOCOL:
            raise WorkerError(
                f"{self.environment.name}: {answer.get('error') or 'its tops_bench speaks another protocol'}; "
                "expected a tops_bench as this one. Compare records instead: tops-bench run --json in each"
            )
        return answer

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One request, one answer. Raises WorkerError where the process is gone."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise WorkerError(f"{self.environment.name}: no pipes")
        line = ""
        try:
            stdin.write(json.dumps(request, allow_nan=False) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            pass  # told below, with what the process said before it ended
        if not line:
            self._process.kill()
            self._process.wait()
            self._said.seek(0)
            last = self._said.read().strip().splitlines()[-1:] or ["no message"]
            raise WorkerError(f"{self.environment.name}: its worker ended: {last[0]}")
        answer: dict[str, Any] = json.loads(line)
        return answer
