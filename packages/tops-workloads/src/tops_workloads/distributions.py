"""Values for an input from its dtype and its `domain` in the manifest. Never zero: a kernel that drops a term must show.

| domain | floating | integer |
|---|---|---|
| none | standard normal | uniform, within +-127 and the dtype |
| (-inf, b] | b - softplus(normal) / 16: the log decay of a trained gate, mean b - 0.05 | uniform over the 127 below b |
| [a, inf) | a + softplus(normal) | uniform over the 127 above a |
| [a, b] | uniform | uniform |

An open end is never met, after rounding to the dtype either. bool is a fair coin: there False must be. Where the sequences of
a packed batch begin and end (`rises`) is drawn by `draw_rising`, and there the first value is 0; positions along a dimension (`indexes`)
by `draw_distinct`.
"""

import functools
import math
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tops_manifest.model import Interval

_A = TypeVar("_A", jax.Array, np.ndarray[Any, Any])
_GATE_DIVISOR = 16.0  # as gated linear attention has it: logsigmoid(x) / 16 (arXiv:2312.06635 section 4.4)
_SPAN = 127  # what an integer spreads over where its domain has no end: sums of products stay well inside int32
_ASIDE = 1 / 16  # how far from an end the value lies that stands in for a zero
_INT32_MAX = 2**31 - 1
_SHORT = 1 / 8  # of the rising draws end before the last position: what lies behind belongs to no sequence
_EMPTY = 1 / 8  # of the values inside one repeat the value before: an empty sequence
_NONE = 1 / 8  # of the positions drawn are -1: none
# Compiling a draw takes half a second, so shapes share programs: a flat draw of the next of a few sizes, cut to the shape.
# Above the last, where memory counts for more than a compilation, a shape has a program of its own.
_SIZES = tuple(4**power for power in range(5, 11))


def draw(key: jax.Array, shape: tuple[int, ...], dtype: str, domain: str | None) -> jax.Array:
    """An array of values in `domain`, none of them 0.

    Args:
      key: a JAX random key.
      shape: any; sizes of 0 are fine.
      dtype: a dtype of the manifest.
      domain: an interval of the manifest, like "(-inf, 0]"; None for all numbers.
    Returns: [*shape] in `dtype`. Drawn in float32 or int32, so jax_enable_x64 makes no difference to the values.
    Raises: ValueError for a 64-bit dtype while jax_enable_x64 is off, and for a domain with no value of the dtype but 0.
    """
    target = _target(dtype)
    size = math.prod(shape)
    flat: jax.Array = _flat(key, _room(size), target, domain)
    return _cut(flat, size).reshape(shape)


def draw_rising(key: jax.Array, size: int, dtype: str, end: int) -> jax.Array:
    """Where sequences that lie one behind the other begin and end: sorted values from 0 to at most `end`.

    Args:
      key: a JAX random key.
      size: how many values: one more than there are sequences. 0 is fine.
      dtype: an integer dtype of the manifest.
      end: the greatest value, from 0; the last value in 7 of 8 draws, and short of it at times in the others.
    Returns: [size] in `dtype`; the first is 0. One in 8 of those inside repeats the value before it: an empty sequence.
    Raises: ValueError for a 64-bit dtype while jax_enable_x64 is off, and for an `end` that int32 or the dtype does not hold.
    """
    target = _target(dtype)
    most = min(int(jnp.iinfo(target).max), _INT32_MAX - 1)  # type: ignore[no-untyped-call]  # jax has no types for it
    if not 0 <= end <= most:
        raise ValueError(f"end is {end}; {dtype} rises from 0 to at most {most}")
    values: jax.Array = _rising(key, _room(size), np.int32(size), np.int32(end))
    return _cut(values, size).astype(target)


def draw_distinct(key: jax.Array, size: int, dtype: str, count: int) -> jax.Array:
    """Positions along a dimension, in any order and none of them twice; -1 for none.

    Args:
      key: a JAX random key.
      size: how many values. 0 is fine.
      dtype: a signed integer dtype of the manifest.
      count: the size of the dimension, from 0: positions are 0 to count - 1.
    Returns: [size] in `dtype`. One in 8 is -1, and more where there are not enough positions for all.
    Raises: ValueError for a 64-bit dtype while jax_enable_x64 is off, and for a `count` that int32 or the dtype does not hold.
    """
    target = _target(dtype)
    most = min(int(jnp.iinfo(target).max), _INT32_MAX - 1)  # type: ignore[no-untyped-call]  # jax has no types for it
    if not 0 <= count <= most:
        raise ValueError(f"count is {count}; {dtype} holds positions along at most {most}")
    room = _room(max(size, count))
    values: jax.Array = _distinct(key, room, np.int32(count))
    return _cut(values, size).astype(target)


def _target(dtype: str) -> jnp.dtype:
    target = jnp.dtype(dtype)
    if target.itemsize == 8 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]  # jax declares it at run time
        raise ValueError(f"dtype {dtype} needs jax_enable_x64; it is off, and jax would give 32 bits")
    return target


def _room(size: int) -> int:
    """How many values are drawn for `size` of them."""
    return next((shared for shared in _SIZES if size <= shared), size)


def _cut(flat: jax.Array, size: int) -> jax.Array:
    if isinstance(flat, jax.core.Tracer) or flat.size == size:
        return flat[:size]
    return jnp.asarray(np.asarray(flat)[:size])  # by numpy: a slice by XLA would compile for each shape


