"""The timers time what they say: every iteration, nothing but the iterations, and finished ones."""

import collections
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import io_callback

from tops_bench import timing
from tops_bench.timing import CallSampler, ContenderError, Effort, LoopSampler, TimingError

_SHORT = Effort(rounds=3, sample_seconds=0.002)


class Clock:
    """Stands still unless told to go on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _counting(clock: Clock, seconds: float) -> tuple[Callable[..., Any], list[int]]:
    """A function that takes a known time by the clock each time it really runs."""
    runs: list[int] = []

    def host(value: np.ndarray) -> np.ndarray:
        runs.append(1)
        clock.now += seconds
        return value + 1

    def function(x: jax.Array) -> jax.Array:
        return io_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=False)

    return function, runs


@pytest.mark.parametrize("kind", [LoopSampler, CallSampler])
@pytest.mark.parametrize("iterations", [1, 5, 64])
def test_an_op_of_known_length_takes_that_long_as_often_as_it_is_run(kind: Any, iterations: int) -> None:
    clock = Clock()
    function, runs = _counting(clock, 0.25)
    sampler = kind(function, [jnp.ones(3)], clock)
    assert runs == []  # compiling runs nothing
    assert sampler.run(iterations) == pytest.approx(0.25 * iterations)
    assert len(runs) == iterations


def test_compilation_is_in_no_sample() -> None:
    clock = Clock()
    compiled: list[int] = []

    def function(x: jax.Array) -> jax.Array:
        compiled.append(1)  # runs when traced, never afterwards
        clock.now += 100.0
        return x + 1

    timings = timing.race({"f": function}, [jnp.ones(8)], _SHORT, "wall clock", clock=_Ticking(clock))
    assert compiled
    assert max(timings["f"].samples) < 1.0
    assert timings["f"].compile_seconds > 0


class _Ticking:
    """A clock that also goes on by itself, so that samples are not of no length."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(self) -> float:
        self.clock.now += 0.001
        return self.clock.now


