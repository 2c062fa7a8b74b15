"""A line on stderr for what takes long: a cold start that says nothing looks dead."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

FIRST = 2.0  # seconds before anything is said
_NEXT = 10.0


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """Within the block, "compiling rms_norm for v5e (2 s)" after two seconds and every ten from then on.

    Yields: a function that sets what stands behind the time, for a wait.
    """
    start = time.monotonic()
    done = threading.Event()
    remark = [""]

    def say() -> None:
        pause = FIRST
        while not done.wait(pause):
            sys.stderr.write(f"{what} ({time.monotonic() - start:.0f} s{remark[0]})\n")
            sys.stderr.flush()
            pause = _NEXT

    def set_remark(text: str) -> None:
        remark[0] = f": {text}" if text else ""

    speaker = threading.Thread(target=say, name="tops-progress", daemon=True)
    speaker.start()
    try:
        yield set_remark
    finally:
        done.set()
        speaker.join()