@functools.partial(jax.jit, static_argnums=1)
def _rising(key: jax.Array, room: int, size: jax.Array, end: jax.Array) -> jax.Array:
    """The first `size` of [room] int32 values rise from 0 to `end`, or to a value short of it."""
    key_short, key_last, key_inside, key_empty = jax.random.split(key, 4)
    short = jax.random.uniform(key_short, (), jnp.float32) < _SHORT
    last = jnp.where(short, jax.random.randint(key_last, (), end // 2, end + 1, jnp.int32), end)
    values = jax.random.randint(key_inside, (room,), 0, last + 1, jnp.int32)
    position = jnp.arange(room, dtype=jnp.int32)
    values = jnp.where(position < size - 1, values, last)  # behind the last of those asked for, too: it sorts to there
    values = jnp.sort(jnp.where(position == 0, 0, values))
    repeats = jax.random.uniform(key_empty, (room,), jnp.float32) < _EMPTY
    inside = (position > 0) & (position < size - 1)
    return jnp.where(repeats & inside, jnp.roll(values, 1), values)


@functools.partial(jax.jit, static_argnums=1)
def _distinct(key: jax.Array, room: int, count: jax.Array) -> jax.Array:
    """[room] int32: 0 to `count` - 1 in some order, -1 in place of some of them and behind them."""
    key_order, key_none = jax.random.split(key)
    position = jnp.arange(room, dtype=jnp.int32)
    ranks = jnp.where(position < count, jax.random.uniform(key_order, (room,), jnp.float32), 2.0)  # others sort behind
    order = jnp.argsort(ranks).astype(jnp.int32)
    is_none = jax.random.uniform(key_none, (room,), jnp.float32) < _NONE
    return jnp.where(is_none | (order >= count), -1, order)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _flat(key: jax.Array, size: int, target: jnp.dtype, domain: str | None) -> jax.Array:
    shape = (size,)
    interval = Interval(-math.inf, math.inf, False, False) if domain is None else Interval.read(domain)
    if target == jnp.bool_:
        return jax.random.uniform(key, shape, jnp.float32) < 0.5  # bernoulli would draw in float64 under x64
    if jnp.issubdtype(target, jnp.integer):
        return _integers(key, shape, target, interval)
    return _settled(_reals(key, shape, interval).astype(target), interval)


def _reals(key: jax.Array, shape: tuple[int, ...], interval: Interval) -> jax.Array:
    normal = jax.random.normal(key, shape, jnp.float32)
    match math.isinf(interval.low), math.isinf(interval.high):
        case True, True:
            return normal
        case True, False:
            return interval.high - jax.nn.softplus(normal) / _GATE_DIVISOR
        case False, True:
            return interval.low + jax.nn.softplus(normal)
        case _:
            return jax.random.uniform(key, shape, jnp.float32, minval=interval.low, maxval=interval.high)


def _settled(values: jax.Array, interval: Interval) -> jax.Array:
    """Puts what rounding made 0, or took out of the domain, a little inside it."""
    aside = np.asarray(_aside(interval), values.dtype)  # numpy: known while this is traced, too
    if not _is_fine(aside, interval):
        raise ValueError(f"domain {interval} holds no {values.dtype} but 0 that this drawing finds")
    return jnp.where(_is_fine(values, interval), values, aside)


def _is_fine(values: _A, interval: Interval) -> _A:
    wide = values if values.dtype.itemsize >= 4 else values.astype(np.float32)  # short dtypes compare in float32
    low = wide >= interval.low if interval.low_closed else wide > interval.low
    high = wide <= interval.high if interval.high_closed else wide < interval.high
    fine: _A = low & high & (wide != 0)
    return fine


def _aside(interval: Interval) -> float:
    """A value of the domain that is not 0 and lies off its ends."""
    low, high = interval.low, interval.high
    if math.isinf(low) and math.isinf(high):
        return _ASIDE
    if math.isinf(low):
        return high - _ASIDE if high != _ASIDE else high - 2 * _ASIDE
    if math.isinf(high):
        return low + _ASIDE if low != -_ASIDE else low + 2 * _ASIDE
    middle = low + (high - low) / 2
    return middle if middle != 0 else high / 2


def _integers(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype, interval: Interval) -> jax.Array:
    info = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]  # jax has no types for it
    low, high = _whole(interval)
    low, high = max(low, int(info.min)), min(high, int(info.max), _INT32_MAX - 1)
    if low > high or low == high == 0:
        raise ValueError(f"domain {interval} holds no {dtype} but 0")
    values = jax.random.randint(key, shape, low, high + 1, jnp.int32)
    return jnp.where(values == 0, high if high != 0 else low, values).astype(dtype)


def _whole(interval: Interval) -> tuple[int, int]:
    """The least and the greatest integer to draw."""
    low, high = interval.low, interval.high
    if math.isinf(low) and math.isinf(high):
        return -_SPAN, _SPAN
    if math.isinf(low):
        last = _last(high, interval.high_closed)
        return last - _SPAN, last
    first = -_last(-low, interval.low_closed)
    return first, first + _SPAN if math.isinf(high) else _last(high, interval.high_closed)


def _last(end: float, closed: bool) -> int:
    """The greatest integer up to `end`."""
    whole = math.floor(end)
    return whole if closed or whole < end else whole - 1