class _Late:
    """A result that is there only once somebody blocks on it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def block_until_ready(self) -> "_Late":
        self.clock.now += 7.0
        return self


def test_an_asynchronous_result_is_blocked_on_before_the_clock_is_read() -> None:
    clock = Clock()
    assert timing.time_calls(lambda: _Late(clock), [], 3, clock) == 21.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_the_loop_computes_whole_outputs_every_time(dtype: str) -> None:
    x = jnp.ones((256, 1024), dtype)

    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.logical_not(x) if dtype == "bool" else x * x, x.T

    loop = LoopSampler(function, [x])
    # One element of each output is read; were only that computed, this would be a few bytes.
    assert loop.compiled.cost_analysis()["bytes accessed"] > 2 * x.nbytes


def test_the_loop_holds_no_copy_of_inputs_or_outputs() -> None:
    x = jnp.ones((256, 1024), jnp.bfloat16)
    loop = LoopSampler(lambda x: x + 1, [x])
    memory = loop.compiled.memory_analysis()
    assert memory.temp_size_in_bytes < x.nbytes / 8
    assert memory.alias_size_in_bytes >= x.nbytes  # the outputs are written where the last ones stood


def test_the_loop_gives_the_values_of_the_function() -> None:
    x = jnp.arange(4.0)
    token, outputs = jax.jit(timing.chained(lambda x: {"y": x * 2, "empty": x[:0]}))(
        jnp.int32(3), {"y": jnp.zeros(4), "empty": jnp.zeros(0)}, x + 1
    )
    np.testing.assert_array_equal(outputs["y"], [2, 4, 6, 8])
    assert token == 2 + 0.5 * (2 + 0.5 * 2)  # one element of each of the three iterations


def test_a_call_hoisted_out_of_its_loop_is_noticed() -> None:
    class Hoisted:
        method: timing.Method = "chained loop"
        compile_seconds = 0.0

        def run(self, iterations: int) -> float:
            return 1.0 + 1e-9 * iterations

    class Honest(Hoisted):
        def run(self, iterations: int) -> float:
            return 0.2 + 1.0 * iterations

    assert not timing.runs_every_iteration(Hoisted(), 100)
    assert timing.runs_every_iteration(Honest(), 100)
    assert timing.runs_every_iteration(Honest(), 3)


@pytest.mark.parametrize("hoisted", [True, False])
def test_a_hoisted_loop_gives_way_to_the_wall_clock_and_the_record_says_so(
    monkeypatch: pytest.MonkeyPatch, hoisted: bool
) -> None:
    monkeypatch.setattr(timing, "runs_every_iteration", lambda *_: not hoisted)
    found = timing.race({"f": lambda x: x + 1}, [jnp.ones(8)], _SHORT)["f"]
    assert found.method == ("wall clock" if hoisted else "chained loop")
    assert ("do not take n times as long" in found.note) == hoisted
    if hoisted:
        with pytest.raises(TimingError, match="n iterations of f do not take"):
            timing.race({"f": lambda x: x + 1}, [jnp.ones(8)], _SHORT, "chained loop")


def test_a_device_trace_insisted_on_where_there_is_no_device_is_refused() -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("not-supported: this machine has a device plane")
    with pytest.raises(TimingError, match="no device plane"):
        timing.race({"f": lambda x: x + 1}, [jnp.ones(8)], _SHORT, "device trace")


def test_a_sample_grows_until_it_is_long_enough() -> None:
    class Overhead:
        method: timing.Method = "wall clock"
        compile_seconds = 0.0

        def run(self, iterations: int) -> float:
            return 0.01 + 1e-6 * iterations  # the first guess, from one iteration, is far too few

    assert Overhead().run(timing.calibrate(Overhead(), 0.1)) >= 0.05


def test_what_a_contender_raises_carries_its_name() -> None:
    def broken(x: jax.Array) -> jax.Array:
        raise ValueError("no such luck")

    with pytest.raises(ContenderError, match="ValueError: no such luck") as caught:
        timing.race({"fine": lambda x: x, "broken": broken}, [jnp.ones(8)], _SHORT)
    assert caught.value.name == "broken"


@given(st.integers(0, 5), st.integers(0, 12))
def test_in_every_round_each_has_one_turn(contenders: int, rounds: int) -> None:
    names = [f"c{index}" for index in range(contenders)]
    order = timing.rotation(names, rounds)
    for start in range(0, len(order), max(contenders, 1)):
        assert sorted(order[start : start + contenders]) == names
    assert len(order) == rounds * contenders


def test_over_all_rounds_nobody_has_a_fixed_place_or_neighbour() -> None:
    rounds = 12
    order = timing.rotation(["a", "b", "c"], rounds)
    first = collections.Counter(order[::3])
    assert set(first.values()) == {rounds // 3}
    assert set(zip(order[::3], order[1::3], strict=True)) >= {("a", "b"), ("a", "c")}


def test_a_race_gives_one_positive_sample_a_round_for_each_by_one_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "runs_every_iteration", lambda *_: True)  # it times; a test machine may be busy
    timings = timing.race({"f": lambda x: x + 1, "g": lambda x: x * 2}, [jnp.ones((64, 64))], _SHORT)
    assert {len(one.samples) for one in timings.values()} == {3}
    assert all(value > 0 and math.isfinite(value) for one in timings.values() for value in one.samples)
    assert {one.method for one in timings.values()} == {"chained loop"}
    assert all("no device trace" in one.note for one in timings.values())


def test_eager_calls_are_made_from_python_as_often_as_said() -> None:
    calls: collections.Counter[str] = collections.Counter()

    def counted(name: str) -> Callable[[jax.Array], jax.Array]:
        def call(x: jax.Array) -> jax.Array:
            calls[name] += 1
            return x

        return call

    found = timing.call_overhead({"a": counted("a"), "b": counted("b")}, [jnp.ones(2)], rounds=4, calls=10)
    assert calls == {"a": 43, "b": 43}  # three to warm up
    assert {len(one.samples) for one in found.values()} == {4}
    assert found["a"].method == "wall clock"


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"sample_seconds": 0.0}, {"sample_seconds": math.nan}])
def test_an_effort_of_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected more than 0"):
        Effort(**wrong)
