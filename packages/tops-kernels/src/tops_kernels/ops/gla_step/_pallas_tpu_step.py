"""The arithmetic of one grid step on TPU, in the two orders in which a state may lie: values along lanes, or keys along lanes.

A state is worked on a few registers at a time. What goes with a channel along sublanes has to lie along sublanes too: it is turned once a step.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

LANES = 128
_CHUNK = 8 * 1024  # elements of a state that are worked on at a time: 8 registers, so that nothing is spilled


def values_along_lanes(
    q_ref: Any,  # in [1, 1, block_hq, K]
    k_ref: Any,  # in [1, 1, block_h, K]
    v_ref: Any,  # in [1, 1, block_h, V]
    g_ref: Any,  # in [1, 1, block_h, K]
    gv_ref: Any,  # in [1, 1, block_h, V], or None
    state_ref: Any,  # in [1, block_h, K, V]
    o_ref: Any,  # out [1, 1, block_hq, V]
    new_ref: Any,  # out [1, block_h, K, V]
    *,
    scale: float,
) -> None:
    """Steps states [K, V]."""
    query = (_rows(q_ref) * scale).T  # [K, block_hq]
    key, decay = _rows(k_ref).T, jnp.exp(_rows(g_ref)).T  # [K, block_h]
    value, value_decay = _rows(v_ref), None if gv_ref is None else jnp.exp(_rows(gv_ref))
    block_h, width_v = value.shape
    group = query.shape[1] // block_h
    outs = []
    for head in range(block_h):
        one = slice(head, head + 1)
        sums = [jnp.zeros((1, width_v), jnp.float32)] * group
        for at in _pieces(key.shape[0], width_v):
            new = state_ref[0, head, at, :] * decay[at, one]
            if value_decay is not None:
                new = new * value_decay[one]
            new = new + key[at, one] * value[one]
            new_ref[0, head, at, :] = new
            for member, column in enumerate(range(head * group, (head + 1) * group)):
                sums[member] += jnp.sum(query[at, column : column + 1] * new, axis=0, keepdims=True)
        outs += sums
    o_ref[0, 0] = jnp.concatenate(outs, axis=0).astype(o_ref.dtype)


def keys_along_lanes(
    q_ref: Any,  # in [1, 1, block_hq, K]
    k_ref: Any,  # in [1, 1, block_h, K]
    v_ref: Any,  # in [1, 1, block_h, V]
    g_ref: Any,  # in [1, 1, block_h, K]
    gv_ref: Any,  # in [1, 1, block_h, V], or None
    state_ref: Any,  # in [1, block_h, V, K]
    o_ref: Any,  # out [1, 1, block_hq, V]
    new_ref: Any,  # out [1, block_h, V, K]
    *,
    scale: float,
) -> None:
    """Steps states [V, K]."""
    query, key, decay = _rows(q_ref) * scale, _rows(k_ref), jnp.exp(_rows(g_ref))
    value = _rows(v_ref).T  # [V, block_h]
    value_decay = None if gv_ref is None else jnp.exp(_rows(gv_ref)).T
    block_h, width_k = key.shape
    width_v, block_hq = value.shape[0], query.shape[0]
    group = block_hq // block_h
    pieces = list(_pieces(width_v, width_k))
    outs = [jnp.zeros((at.stop - at.start, block_hq), jnp.float32) for at in pieces]  # o, turned
    columns = [lax.broadcasted_iota(jnp.int32, out.shape, 1) for out in outs]
    for head in range(block_h):
        one = slice(head, head + 1)
        for piece, at in enumerate(pieces):
            new = state_ref[0, head, at, :] * decay[one]
            if value_decay is not None:
                new = new * value_decay[at, one]
            new = new + value[at, one] * key[one]
            new_ref[0, head, at, :] = new
            for column in range(head * group, (head + 1) * group):
                sums = jnp.sum(query[column : column + 1] * new, axis=1, keepdims=True)
                outs[piece] = jnp.where(columns[piece] == column, sums, outs[piece])
    o_ref[0, 0] = jnp.concatenate(outs, axis=0).T.astype(o_ref.dtype)


Step = Callable[..., None]


def step_for(width_k: int, width_v: int) -> Step:
    """`keys_along_lanes` where XLA keeps states [.., K, V] with keys along lanes: where fewer lanes stay empty so (V = 64, say). In another order
    XLA would copy the states, all of a pool, before and after.
    """
    swapped = _round_up(width_v, 8) * _round_up(width_k, LANES) < _round_up(width_k, 8) * _round_up(width_v, LANES)
    return keys_along_lanes if swapped else values_along_lanes


def _rows(ref: Any) -> jax.Array:
    """[heads, width] float32"""
    rows: jax.Array = ref[0, 0].astype(jnp.float32)
    return rows


def _pieces(sublanes: int, lanes: int) -> Iterator[slice]:
    """Stretches of a state along its sublanes."""
    length = max(8, _CHUNK // _round_up(lanes, LANES) // 8 * 8)
    for start in range(0, sublanes, length):
        yield slice(start, min(start + length, sublanes))


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
