"""What a user of JAX writes for a decoding step without a library: rows out of the pool, the formula, rows back into the pool."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp


def gla_step_jnp(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    state: jax.Array,
    index: jax.Array | None = None,
    gv: jax.Array | None = None,
    *,
    scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`state[index]`, a step in float32, `state.at[index].set(..)`."""
    (b, hq, width), h = q.shape, k.shape[1]
    decay = jnp.exp(g)[..., None] if gv is None else jnp.exp(g)[..., None] * jnp.exp(gv)[..., None, :]
    query = q.astype(jnp.float32).reshape(b, h, hq // h, width) * (width**-0.5 if scale is None else scale)
    outer = k.astype(jnp.float32)[..., None] * v.astype(jnp.float32)[..., None, :]
    if index is None:
        new = decay * state + outer
        return jnp.einsum("bhgk,bhkv->bhgv", query, new, precision="highest").reshape(b, hq, -1).astype(v.dtype), new
    is_row = (index >= 0) & (index < state.shape[0])
    place = jnp.where(is_row, index, state.shape[0])
    new = decay * jnp.asarray(state).at[place].get(mode="fill", fill_value=0) + outer
    o = jnp.einsum("bhgk,bhkv->bhgv", query, new, precision="highest").reshape(b, hq, -1)
    return jnp.where(is_row[:, None, None], o, 0).astype(v.dtype), jnp.asarray(state).at[place].set(new, mode="drop")


def simple_gla_step_jnp(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    state: jax.Array,
    g: jax.Array | None = None,
    g_gamma: jax.Array | None = None,
    index: jax.Array | None = None,
    *,
    scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The same with one decay for all key channels of a head."""
    total = jnp.zeros(k.shape[:2], jnp.float32)
    for gate in (g, g_gamma):
        total = total if gate is None else total + gate
    return gla_step_jnp(q, k, v, jnp.broadcast_to(total[..., None], k.shape), state, index, scale=scale)


BASELINES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "gla_step": {"jnp": gla_step_jnp},
    "simple_gla_step": {"jnp": simple_gla_step_jnp},
}
