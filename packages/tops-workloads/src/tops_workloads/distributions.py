"""Values for an input from its dtype and its `domain` in the manifest. Never zero: a kernel that drops a term must show.

no domain, floating       standard normal
no domain, integer        uniform over what the dtype holds, within +-127, without 0
"(-inf, 0]"               -softplus(normal) / 16: the log decay of a trained gate, mean -0.05
"[0, inf)", "(0, inf)"    softplus(normal)
"[a, b]", open or closed  uniform between
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

_GATE_DIVISOR = 16.0  # as gated linear attention has it: logsigmoid(x) / 16 (arXiv:2312.06635 section 4.4)


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A domain, read. Open ends are kept off by a margin, closed ones may be met."""

    low: float
    high: float

    @classmethod
    def read(cls, text: str) -> "Interval":
        """ "(-inf, 0]" -> Interval(-inf, 0.0). The manifest has checked the form."""
        low, _, high = text.strip()[1:-1].partition(",")
        interval = cls(float(low), float(high))
        if not interval.low < interval.high:
            raise ValueError(f"domain {text!r} is empty")
        return interval


def draw(key: jax.Array, shape: tuple[int, ...], dtype: str, domain: str | None) -> jax.Array:
    """An array of `dtype` with values in `domain`, none of them 0. Drawn in float32 or int32, whatever jax_enable_x64 says."""
    target = jnp.dtype(dtype)
    if target == jnp.bool_:
        return jax.random.bernoulli(key, 0.5, shape)
    if jnp.issubdtype(target, jnp.integer):
        return _integers(key, shape, target, domain)
    return _nonzero(_reals(key, shape, domain).astype(target), domain)


def _reals(key: jax.Array, shape: tuple[int, ...], domain: str | None) -> jax.Array:
    if domain is None:
        return jax.random.normal(key, shape, jnp.float32)
    interval = Interval.read(domain)
    match math.isinf(interval.low), math.isinf(interval.high):
        case True, True:
            return jax.random.normal(key, shape, jnp.float32)
        case True, False:
            return interval.high - jax.nn.softplus(jax.random.normal(key, shape, jnp.float32)) / _GATE_DIVISOR
        case False, True:
            return interval.low + jax.nn.softplus(jax.random.normal(key, shape, jnp.float32))
        case _:  # 2^-7 of the width off both ends, so that rounding to a short dtype cannot leave an open interval
            margin = (interval.high - interval.low) / 128
            return jax.random.uniform(
                key, shape, jnp.float32, minval=interval.low + margin, maxval=interval.high - margin
            )


def _nonzero(values: jax.Array, domain: str | None) -> jax.Array:
    """A draw that came out as 0 becomes a small value on the domain's side of it."""
    sign = -1.0 if domain is not None and Interval.read(domain).high <= 0 else 1.0
    return jnp.where(values == 0, jnp.asarray(sign / 16, values.dtype), values)


def _integers(key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype, domain: str | None) -> jax.Array:
    info = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]  # jax has no types for it; numpy's knows no int4
    low, high = max(int(info.min), -127), min(int(info.max), 127)
    if domain is not None:
        interval = Interval.read(domain)
        if not math.isinf(interval.low):
            low = max(int(info.min), math.ceil(interval.low))
        if not math.isinf(interval.high):
            high = min(int(info.max), math.floor(interval.high))
    if low > high or low == high == 0:
        raise ValueError(f"domain {domain!r} holds no integer but 0 of dtype {dtype.name}")
    values = jax.random.randint(key, shape, low, min(high + 1, 2**31 - 1), jnp.int32)
    return jnp.where(values == 0, high if high != 0 else low, values).astype(dtype)
