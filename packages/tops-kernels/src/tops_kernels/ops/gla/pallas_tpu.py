"""gla on TPU: the door to the kernels. Brings arrays into the layout that the kernels read, and what they give back out of it."""

from typing import Any

import jax
import jax.numpy as jnp

from tops_kernels.ops.gla import _pallas_tpu_bwd as bwd
from tops_kernels.ops.gla import _pallas_tpu_edges as edges
from tops_kernels.ops.gla import _pallas_tpu_fwd as fwd
from tops_kernels.ops.gla._pallas_tpu_blocks import Call
from tops_kernels.ops.gla._pallas_tpu_decay import LANES
from tops_kernels.ops.gla._pallas_tpu_layout import Layout, pad_lanes
from tops_kernels.ops.gla._pallas_tpu_plan import plan_for, visits
from tops_kernels.ops.gla.config import GlaTpuConfig, default_config


def gla_fwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
    config: Any,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """q [B, T, HQ, K], k [B, T, H, K], v [B, T, H, V] in one dtype, g [B, T, H, K] float32, initial_state [B or N, H, K, V] float32 or
    None, cu_seqlens [N + 1] int32 or None (then B = 1 where given) -> o [B, T, HQ, V] in v's dtype, final_state like initial_state.

    HQ is a multiple of H: query heads i * HQ // H and following share key/value head i, its gates and its state.
    """
    call = _call(q, k, v, cu_seqlens, scale, reverse, config, interpret, "fwd")
    table = None if cu_seqlens is None else visits(cu_seqlens, call.t, call.plan)
    h0 = None if initial_state is None else pad_lanes(initial_state.astype(jnp.float32), (2, 3))
    key, value, gates = _arranged(k, v, g, call)
    o, final = fwd.forward(call.layout.arrange(q), key, value, gates, h0, table, call=call, interpret=interpret)
    return call.layout.restore(o, call.t, v.shape[3]), final[:, :, : k.shape[3], : v.shape[3]]


def gla_bwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    do: jax.Array,
    dfinal: jax.Array,
    *,
    scale: float,
    reverse: bool,
    config: Any,
    interpret: Any,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """The arguments of `gla_fwd`, do and dfinal the cotangents of its outputs -> gradients of q, k, v, g and initial_state (None where
    that is None), in their dtypes.
    """
    call = _call(q, k, v, cu_seqlens, scale, reverse, config, interpret, "vjp")
    table = None if cu_seqlens is None else visits(cu_seqlens, call.t, call.plan)
    h0 = None if initial_state is None else pad_lanes(initial_state.astype(jnp.float32), (2, 3))
    key, value, gates = _arranged(k, v, g, call)
    states = bwd.states(key, value, gates, h0, table, call=call, interpret=interpret)
    *grads, dh0 = bwd.backward(
        call.layout.arrange(q),
        key,
        value,
        gates,
        call.layout.arrange(do.astype(q.dtype)),
        states,
        pad_lanes(dfinal.astype(jnp.float32), (2, 3)),
        table,
        call=call,
        interpret=interpret,
    )
    dq, dk, dv, dg = (
        call.layout.restore(x, call.t, like.shape[3]) for x, like in zip(grads, (q, k, v, g), strict=True)
    )
    if initial_state is None:
        return dq, dk, dv, dg.astype(g.dtype), None
    return dq, dk, dv, dg.astype(g.dtype), dh0[:, :, : k.shape[3], : v.shape[3]].astype(initial_state.dtype)


def gla_end(
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    initial_state: jax.Array | None,
    rows: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
    config: Any,
    interpret: Any,
) -> jax.Array:
    """Arguments of `gla_fwd`; rows [2] int32: the first that takes part and the one after the last, None: all; B = 1 where given
    -> final_state [B, H, K, V] alone."""
    call = _call(k, k, v, rows, scale, reverse, config, interpret, "fwd")
    table = None if rows is None else visits(rows, call.t, call.plan)  # one packed sequence
    h0 = None if initial_state is None else pad_lanes(initial_state.astype(jnp.float32), (2, 3))
    final = edges.end(*_arranged(k, v, g, call), h0, table, call=call, interpret=interpret)
    return final[:, :, : k.shape[3], : v.shape[3]]


def gla_start(
    q: jax.Array,
    v: jax.Array,
    g: jax.Array,
    do: jax.Array,
    dfinal: jax.Array,
    rows: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
    config: Any,
    interpret: Any,
) -> jax.Array:
    """Arguments of `gla_bwd`, rows as for `gla_end` -> the gradient of initial_state [B, H, K, V] alone."""
    call = _call(q, g, v, rows, scale, reverse, config, interpret, "vjp")
    dstate = edges.start(
        call.layout.arrange(q),
        call.layout.arrange(g.astype(jnp.float32)),
        call.layout.arrange(do.astype(q.dtype)),
        pad_lanes(dfinal.astype(jnp.float32), (2, 3)),
        None if rows is None else visits(rows, call.t, call.plan),
        call=call,
        interpret=interpret,
    )
    return dstate[:, :, : q.shape[3], : v.shape[3]]


def _arranged(k: jax.Array, v: jax.Array, g: jax.Array, call: Call) -> tuple[jax.Array, jax.Array, jax.Array]:
    return call.layout.arrange(k), call.layout.arrange(v), call.layout.arrange(g.astype(jnp.float32))


def _call(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    cu_seqlens: jax.Array | None,
    scale: float,
    reverse: bool,
    config: Any,
    interpret: Any,
    which: str,
) -> Call:
    b, t, hq, width_k = q.shape
    h, width_v = v.shape[2:]
    if config is None:
        config = default_config(hq=hq, h=h, k=width_k, v=width_v, itemsize=q.dtype.itemsize, which=which)
    if not isinstance(config, GlaTpuConfig):
        raise TypeError(f"gla: configuration is of type {type(config).__name__}; expected GlaTpuConfig")
    sequences = None if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return Call(
        b=b,
        t=t,
        h=h,
        group=hq // h,
        k=width_k + -width_k % LANES,
        v=width_v + -width_v % LANES,
        states=b if sequences is None else sequences,
        scale=scale,
        dtype=q.dtype,
        plan=plan_for(t, sequences, reverse=reverse),
        layout=Layout(config.in_place, interpret is not False, reverse),
        block_h=config.block_h,
    )
