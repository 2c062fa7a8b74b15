"""What a user of JAX writes for linear attention with scalar gates without a library: the recurrence itself, by lax.scan."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def simple_gla_scan(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array | None = None,
    g_gamma: jax.Array | None = None,
    initial_state: jax.Array | None = None,
    cu_seqlens: jax.Array | None = None,
    *,
    scale: float | None = None,
    reverse: bool = False,
    axis_name: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """One step of lax.scan a token, the states in float32; with cu_seqlens the token's sequence picks one of N states.

    Raises ValueError for an axis_name: a recurrence goes through the whole of T.
    """
    if axis_name is not None:
        raise ValueError(
            f"simple_gla_scan: axis_name is {axis_name!r}; expected None, as the recurrence goes through the whole of T"
        )
    b, t, hq, width = q.shape
    h = k.shape[2]
    sequences = b if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = (sequences, h, width, v.shape[-1])
    states = jnp.zeros(shape, jnp.float32) if initial_state is None else initial_state
    log = jnp.zeros((b, t, h), jnp.float32) if g is None else g
    log = log if g_gamma is None else log + g_gamma
    by_time = [
        jnp.moveaxis(x.astype(jnp.float32), 1, 0) for x in (q * (width**-0.5 if scale is None else scale), k, v, log)
    ]
    owner = jnp.zeros(t, jnp.int32)
    if cu_seqlens is not None:
        owner = jnp.searchsorted(cu_seqlens[1:], jnp.arange(t), side="right").astype(jnp.int32)

    def step(states: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, log, owner = now
        packed = cu_seqlens is not None
        old = lax.dynamic_slice_in_dim(states, jnp.minimum(owner, sequences - 1), 1) if packed else states
        new = jnp.exp(log)[..., None, None] * old + k[..., None] * v[..., None, :]
        o = jnp.einsum("bhgk,bhkv->bhgv", q.reshape(*k.shape[:2], hq // h, -1), new, precision="highest")
        if packed:
            new = jnp.where(owner < sequences, new, old)
            o = jnp.where(owner < sequences, o, 0.0)
            new = lax.dynamic_update_slice_in_dim(states, new, jnp.minimum(owner, sequences - 1), 0)
        return new, o.reshape(*o.shape[:1], hq, -1)

    final, o = lax.scan(step, states, (*by_time, owner), reverse=reverse)
    return jnp.moveaxis(o, 0, 1).astype(v.dtype), final


BASELINES: Mapping[str, Mapping[str, Callable[..., Any]]] = {"simple_gla": {"scan": simple_gla_scan}}
