"""The speed figures the library promises on a CPU, measured by the same timers as everything else.

Each is a ratio against what a user would write, from samples taken in turns, with the interval of its median. A figure is
missed where the whole interval is past its bound: noise alone does not miss one, and does not meet it by much either.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import tops_kernels
from tops_bench import stats
from tops_bench.baselines.rms_norm import rms_norm_jnp
from tops_bench.timing import Effort, Timing, call_overhead, forget_compiled, race

_EQUAL = 1.02  # "no slower": two copies of one program differ by as much, from where their memory lies
EFFORT = Effort(rounds=31, sample_seconds=0.1)


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One promise: our time over theirs, at most `bound`."""

    name: str
    ratio: float
    low: float
    high: float
    bound: float
    ours_seconds: float
    theirs_seconds: float
    method: str
    rounds: int

    @property
    def met(self) -> bool:
        return self.low <= self.bound


def _figure(name: str, bound: float, timings: Mapping[str, Timing]) -> Figure:
    ours, theirs = timings["ours"], timings["theirs"]
    # Time over time: how slow, not how fast, so ours is the base.
    ratio = stats.paired_speed(ours.samples, theirs.samples)
    mine, others = (stats.interval(one.samples).median for one in (ours, theirs))
    return Figure(name, ratio.median, ratio.low, ratio.high, bound, mine, others, ours.method, len(ours.samples))


def matmul_against_dot(side: int = 1024, effort: Effort = EFFORT) -> Figure:
    """matmul on float32 [side, side] against jnp.dot; promised: within 5 %."""
    a, b = _normal((side, side), 0), _normal((side, side), 1)
    timings = race({"ours": tops_kernels.matmul, "theirs": jnp.dot}, [a, b], effort)
    return _figure(f"matmul float32 {side} over jnp.dot", 1.05, timings)


def rms_norm_forward(rows: int = 2048, width: int = 4096, effort: Effort = EFFORT) -> Figure:
    """rms_norm on float32 [rows, width] with scale against jnp; promised: no slower."""
    x, scale = _normal((rows, width), 0), _normal((width,), 1)
    timings = race({"ours": tops_kernels.rms_norm, "theirs": rms_norm_jnp}, [x, scale], effort)
    return _figure(f"rms_norm float32 {rows}x{width} over jnp", _EQUAL, timings)


def rms_norm_gradient(rows: int = 2048, width: int = 4096, effort: Effort = EFFORT) -> Figure:
    """Gradients of x and scale, from a cotangent, likewise."""
    x, scale, cotangent = _normal((rows, width), 0), _normal((width,), 1), _normal((rows, width), 2)

    def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, scale, cotangent: jax.vjp(function, x, scale)[1](cotangent)

    timings = race(
        {"ours": gradient(tops_kernels.rms_norm), "theirs": gradient(rms_norm_jnp)}, [x, scale, cotangent], effort
    )
    return _figure(f"rms_norm gradient float32 {rows}x{width} over jnp", _EQUAL, timings)


def eager_overhead(rounds: int = 50, calls: int = 500) -> Figure:
    """An eager call of rms_norm on [2, 8] against the same jnp function under jax.jit; promised: at most 3x. So tiny that
    XLA runs it on the calling thread: from [8, 128] on, waking another thread hides what the call itself costs."""
    x, scale = _normal((2, 8), 0), _normal((8,), 1)
    functions: Mapping[str, Callable[..., Any]] = {"ours": tops_kernels.rms_norm, "theirs": jax.jit(rms_norm_jnp)}
    timings = call_overhead(functions, [x, scale], rounds, calls)
    return _figure("eager rms_norm 2x8 over jitted jnp", 3.0, timings)


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "matmul": matmul_against_dot,
    "rms_norm-fwd": rms_norm_forward,
    "rms_norm-vjp": rms_norm_gradient,
    "eager": eager_overhead,
}


def measure_figures(names: Sequence[str], started: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """Those named, in turn. Raises KeyError for a name that is none of FIGURES."""
    found = []
    for name in names:
        started(name)
        found.append(FIGURES[name]())
        forget_compiled()
    return found


def _normal(shape: tuple[int, ...], seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)
