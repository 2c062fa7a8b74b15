"""Device time from jax's profiler: how long the device was busy with a call, whatever the host did meanwhile.

One trace holds all rounds. Each contender's program has a name of its own, and a tiny program named `_MARK` runs between
two turns, so the device's events, sorted by start, fall apart into turns. The time of a turn is the union of its events.
"""

import dataclasses
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tops_bench.timing import CallSampler, ContenderError, Effort, Function, Timing, calibrate, rotation, wait

_MARK = "tops_bench_turn"
_NAME = "tops_bench_contender_{}"
_MAX_CALLS = 200  # in one turn: the profiler's buffers are finite


class TraceError(RuntimeError):
    """The trace does not hold what was run."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A stretch of device time, in nanoseconds, and the program it belongs to."""

    program: str
    start: float
    end: float


def why_not() -> str:
    """Why no device time can be had here; "" where it can."""
    platform = jax.default_backend()
    return "" if platform in ("tpu", "gpu") else f"the {platform} profile has no device plane"


def race(
    functions: Mapping[str, Function], arrays: Sequence[Any], effort: Effort, progress: Callable[[str], None]
) -> dict[str, Timing]:
    """As `timing.race`. Raises TraceError where the profile lacks turns that were run."""
    compiled, calls, compile_seconds = {}, {}, {}
    programs = {name: _NAME.format(index) for index, name in enumerate(functions)}
    for name, function in functions.items():
        progress(f"compile {name}")
        try:
            sampler = CallSampler(_named(function, programs[name]), arrays)
            sampler.run(1)
        except Exception as error:  # as in timing.race
            raise ContenderError(name, error) from error
        compiled[name], compile_seconds[name] = sampler, sampler.compile_seconds
        calls[name] = min(_MAX_CALLS, calibrate(sampler, effort.sample_seconds))
    mark = jax.jit(_named(lambda x: x + 1, _MARK)).lower(jnp.int32(0)).compile()
    order = rotation(list(functions), effort.rounds)
    progress("measure")
    with tempfile.TemporaryDirectory(prefix="tops-bench-") as folder:
        with jax.profiler.trace(folder):
            for name in order:
                compiled[name].run(calls[name])
                wait(mark(jnp.int32(0)))
            time.sleep(0.05)  # the last events reach the profiler after the host has gone on
        turns = split(device_events(folder))
    expected = [programs[name] for name in order]
    if [program for program, _ in turns] != expected:
        raise TraceError(f"{len(turns)} turns in the profile; expected {len(expected)}, one a call sequence")
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for name, (_, busy) in zip(order, turns, strict=True):
        samples[name].append(busy * 1e-9 / calls[name])
    return {
        name: Timing(tuple(samples[name]), calls[name], "device trace", compile_seconds[name]) for name in functions
    }


def _named(function: Function, name: str) -> Function:
    def program(*arrays: Any) -> Any:
        return function(*arrays)

    program.__name__ = program.__qualname__ = name  # becomes the HLO module's name: jit_<name>
    return program


def device_events(folder: str) -> list[Event]:
    """Events of every device plane below a trace's folder. Raises TraceError where there is no profile."""
    paths = sorted(Path(folder).rglob("*.xplane.pb"))
    if not paths:
        raise TraceError("the profiler wrote no profile")
    return [event for path in paths for event in events_of(jax.profiler.ProfileData.from_file(str(path)))]


def events_of(profile: jax.profiler.ProfileData) -> Iterable[Event]:
    """TPU planes have a line "XLA Modules", one event a program run; GPU planes have a line a stream, whose events say in
    `hlo_module` which program they belong to."""
    for plane in profile.planes:
        if not plane.name.startswith("/device:"):
            continue
        lines = {line.name: line for line in plane.lines}
        modules = lines.get("XLA Modules")
        for line in [modules] if modules is not None else lines.values():
            if modules is None and not line.name.startswith("Stream"):
                continue
            for event in line.events:
                named = event.name if modules is not None else _stats(event).get("hlo_module")
                program = re.search(r"tops_bench_(?:turn|contender_\d+)", str(named))
                if program:
                    yield Event(program[0], event.start_ns, event.start_ns + event.duration_ns)


def _stats(event: jax.profiler.ProfileEvent) -> dict[str, Any]:
    with warnings.catch_warnings():
        # On Python 3.13 jaxlib's binding of this type warns when it is first used, and aborts the process where warnings
        # are errors (jaxlib 0.12).
        warnings.simplefilter("ignore", DeprecationWarning)
        return dict(event.stats)


def split(events: Iterable[Event]) -> list[tuple[str, float]]:
    """(program, busy nanoseconds) of each turn, in order; the marks end turns and are no turns themselves."""
    turns: list[tuple[str, float]] = []
    program, busy, reach = "", 0.0, float("-inf")
    for event in sorted(events, key=lambda one: one.start):
        if event.program == program:
            busy += max(0.0, event.end - max(event.start, reach))  # streams overlap: count each moment once
            reach = max(reach, event.end)
            continue
        if program not in ("", _MARK):
            turns.append((program, busy))
        program, busy, reach = event.program, event.end - event.start, event.end
    return [*turns, (program, busy)] if program not in ("", _MARK) else turns
