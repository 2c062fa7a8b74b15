"""Times of compiled functions, taken in turns. The three methods and what each leaves out are in docs/bench.md.

"device trace": busy time of the device from jax's profiler; accelerators alone (tops_bench.trace).
"chained loop": n iterations inside one jit, each waiting for the one before; the host plays no part.
"wall clock":   calls from the host, each blocked on; dispatch and the allocation of outputs are in it.
"""

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from jax import lax

Method = Literal["device trace", "chained loop", "wall clock"]
Clock = Callable[[], float]
Function = Callable[..., Any]  # of arrays alone, traceable; any pytree of arrays comes out

# jax annotates none of these: bound to names that have a type.
wait: Callable[[Any], Any] = jax.block_until_ready
forget_compiled: Callable[[], None] = jax.clear_caches
_barrier: Callable[[Any], Any] = lax.optimization_barrier

Context = Callable[[], contextlib.AbstractContextManager[None]]
_COMPILED_WITHIN: contextvars.ContextVar[Context] = contextvars.ContextVar(
    "compiled_within", default=contextlib.nullcontext
)
_MIN_ITERATIONS = 3  # the first iteration of a sample pays for touching fresh temporary memory
_MAX_ITERATIONS = 1_000_000


@contextlib.contextmanager
def compiled_within(context: Context) -> Iterator[None]:
    """Within the block, everything is compiled within `context()`, in the threads that compile too: jax's settings are a thread's."""
    token = _COMPILED_WITHIN.set(context)
    try:
        with context():
            yield
    finally:
        _COMPILED_WITHIN.reset(token)


class TimingError(RuntimeError):
    """A function whose time cannot be told by the method asked for."""


class ContenderError(RuntimeError):
    """What one contender raised; `name` says which, the message what."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {str(error)[:400]}")
        self.name = name


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """How long to look: samples a contender (one a round) and the least length of a sample, in seconds."""

    rounds: int = 15
    sample_seconds: float = 0.1

    def __post_init__(self) -> None:
        if self.rounds < 1 or not self.sample_seconds > 0:
            raise ValueError(
                f"Effort: rounds {self.rounds}, sample_seconds {self.sample_seconds}; expected more than 0"
            )


QUICK = Effort(rounds=7, sample_seconds=0.02)
FULL = Effort()


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """One contender's samples, in seconds an iteration, in the order of the rounds."""

    samples: tuple[float, ...]
    iterations: int  # in each sample
    method: Method
    compile_seconds: float  # of the program that was timed; in no sample
    note: str = ""  # why not a better method


class Sampler(Protocol):
    """A compiled contender, ready to be timed."""

    method: Method
    compile_seconds: float

    def run(self, iterations: int) -> float:
        """Seconds for so many iterations, finished."""


def chained(function: Function) -> Callable[..., tuple[jax.Array, Any]]:
    """(n, outputs, *arrays) -> (a float32 scalar, outputs): `function` run n times, none able to start before the last
    one ended, and all of its outputs written every time.

    What keeps XLA honest, none of which copies an array: an optimization barrier joins the arrays with a value read from
    the outputs of the iteration before, so the call is no loop invariant; the outputs are the loop's state, so that they
    are whole and not just the element that is read; n is a traced int32, so the loop is not unrolled. `outputs` are
    donated buffers of the right shapes for the state to begin with.
    """

    def run(n: jax.Array, outputs: Any, *arrays: Any) -> tuple[jax.Array, Any]:
        def body(state: tuple[jax.Array, jax.Array, Any]) -> tuple[jax.Array, jax.Array, Any]:
            count, token, _ = state
            given, token = _barrier((arrays, token))
            new = _barrier(function(*given))
            return count + 1, token * jnp.float32(0.5) + _read(new), new

        start = (jnp.int32(0), jnp.float32(0), outputs)
        _, token, outputs = lax.while_loop(lambda state: state[0] < n, body, start)
        return token, outputs

    return run


