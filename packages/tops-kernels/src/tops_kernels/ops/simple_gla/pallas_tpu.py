"""simple_gla on TPU: the door to the kernels. Brings arrays into the layout that the kernels read, and what they give back out of it."""

from typing import Any

import jax
import jax.numpy as jnp

from tops_kernels.ops.gla._pallas_tpu_blocks import Call
from tops_kernels.ops.gla._pallas_tpu_decay import LANES
from tops_kernels.ops.gla._pallas_tpu_layout import Layout, pad_lanes
from tops_kernels.ops.gla._pallas_tpu_plan import plan_for, visits
from tops_kernels.ops.simple_gla import _pallas_tpu_bwd as bwd
from tops_kernels.ops.simple_gla import _pallas_tpu_fwd as fwd
from tops_kernels.ops.simple_gla._pallas_tpu_decay import arrange, restore
from tops_kernels.ops.simple_gla.config import SimpleGlaTpuConfig, default_config
from tops_kernels.ops.simple_gla.decays import gradients_of, log_decays


def simple_gla_fwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array | None,
    g_gamma: jax.Array | None,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    *,
    scale: float,
    reverse: bool,
    config: Any,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """q [B, T, HQ, K], k [B, T, H, K], v [B, T, H, V] in one dtype, g [B, T, H] float32 or None, g_gamma [H] float32 or None, initial_state
    [B or N, H, K, V] float32 or None, cu_seqlens [N + 1] int32 or None (then B = 1 where given) -> o [B, T, HQ, V] in v's dtype, final_state
    like initial_state.

    HQ is a multiple of H: query heads i * HQ // H and following share key/value head i, its gates and its state.
    """
    call = _call(q, k, v, cu_seqlens, scale, reverse, config, interpret, "fwd")
    table = None if cu_seqlens is None else visits(cu_seqlens, call.t, call.plan)
    h0 = None if initial_state is None else pad_lanes(initial_state.astype(jnp.float32), (2, 3))
    query, key, value = (call.layout.arrange(x) for x in (q, k, v))
    log = arrange(log_decays(g, g_gamma, k.shape[:3]), call)
    o, final = fwd.forward(query, key, value, log, h0, table, call=call, interpret=interpret)
    return call.layout.restore(o, call.t, v.shape[3]), final[:, :, : k.shape[3], : v.shape[3]]


def simple_gla_bwd(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array | None,
    g_gamma: jax.Array | None,
    initial_state: jax.Array | None,
    cu_seqlens: jax.Array | None,
    do: jax.Array,
    dfinal: jax.Array,
    *,
    scale: float,
    reverse: bool,
    config: Any,
    interpret: Any,
) -> tuple[jax.Array | None, ...]:
    """The arguments of `simple_gla_fwd`, do and dfinal the cotangents of its outputs -> gradients of q, k, v, g, g_gamma and initial_state
    (None where one is None), in their dtypes.
    """
    call = _call(q, k, v, cu_seqlens, scale, reverse, config, interpret, "vjp")
    table = None if cu_seqlens is None else visits(cu_seqlens, call.t, call.plan)
    h0 = None if initial_state is None else pad_lanes(initial_state.astype(jnp.float32), (2, 3))
    query, key, value, cotangent = (call.layout.arrange(x) for x in (q, k, v, do.astype(q.dtype)))
    log = arrange(log_decays(g, g_gamma, k.shape[:3]), call)
    states = bwd.states(key, value, log, h0, table, call=call, interpret=interpret)
    dend = pad_lanes(dfinal.astype(jnp.float32), (2, 3))
    *grads, dlog, dh0 = bwd.backward(
        query, key, value, log, cotangent, states, dend, table, call=call, interpret=interpret
    )
    dq, dk, dv = (call.layout.restore(x, call.t, like.shape[3]) for x, like in zip(grads, (q, k, v), strict=True))
    dinitial = None
    if initial_state is not None:
        dinitial = dh0[:, :, : k.shape[3], : v.shape[3]].astype(initial_state.dtype)
    return dq, dk, dv, *gradients_of(restore(dlog, call), g, g_gamma), dinitial


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
    if not isinstance(config, SimpleGlaTpuConfig):
        raise TypeError(f"simple_gla: configuration is of type {type(config).__name__}; expected SimpleGlaTpuConfig")
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
