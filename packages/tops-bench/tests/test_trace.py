"""Device time is read off a profile: the union of a turn's events, turn by turn."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tops_bench import timing, trace
from tops_bench.trace import Event

_MARK = "tops_bench_turn"


def _profile(text: str) -> jax.profiler.ProfileData:
    return jax.profiler.ProfileData.from_text_proto(text)


def _plane(name: str, line: str, events: list[tuple[int, int, int]], metadata: str, stats: str = "") -> str:
    """Events are (metadata id, start, duration) in nanoseconds; a profile counts offsets in picoseconds."""
    text = "".join(
        f"events {{ metadata_id: {key} offset_ps: {start * 1000} duration_ps: {length * 1000} {stats.replace('KEY', str(key))} }}\n"
        for key, start, length in events
    )
    return f'planes {{ name: "{name}" lines {{ name: "{line}" timestamp_ns: 0 {text} }} {metadata} }}'


def test_on_a_tpu_each_module_event_is_one_run_of_a_program() -> None:
    names = {1: "jit_tops_bench_contender_0(77)", 2: "jit_tops_bench_turn(5)", 3: "jit_other(1)"}
    metadata = "".join(f'event_metadata {{ key: {k} value {{ id: {k} name: "{v}" }} }}' for k, v in names.items())
    events = [(1, 0, 100), (3, 100, 900), (1, 1000, 120), (2, 2000, 1), (1, 3000, 50)]
    profile = _profile(_plane("/device:TPU:0", "XLA Modules", events, metadata))
    assert trace.split(trace.events_of(profile)) == [
        ("tops_bench_contender_0", 220.0),
        ("tops_bench_contender_0", 50.0),
    ]


def test_on_a_gpu_events_belong_to_the_program_their_stat_names() -> None:
    names = {1: "loop_fusion", 2: "gemm", 3: "mark"}
    metadata = "".join(f'event_metadata {{ key: {k} value {{ id: {k} name: "{v}" }} }}' for k, v in names.items())
    modules = {1: "jit_tops_bench_contender_0", 2: "jit_tops_bench_contender_0", 3: "jit_tops_bench_turn"}
    metadata += 'stat_metadata { key: 9 value { id: 9 name: "hlo_module" } }'
    events = [(1, 0, 100), (2, 50, 100), (3, 300, 1)]
    lines = "".join(
        f'events {{ metadata_id: {k} offset_ps: {s * 1000} duration_ps: {d * 1000} stats {{ metadata_id: 9 str_value: "{modules[k]}" }} }}'
        for k, s, d in events
    )
    profile = _profile(
        f'planes {{ name: "/device:GPU:0" lines {{ name: "Stream #13(Compute)" timestamp_ns: 0 {lines} }} {metadata} }}'
    )
    assert trace.split(trace.events_of(profile)) == [("tops_bench_contender_0", 150.0)]  # the overlap counts once


def test_what_the_host_did_is_no_device_time() -> None:
    metadata = 'event_metadata { key: 1 value { id: 1 name: "jit_tops_bench_contender_0" } }'
    assert list(trace.events_of(_profile(_plane("/host:CPU", "XLA Modules", [(1, 0, 100)], metadata)))) == []


def test_turns_of_one_contender_after_another_are_kept_apart_by_marks() -> None:
    events = [
        Event("a", 0, 1),
        Event("a", 2, 4),
        Event(_MARK, 5, 6),
        Event("a", 7, 8),
        Event(_MARK, 9, 10),
        Event("b", 11, 15),
    ]
    assert trace.split(reversed(events)) == [("a", 3.0), ("a", 1.0), ("b", 4.0)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)), min_size=1, max_size=20))
def test_the_busy_time_of_a_turn_is_that_of_the_union_of_its_events(spans: list[tuple[int, int]]) -> None:
    moments = {moment for start, length in spans for moment in range(start, start + length)}
    [(_, busy)] = trace.split(Event("a", start, start + length) for start, length in spans)
    assert busy == len(moments)


def test_a_folder_without_a_profile_is_told(tmp_path: object) -> None:
    with pytest.raises(trace.TraceError, match="wrote no profile"):
        trace.device_events(str(tmp_path))


def _race(monkeypatch: pytest.MonkeyPatch, lose: int = 0) -> dict[str, timing.Timing]:
    """A race on a device that needs 10 us a call of f and 20 us a call of g, and whose profile may lack turns."""
    turns: list[Event] = []
    calls = {"tops_bench_contender_0": 0, "tops_bench_contender_1": 0}

    def run(self: timing.CallSampler, iterations: int) -> float:
        program = self.compiled.as_text().partition("jit_")[2].partition(",")[0].split(" ")[0]
        calls[program] = iterations
        turns.append(Event(program, len(turns) * 1e9, len(turns) * 1e9 + iterations * (1 + int(program[-1])) * 1e4))
        return iterations * 1e-3

    def events(_: str) -> list[Event]:
        warm_up = len(turns) - 6
        return [event for turn in turns[warm_up + lose :] for event in (turn, Event(_MARK, turn.end, turn.end + 1))]

    monkeypatch.setattr(timing.CallSampler, "run", run)
    monkeypatch.setattr(jax.profiler, "trace", lambda folder: contextlib.nullcontext())
    monkeypatch.setattr(trace, "device_events", events)
    monkeypatch.setattr(trace, "why_not", lambda: "")
    functions = {"f": lambda x: x + 1, "g": lambda x: x * 2}
    return timing.race(functions, [jnp.ones(8)], timing.Effort(3, 0.02))


def test_a_race_by_the_profiler_gives_device_time_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _race(monkeypatch)
    assert found["f"].samples == pytest.approx([1e-5] * 3)  # not the millisecond that the host waited
    assert found["g"].samples == pytest.approx([2e-5] * 3)
    assert {one.method for one in found.values()} == {"device trace"}
    assert found["f"].iterations == 20


def test_a_profile_that_lacks_turns_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "runs_every_iteration", lambda *_: True)
    found = _race(monkeypatch, lose=1)
    assert {one.method for one in found.values()} == {"chained loop"}
    assert "5 turns in the profile; expected 6" in found["f"].note