def _read(outputs: Any) -> jax.Array:
    """One element of every output, added up."""
    total: jax.Array = jnp.zeros((), jnp.float32)
    for leaf in jax.tree.leaves(outputs):
        if leaf.size:
            total += leaf[(0,) * leaf.ndim].real.astype(jnp.float32)
    return total


class LoopSampler:
    method: Method = "chained loop"

    def __init__(self, function: Function, arrays: Sequence[Any], clock: Clock = time.perf_counter) -> None:
        start = time.perf_counter()
        shapes = jax.eval_shape(function, *arrays)
        self._outputs = jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), shapes)
        loop = jax.jit(chained(function), donate_argnums=1)
        self.compiled = loop.lower(jnp.int32(1), self._outputs, *arrays).compile()
        self.compile_seconds = time.perf_counter() - start
        self._arrays, self._clock = arrays, clock

    def run(self, iterations: int) -> float:
        count = wait(jnp.int32(iterations))
        start = self._clock()
        _, self._outputs = wait(self.compiled(count, self._outputs, *self._arrays))
        return self._clock() - start


class CallSampler:
    method: Method = "wall clock"

    def __init__(self, function: Function, arrays: Sequence[Any], clock: Clock = time.perf_counter) -> None:
        start = time.perf_counter()
        self.compiled: Any = jax.jit(function).lower(*arrays).compile()
        self.compile_seconds = time.perf_counter() - start
        self._arrays, self._clock = arrays, clock

    def run(self, iterations: int) -> float:
        return time_calls(self.compiled, self._arrays, iterations, self._clock)


def time_calls(function: Function, arrays: Sequence[Any], calls: int, clock: Clock = time.perf_counter) -> float:
    """Seconds for so many calls, the result of each blocked on. Compiles nothing away: warm `function` up first."""
    start = clock()
    for _ in range(calls):
        wait(function(*arrays))
    return clock() - start


def calibrate(sampler: Sampler, sample_seconds: float) -> int:
    """Iterations that make a sample at least about `sample_seconds` long. `sampler` is warm."""
    once = sampler.run(1)
    iterations = max(_MIN_ITERATIONS, math.ceil(sample_seconds / max(once, 1e-9)))
    while iterations < _MAX_ITERATIONS:
        took = sampler.run(iterations)
        if took >= 0.5 * sample_seconds:
            break
        # One iteration alone was mostly overhead. Grow by what is lacking, tenfold at most.
        iterations = min(_MAX_ITERATIONS, math.ceil(iterations * min(10.0, 1.1 * sample_seconds / max(took, 1e-9))))
    return iterations


