"""A process that compiles units: one specification a line on stdin, one answer a line on stdout. bulk.py starts it.

Each unit is compiled in a fork of its own: a compiler counts what it compiled before, and the count is in the code it makes, so code
of a process with a past is not the same bytes twice. What the compiler breaks costs one unit, and jax is imported once.
"""

import json
import os
import sys
import warnings
from pathlib import Path

from tops_kernels.runtime.artifacts import ENDING, pack
from tops_kernels.runtime.spec import from_data
from tops_kernels.runtime.storing import write_whole
from tops_kernels.runtime.units import ensure

MARK = "tops-unit "  # what an answer starts with: compilers write to stdout too


def main(folder: Path) -> None:
    """Each unit goes into the workspace, and into `folder` as <name>.unit."""
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # jax's: no backend runs here, and no thread of ours
    for line in sys.stdin:
        if sys.platform != "linux":  # elsewhere a fork of a process this large is not safe; two builds may differ
            _answer(_compile(line, folder))
            continue
        child = os.fork()
        if child == 0:
            _answer(_compile(line, folder))
            os._exit(0)  # nothing of the parent's is to be cleaned up here
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            _answer(f"its compiler died with status {status}")


def _compile(line: str, folder: Path) -> str:
    """The fault; empty where all is well."""
    try:
        spec = from_data(json.loads(line))
        # A native unit in the workspace may be of a process with a past.
        unit = ensure(spec, anew=spec.kind == "native")
        return "" if write_whole(folder / (spec.name + ENDING), pack(unit)) else f"cannot write to {folder}"
    except Exception as error:  # a unit that fails is reported, and the next one is compiled
        return f"{type(error).__name__}: {error}"


def _answer(fault: str) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps({'fault': fault})}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(os.environ["TOPS_UNITS_FOLDER"]))
