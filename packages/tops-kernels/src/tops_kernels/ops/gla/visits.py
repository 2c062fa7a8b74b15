"""Packed sequences as a walk over chunks: which rows of which chunk belong to which sequence, step by step.

A sequence that starts or ends inside a chunk visits it for its own rows alone, so T / C + N steps are enough for any boundaries: the
number is static, the contents are traced, and one compilation serves all.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Visits(NamedTuple):
    """One entry a step, int32 or bool [steps]; in the order of time, forwards."""

    chunk: jax.Array
    sequence: jax.Array
    start: jax.Array  # rows [start, stop) of the chunk; none where stop <= start
    stop: jax.Array
    first: jax.Array  # the sequence's first visit: its initial state comes in
    last: jax.Array  # its last: its final state goes out


def visits(cu_seqlens: jax.Array, t: int, size: int) -> Visits:
    """cu_seqlens [N + 1] rising, in 0..T; chunks of `size` rows. Every sequence has a visit, an empty one too."""
    n = cu_seqlens.shape[0] - 1
    chunks = -(-t // size)
    bounds = jnp.clip(cu_seqlens.astype(jnp.int32), 0, t)
    start, stop = bounds[:-1], jnp.maximum(bounds[1:], bounds[:-1])
    first_chunk = jnp.minimum(start // size, chunks - 1)
    last_chunk = jnp.maximum((stop - 1) // size, first_chunk)
    counts = last_chunk - first_chunk + 1
    ends = jnp.cumsum(counts)
    step = jnp.arange(chunks + n, dtype=jnp.int32)
    owner = jnp.minimum(jnp.searchsorted(ends, step, side="right"), n - 1).astype(jnp.int32)
    spare = step >= ends[-1]  # more steps than visits
    chunk = jnp.where(spare, chunks - 1, first_chunk[owner] + step - (ends - counts)[owner])
    low = jnp.clip(start[owner] - chunk * size, 0, size)
    high = jnp.clip(stop[owner] - chunk * size, 0, size)
    return Visits(
        chunk.astype(jnp.int32),
        owner,
        jnp.where(spare, 0, low).astype(jnp.int32),
        jnp.where(spare, 0, high).astype(jnp.int32),
        ~spare & (chunk == first_chunk[owner]),
        ~spare & (chunk == last_chunk[owner]),
    )
