"""Device time is read off a profile: the union of a turn's events, turn by turn."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tops_bench import trace
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