def runs_every_iteration(sampler: Sampler, iterations: int, tries: int = 5) -> bool:
    """Whether n iterations take in the order of n times as long as few: a call hoisted out of the loop would not. Asks
    for half of what n promises, of the best times so far: on a busy machine the first try may say no."""
    few = max(1, iterations // 4)
    least_few = least_many = math.inf
    for _ in range(tries):
        least_few = min(least_few, sampler.run(few))
        least_many = min(least_many, sampler.run(iterations))
        if least_many >= 0.5 * iterations / few * least_few:
            return True
    return False


def race(
    functions: Mapping[str, Function],
    arrays: Sequence[Any],
    effort: Effort = FULL,
    method: Method | None = None,
    progress: Callable[[str], None] = lambda _: None,
    clock: Clock = time.perf_counter,
) -> dict[str, Timing]:
    """Times functions of the same arrays against each other: within a round each has one turn, and the first turn goes
    round too. All by one method, so that they can be compared.

    Args:
      functions: by name; each takes `arrays` (inputs on the device, any pytrees of arrays) and is traceable.
      method: None takes the best that works here: device trace on an accelerator, chained loop, wall clock.
      progress: hears what is done next, while no clock runs.
    Returns: timings by name, one sample a round, in seconds an iteration.
    Raises: TimingError where `method` was asked for and does not work; ContenderError where a function cannot be
      compiled or run.
    """
    arrays = wait(tuple(arrays))
    note = ""
    if method in (None, "device trace"):
        from tops_bench import trace  # the profiler: not loaded for a method that does without

        why_not = trace.why_not()
        if not why_not:
            try:
                return trace.race(functions, arrays, effort, progress)
            except trace.TraceError as error:
                why_not = str(error)
        if method == "device trace":
            raise TimingError(f"device trace: {why_not}")
        note = f"no device trace: {why_not}"
    if method in (None, "chained loop"):
        samplers = _prepare(functions, arrays, LoopSampler, progress, clock)
        iterations = {name: calibrate(sampler, effort.sample_seconds) for name, sampler in samplers.items()}
        hoisted = [name for name, sampler in samplers.items() if not runs_every_iteration(sampler, iterations[name])]
        if not hoisted:
            return take_turns(samplers, iterations, effort.rounds, note)
        why_not = f"n iterations of {', '.join(hoisted)} do not take n times as long"
        if method == "chained loop":
            raise TimingError(f"chained loop: {why_not}")
        note = f"no chained loop: {why_not}"
    samplers = _prepare(functions, arrays, CallSampler, progress, clock)
    iterations = {name: calibrate(sampler, effort.sample_seconds) for name, sampler in samplers.items()}
    return take_turns(samplers, iterations, effort.rounds, note)


def _prepare(
    functions: Mapping[str, Function],
    arrays: Sequence[Any],
    kind: Callable[[Function, Sequence[Any], Clock], Sampler],
    progress: Callable[[str], None],
    clock: Clock,
) -> dict[str, Sampler]:
    progress(f"compile {', '.join(functions)}")
    context = _COMPILED_WITHIN.get()

    def prepared(function: Function) -> Sampler:
        with context():
            return kind(function, arrays, clock)

    with concurrent.futures.ThreadPoolExecutor(
        max_workers=2
    ) as pool:  # compiling uses a core, and holds no lock of Python's
        compiling = {name: pool.submit(prepared, function) for name, function in functions.items()}
    samplers = {}
    for name, future in compiling.items():
        try:
            samplers[name] = future.result()
            samplers[name].run(1)
        except Exception as error:  # whatever a contender raises is its own fault; the caller may go on without it
            raise ContenderError(name, error) from error
    progress("measure")
    return samplers


def take_turns(
    samplers: Mapping[str, Sampler], iterations: Mapping[str, int], rounds: int, note: str = ""
) -> dict[str, Timing]:
    """The rounds themselves."""
    names = list(samplers)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in rotation(names, rounds):
        samples[turn].append(samplers[turn].run(iterations[turn]) / iterations[turn])
    return {
        name: Timing(tuple(samples[name]), iterations[name], sampler.method, sampler.compile_seconds, note)
        for name, sampler in samplers.items()
    }


def rotation(names: Sequence[str], rounds: int) -> list[str]:
    """Whose turn it is: every round has all names once; it begins with the next name each time, and every other lap runs
    backwards, so that none always follows the same other."""
    order: list[str] = []
    for number in range(rounds):
        start = number % len(names) if names else 0
        turn = [*names[start:], *names[:start]]
        order += turn[::-1] if names and (number // len(names)) % 2 else turn
    return order


def call_overhead(
    functions: Mapping[str, Function], arrays: Sequence[Any], rounds: int = 30, calls: int = 500
) -> dict[str, Timing]:
    """Wall time of eager calls, as a user makes them: functions as they are, called from Python, every result blocked
    on. They take turns; warm-up and compilation come before. Seconds a call."""
    samplers: dict[str, Sampler] = {
        name: _Eager(functools.partial(time_calls, function, arrays)) for name, function in functions.items()
    }
    for sampler in samplers.values():
        sampler.run(3)
    return take_turns(samplers, dict.fromkeys(samplers, calls), rounds)


class _Eager:
    method: Method = "wall clock"
    compile_seconds = 0.0

    def __init__(self, timer: Callable[[int], float]) -> None:
        self._timer = timer

    def run(self, iterations: int) -> float:
        return self._timer(iterations)
