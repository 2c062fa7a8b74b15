"""gla_step and simple_gla_step: public functions, argument checks, dispatch, and the tie between forward and backward."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tops_kernels.ops.gla_step import xla
from tops_kernels.ops.gla_step.config import GlaStepTpuConfig
from tops_kernels.runtime.arguments import check, check_backend, declared
from tops_kernels.runtime.call import call
from tops_kernels.runtime.dispatch import Implementation, dispatch
from tops_kernels.runtime.manual import alike
from tops_kernels.runtime.overrides import Override
from tops_kernels.runtime.residuals import named
from tops_kernels.runtime.signature import Signature, signature
from tops_kernels.runtime.tuned import Config, configured
from tops_manifest import Binding

CONFIGS: dict[str, type[Config]] = {"pallas_tpu": GlaStepTpuConfig}


def gla_step(
    q: jax.Array,  # [B, HQ, K]
    k: jax.Array,  # [B, H, K]
    v: jax.Array,  # [B, H, V]
    g: jax.Array,  # [B, H, K]
    state: jax.Array,  # [B or P, H, K, V]
    index: jax.Array | None = None,  # [B]
    gv: jax.Array | None = None,  # [B, H, V]
    *,
    scale: float | None = None,
    backend: str | None = None,
    interpret: Any = False,
) -> tuple[jax.Array, jax.Array]:
    """One step of gated linear attention for each row of a batch (arXiv:2312.06635 eq. 3-4): a token decoded with the states of `gla`.

        new_state = diag(exp(g)) state diag(exp(gv)) + k v^T        o = scale * q^T new_state

    Computed in float32 and rounded once. Under `jax.jit(.., donate_argnums=..)` that gives the states away they are updated in place: each state
    that is stepped is read once and written once, and no other is touched. A call by itself leaves the caller's array as it is, at the cost of
    a copy.

    Args:
      q: float32 or bfloat16 [B, HQ, K]; HQ a multiple of H.
      k: [B, H, K] in q's dtype. Query head i has key/value head i // (HQ // H).
      v: [B, H, V] in q's dtype.
      g: float32 [B, H, K], <= 0: log decays of key channels. -inf forgets all that was before. Values above 0 are not checked.
      state: float32 [B, H, K, V]; with index a pool of states [P, H, K, V].
      index: int32 (or int64) [B], traced: row b's state is state[index[b]]. A row whose index is not in 0 .. P - 1 (-1, say) is padding: its o is 0 and it
        changes no state, whatever it holds. Where two rows have the same index, what either gives and the state they leave is not said; other states keep right.
      gv: float32 [B, H, V], <= 0: log decays of value channels; None: no decay.
      scale: of q; None means K ** -0.5. Static.
      backend: None picks for the platform lowered for; "xla" or "pallas_tpu" insists.
      interpret: True or a pltpu.InterpretParams runs the Pallas kernel in its interpreter, on any platform (for tests).
    Returns: (o [B, HQ, V] in q's dtype, new_state float32 like state: with index the whole pool, states of no row as they were). Always both.
    Raises: ValueError or TypeError naming the argument that breaks the contract; ValueError, when the call is lowered, for a
      `backend` that has no kernel for the platform.
    Differentiable in q, k, v, g, state and gv (reverse mode), for cotangents of both outputs, by XLA on every platform; the states before
    and after are kept for it.
    """
    params = {"scale": scale}
    arrays = {"q": q, "k": k, "v": v, "g": g, "state": state, "index": index, "gv": gv}
    return call(_gla_step, "gla_step", arrays, params, backend, interpret)  # type: ignore[no-any-return]  # jit loses the type


def simple_gla_step(
    q: jax.Array,  # [B, HQ, K]
    k: jax.Array,  # [B, H, K]
    v: jax.Array,  # [B, H, V]
    state: jax.Array,  # [B or P, H, K, V]
    g: jax.Array | None = None,  # [B, H]
    g_gamma: jax.Array | None = None,  # [H]
    index: jax.Array | None = None,  # [B]
    *,
    scale: float | None = None,
    backend: str | None = None,
    interpret: Any = False,
) -> tuple[jax.Array, jax.Array]:
    """One step of gated linear attention with one decay a head (arXiv:2312.06635 eq. 3-4): retention, lightning attention and Mamba-2 decode so.

        new_state = exp(g + g_gamma) * state + k v^T        o = scale * q^T new_state

    Computed in float32 and rounded once. Under `jax.jit(.., donate_argnums=..)` that gives the states away they are updated in place, as in
    `gla_step`.

    Args:
      q: float32 or bfloat16 [B, HQ, K]; HQ a multiple of H.
      k: [B, H, K] in q's dtype. Query head i has key/value head i // (HQ // H).
      v: [B, H, V] in q's dtype.
      state: float32 [B, H, K, V]; with index a pool of states [P, H, K, V].
      g: float32 [B, H], <= 0: the log decay of each row and head; -inf forgets all that was before; None: 0. Values above 0 are not checked.
      g_gamma: float32 [H], <= 0: the log decay of each head, in every row; added to g; None: 0.
      index: int32 (or int64) [B], traced: row b's state is state[index[b]]. A row whose index is not in 0 .. P - 1 (-1, say) is padding: its o is 0 and it
        changes no state, whatever it holds. Where two rows have the same index, what either gives and the state they leave is not said; other states keep right.
      scale: of q; None means K ** -0.5. Static.
      backend: None picks for the platform lowered for; "xla" or "pallas_tpu" insists.
      interpret: True or a pltpu.InterpretParams runs the Pallas kernel in its interpreter, on any platform (for tests).
    Returns: (o [B, HQ, V] in q's dtype, new_state float32 like state: with index the whole pool, states of no row as they were). Always both.
    Raises: ValueError or TypeError naming the argument that breaks the contract; ValueError, when the call is lowered, for a
      `backend` that has no kernel for the platform.
    Differentiable in q, k, v, state, g and g_gamma (reverse mode), for cotangents of both outputs, by XLA on every platform; the states
    before and after are kept for it.
    """
    params = {"scale": scale}
    arrays = {"q": q, "k": k, "v": v, "state": state, "g": g, "g_gamma": g_gamma, "index": index}
    return call(_simple_gla_step, "simple_gla_step", arrays, params, backend, interpret)  # type: ignore[no-any-return]  # jit loses the type


@dataclasses.dataclass(frozen=True, slots=True)
class _Static:
    """What a call fixes at trace time."""

    op: str
    scale: float
    backend: str | None
    interpret: Any
    override: Override
    signature: Signature | None

    def forward(self, *arrays: Any) -> Any:
        """Each implementation's `gla_step_fwd`."""
        config = configured(self.op, self.signature, self.override, "fwd", self.backend, self.interpret, CONFIGS)

        def on_tpu(*arrays: Any) -> Any:
            from tops_kernels.ops.gla_step import pallas_tpu  # Pallas takes longer to import than all of this package

            return pallas_tpu.gla_step_fwd(
                *arrays, scale=self.scale, config=config["pallas_tpu"], interpret=self.interpret
            )

        implementations: dict[str, Implementation] = {
            "xla": functools.partial(xla.gla_step_fwd, scale=self.scale),
            "pallas_tpu": on_tpu,
        }
        return dispatch(self.op, self.backend, self.interpret, implementations, *arrays)


_STATIC_NAMES = ("scale", "backend", "interpret", "override")


@functools.partial(jax.jit, static_argnames=_STATIC_NAMES)
def _gla_step(q: Any, k: Any, v: Any, g: Any, state: Any, index: Any, gv: Any, **static: Any) -> Any:
    arrays = declared("gla_step", {"q": q, "k": k, "v": v, "g": g, "state": state, "index": index, "gv": gv})
    bound, how = _checked("gla_step", arrays, **static)
    return _run(bound, how, *arrays.values())


@functools.partial(jax.jit, static_argnames=_STATIC_NAMES)
def _simple_gla_step(q: Any, k: Any, v: Any, state: Any, g: Any, g_gamma: Any, index: Any, **static: Any) -> Any:
    given = {"q": q, "k": k, "v": v, "state": state, "g": g, "g_gamma": g_gamma, "index": index}
    arrays = declared("simple_gla_step", given)
    bound, how = _checked("simple_gla_step", arrays, **static)
    gates = [gate for gate in (g, g_gamma) if gate is not None]
    total = jnp.broadcast_to(sum(gates, start=jnp.zeros((), jnp.float32)), k.shape[:2])
    return _run(bound, how, q, k, v, jnp.broadcast_to(total[..., None], k.shape), state, arrays["index"], None)


def _checked(
    op: str, arrays: dict[str, Any], scale: float | None, backend: str | None, interpret: Any, override: Override
) -> tuple[Binding, _Static]:
    check_backend(op, backend, interpret)
    bound = check(op, arrays, {"scale": scale})
    return bound, _Static(op, float(str(bound.params["scale"])), backend, interpret, override, signature(bound, arrays))


def _run(bound: Binding, how: _Static, *arrays: Any) -> Any:
    q, _, v, _, state, _, _ = arrays
    if bound.dims["B"] == 0:  # no row: nothing to step
        return jnp.zeros((*q.shape[:2], v.shape[2]), v.dtype), jnp.asarray(state)
    return _step(how, *alike(*arrays))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _step(static: _Static, *arrays: Any) -> Any:
    return static.forward(*arrays)


def _step_fwd(static: _Static, *arrays: Any) -> Any:
    o, new_state = _step(static, *arrays)
    q, k, v, g, state, index, gv = arrays
    kept = (
        named(x, f"{static.op}.{name}")
        for x, name in zip((q, k, v, g, state), ("q", "k", "v", "g", "state"), strict=True)
    )
    return (o, new_state), (*kept, index, gv, named(new_state, f"{static.op}.new_state"))


def _step_bwd(static: _Static, residuals: Any, cotangents: Any) -> Any:
    index = residuals[5]
    *grads, dgv = xla.gla_step_bwd(*residuals, *cotangents, scale=static.scale)
    return (*grads, None if index is None else np.zeros(index.shape, jax.dtypes.float0), dgv)


_step.defvjp(_step_fwd, _step_bwd)
