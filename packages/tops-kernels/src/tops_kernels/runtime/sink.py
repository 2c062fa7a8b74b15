"""Where the call log goes: a line is with the operating system before the call goes on, so a process that dies leaves it."""

import os
import sys
from pathlib import Path

from tops_kernels.runtime.storing import warn_once


class Sink:
    """Standard error, or a file that lines are appended to; "%p" in its name is the process id.

    A line is one write to a file opened for appending: threads, processes and children after a fork do not cut each other's lines.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._open: dict[str, int] = {}  # file name -> descriptor, never closed: calls may come until the process ends

    def write(self, line: str) -> None:
        """Appends a line. What cannot be written is told once, and dropped."""
        try:
            if not self.pattern:
                if sys.stderr is not None:
                    sys.stderr.write(line + "\n")
                    sys.stderr.flush()
                return
            data = line.encode() + b"\n"
            while data:
                data = data[os.write(self._descriptor(), data) :]
        except (OSError, ValueError) as error:  # ValueError: standard error is closed, or a NUL in the name
            reason = getattr(error, "strerror", None) or str(error)
            place = f"TOPS_LOG_FILE {self.pattern!r}" if self.pattern else "standard error"
            warn_once(
                f"log {self.pattern}", f"the call log cannot be written to {place}: {reason}; calls go on without"
            )

    def _descriptor(self) -> int:
        name = self.pattern.replace("%p", str(os.getpid()))
        found = self._open.get(name)
        if found is None:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            # NONBLOCK: a pipe that nobody reads is an error, and not a call that waits for ever
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
            opened = os.open(name, flags, 0o644)
            found = self._open.setdefault(name, opened)
            if found != opened:  # another thread was first
                os.close(opened)
        return found
