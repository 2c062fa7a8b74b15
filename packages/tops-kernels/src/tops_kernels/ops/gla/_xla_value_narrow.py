"""The arithmetic of one chunk of gla with gates on values too, where all its gates are weak: see `_xla_narrow`.

With W the running sum of gv in the chunk and M its value in the middle, exp(W - M) o is what `_xla_narrow` gives for values exp(M - W) v and a
state whose channels are decayed to the middle: gates on values change what goes into it and what comes out of it.

Shapes and functions as in `_xla_chunk`, with gates [N, C, K + V] for g: the two lie side by side.
"""

import jax
import jax.numpy as jnp

from tops_kernels.ops.gla import _xla_narrow as narrow
from tops_kernels.ops.gla._xla_value_chunk import apart


def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, gates: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """-> o [N * G, C, V], state after the chunk [N, K, V]."""
    g, gv = apart(gates, k.shape[-1])
    d = narrow.decays(gv)
    o, state = narrow.forward(q, k, v * d.down, g, _channels(d.start) * state)
    return narrow.each(q, o, d.up), _channels(d.end) * state


def next_state(k: jax.Array, v: jax.Array, gates: jax.Array, state: jax.Array) -> jax.Array:
    """The second of `forward` alone."""
    g, gv = apart(gates, k.shape[-1])
    d = narrow.decays(gv)
    return _channels(d.end) * narrow.next_state(k, v * d.down, g, _channels(d.start) * state)


def state_before(q: jax.Array, gates: jax.Array, do: jax.Array, dstate: jax.Array) -> jax.Array:
    """The last of `backward` alone."""
    g, gv = apart(gates, q.shape[-1])
    d = narrow.decays(gv)
    return _channels(d.start) * narrow.state_before(q, g, do * d.up[:, None], _channels(d.end) * dstate)


def backward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    gates: jax.Array,
    do: jax.Array,
    state: jax.Array,
    dstate: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """state: before the chunk; dstate: of the state after it -> gradients of q [N * G, C, K], k, v, gates and of the state before."""
    g, gv = apart(gates, k.shape[-1])
    d = narrow.decays(gv)
    vd, dod = v * d.down, do * d.up[:, None]
    entered = _channels(d.start) * state
    o, _ = narrow.forward(q, k, vd, g, entered)  # what it shares with the next call is computed once
    dq, dk, dvd, dg, dentered = narrow.backward(q, k, vd, g, dod, entered, _channels(d.end) * dstate)
    # As for g in `_xla_narrow.backward`.
    whole = jnp.sum(entered * dentered, axis=-2)
    dgv = whole[:, None] + narrow.before_here(vd * dvd - narrow.of_group(o.reshape(do.shape) * dod))
    return dq, dk, dvd * d.down, jnp.concatenate([dg, dgv], axis=-1), _channels(d.start) * dentered


def _channels(decay: jax.Array) -> jax.Array:
    """[N, V] -> [N, 1, V], over a state."""
    return decay[:, None]
