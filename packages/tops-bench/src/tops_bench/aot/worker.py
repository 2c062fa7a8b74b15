"""The child that compiles: a job a line comes in as JSON, an answer a line goes out. It ends with its input.

    python -m tops_bench.aot.worker FOLDER

libtpu reads its flags once and keeps one dump folder a process: FOLDER, emptied before each job. A job's answer is
{"compiled": ...}, {"refused": why} where the compiler said no, or {"fault": why} where the dumps could not be read.
"""

import contextlib
import dataclasses
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tops_bench.aot import dumps, files, follow, hotspot, targets
from tops_bench.aot.bundles import DumpError

if TYPE_CHECKING:
    from tops_bench.aot.compiling import Compiled

_MAX_REASON = 300
# An instruction quoted whole: its name says which, and what follows it (the sizes of an overflow) is what is asked for.
_INSTRUCTION = re.compile(r"(%[\w.-]+) = \w+\[.*?\)(?:, [\w_]+=(?:\{.*?\}|\"[^\"]*\"))*(?:\})*(?=\. |$)")
_NOISE = re.compile(r"\x1b\[[0-9;]*m|^(?:INTERNAL|INVALID_ARGUMENT|UNIMPLEMENTED|RESOURCE_EXHAUSTED):\s*")


def answer(job: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Never raises for what a kernel, the compiler or a dump does."""
    # Here, not above: a fault of jax's import or of a kernel's module is then a row's reason, not a silent end.
    try:
        from tops_bench.aot import compiling, subjects
    except Exception as error:  # whatever an import raises
        return {"fault": f"import: {type(error).__name__}: {error}"[:_MAX_REASON]}
    target = targets.target(job["target"])
    try:
        files.remove(folder)
        subject = subjects.subject(job)
        with subject.configure():
            if target.platform == "cuda":
                from tops_bench.aot import cuda

                return {"compiled": cuda.compile_cuda(subject.function, subject.avals, target, folder)}
            compiled = compiling.compile_tpu(
                subject.function, subject.avals, {}, target, folder, subject.known, subject.donated
            )
        result: dict[str, Any] = {"compiled": dataclasses.asdict(compiled)}
        if job.get("explain") and compiled.kernels:
            result |= _explanation(compiled, target, folder)
        return result
    except (DumpError, OSError, MemoryError) as error:
        return {"fault": reason(error)}
    except Exception as error:  # the compiler's no comes as any of a dozen types
        return {"refused": reason(error)}


def _explanation(compiled: "Compiled", target: targets.Target, folder: Path) -> dict[str, Any]:
    """The hottest loop of the kernel that takes longest. Control flow on prefetched operands counts as in its figures' high end."""
    slowest = max(compiled.kernels, key=lambda figures: figures.seconds)
    dump = dumps.read(folder, slowest.name)
    trace = follow.follow(dump.listing, target.delay_slots, packs_idle=target.packs_idle)
    return {"hotspot": dataclasses.asdict(hotspot.hotspot(dump, trace)), "slots": list(dump.utilization.slots)}


def reason(error: BaseException) -> str:
    """The compiler's words, trimmed, and the line of the user's source that is at fault where it is known."""
    lines = [line.strip() for line in _NOISE.sub("", str(error)).splitlines() if line.strip()]
    text = _INSTRUCTION.sub(r"\1", " ".join(lines)) or type(error).__name__
    at = _source_line(error, text)
    return f"{text[:_MAX_REASON]}{'...' if len(text) > _MAX_REASON else ''}{f' [{at}]' if at else ''}"


def _source_line(error: BaseException, text: str) -> str:
    """file:line of the op at fault: from the message's location where it has one, else the innermost frame outside jax."""
    named = re.findall(r'([\w./-]+\.py)"?:(\d+)', text)
    if named:
        return f"{Path(named[-1][0]).name}:{named[-1][1]}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/jax/" not in frame.filename]
    kernels = [frame for frame in frames if "tops_kernels" in frame.filename]
    found = kernels or frames
    return f"{Path(found[-1].filename).name}:{found[-1].lineno}" if found else ""


def end_with(parent: int, seconds: float = 2.0) -> None:
    """Ends this process soon after its parent has: a killed command leaves no compiler behind that fills memory and disk."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def serve(source: TextIO, sink: TextIO, folder: Path) -> None:
    for line in source:
        job = json.loads(line)
        result = answer(job, folder)
        sink.write(json.dumps(result) + "\n")
        sink.flush()


if __name__ == "__main__":
    end_with(os.getppid())
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # a stray print is no answer
        serve(sys.stdin, answers, Path(sys.argv[1]))
