"""gla: public function, argument checks, dispatch, and the tie between forward and backward."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tops_kernels.ops.gla import xla
from tops_kernels.ops.gla.config import GlaTpuConfig
from tops_kernels.runtime.arguments import check, check_backend, declared
from tops_kernels.runtime.call import call
from tops_kernels.runtime.dispatch import Implementation, dispatch
from tops_kernels.runtime.manual import alike, check_axis
from tops_kernels.runtime.overrides import Override
from tops_kernels.runtime.residuals import named
from tops_kernels.runtime.signature import Signature, signature
from tops_kernels.runtime.tuned import Config, configured

CONFIGS: dict[str, type[Config]] = {"pallas_tpu": GlaTpuConfig}


def gla(
    q: jax.Array,  # [B, T, HQ, K]
    k: jax.Array,  # [B, T, H, K]
    v: jax.Array,  # [B, T, H, V]
    g: jax.Array,  # [B, T, H, K]
    initial_state: jax.Array | None = None,  # [B or N, H, K, V]
    cu_seqlens: jax.Array | None = None,  # [N + 1]
    gv: jax.Array | None = None,  # [B, T, H, V]
    *,
    scale: float | None = None,
    reverse: bool = False,
    axis_name: str | None = None,
    backend: str | None = None,
    interpret: Any = False,
) -> tuple[jax.Array, jax.Array]:
    """Gated linear attention with a log decay for each key channel (arXiv:2312.06635 eq. 3-4).

        S_t = diag(exp(g_t)) S_(t-1) diag(exp(gv_t)) + k_t v_t^T        o_t = scale * q_t^T S_t

    The decay comes first, and o_t includes step t. Computed in float32 by chunks and rounded once; exact at any gate: products of decays are
    never split into factors over 1, so strong gates neither overflow nor lose the terms they leave.

    Args:
      q: float32 or bfloat16 [B, T, HQ, K]; T >= 1, HQ a multiple of H.
      k: [B, T, H, K] in q's dtype. Query head i has key/value head i // (HQ // H).
      v: [B, T, H, V] in q's dtype.
      g: float32 [B, T, H, K], <= 0: log decays. -inf forgets all that was before. Values above 0 are not checked.
      initial_state: float32 [B, H, K, V], with cu_seqlens [N, H, K, V]; None: zeros.
      cu_seqlens: int32 (or int64) [N + 1], traced: N sequences packed along T (then B = 1), rising from 0 to at most T. Sequence n has rows
        cu_seqlens[n] up to cu_seqlens[n + 1]; it may be empty. Rows after the last boundary are padding: o and gradients are 0 there, whatever
        they hold. One compilation serves all contents. The values are not checked; they are clipped to 0..T.
      gv: float32 [B, T, H, V], <= 0: log decays of value channels, as g of key channels; None: no decay. No Pallas kernel takes it: the call
        runs in XLA on every platform.
      scale: of q; None means K ** -0.5. Static.
      reverse: time runs from the last step to the first, of each sequence. Static.
      axis_name: sequence parallelism inside jax.shard_map: T is split over this mesh axis in its order, shard after shard. q, k, v, g and o are
        the shard's rows; initial_state, final_state and cu_seqlens (boundaries in the whole of T) are whole, the same on every shard. Values
        and gradients are those of one device, with one exchange of states and decays a pass. Static.
      backend: None picks for the platform lowered for; "xla" or "pallas_tpu" insists.
      interpret: True or a pltpu.InterpretParams runs the Pallas kernel in its interpreter, on any platform (for tests).
    Returns: (o [B, T, HQ, V] in q's dtype, final_state float32 like initial_state: the state after the last step in the order of time; an
      empty sequence's is its initial state). Always both.
    Raises: ValueError or TypeError naming the argument that breaks the contract, or an axis_name that no shard_map binds; ValueError for gv with a
      Pallas backend, and, when the call is lowered, for a `backend` that has no kernel for the platform.
    Differentiable in q, k, v, g, initial_state and gv (reverse mode), for cotangents of both outputs; gradients come in their dtypes. Nothing
    but the inputs is kept: states are computed again, one a chunk.
    """
    params = {"scale": scale, "reverse": reverse, "axis_name": axis_name}
    arrays = {"q": q, "k": k, "v": v, "g": g, "initial_state": initial_state, "cu_seqlens": cu_seqlens, "gv": gv}
    return call(_gla, "gla", arrays, params, backend, interpret)  # type: ignore[no-any-return]  # jit loses the type


@dataclasses.dataclass(frozen=True, slots=True)
class _Static:
    """What a call fixes at trace time."""

    scale: float
    reverse: bool
    backend: str | None
    interpret: Any
    override: Override
    signature: Signature | None
    gates_values: bool  # then arrays have gv behind cu_seqlens, or behind rows

    @property
    def xla(self) -> Any:
        """The module of XLA's form."""
        if not self.gates_values:
            return xla

        from tops_kernels.ops.gla import _xla_value_gates  # few calls need it

        return _xla_value_gates

    @property
    def values(self) -> dict[str, Any]:
        """What each function of an implementation takes by keyword."""
        return {"scale": self.scale, "reverse": self.reverse}

    def dispatch(self, which: str, name: str, *arrays: Any) -> Any:
        """Function `name` of each implementation's module. `which`: the pass whose configuration may be overridden."""
        config = configured("gla", self.signature, self.override, which, self.backend, self.interpret, CONFIGS)

        def on_tpu(*arrays: Any) -> Any:
            from tops_kernels.ops.gla import pallas_tpu  # Pallas takes longer to import than all of this package

            run = getattr(pallas_tpu, name)
            # Where jax_enable_x64 is on, the indices of loops and the numbers in a kernel would have 64 bits, and Mosaic takes none.
            with jax.enable_x64(False):
                return run(*arrays, **self.values, config=config["pallas_tpu"], interpret=self.interpret)

        implementations: dict[str, Implementation] = {"xla": functools.partial(getattr(self.xla, name), **self.values)}
        if not self.gates_values:
            implementations["pallas_tpu"] = on_tpu
        return dispatch("gla", self.backend, self.interpret, implementations, *arrays)


@functools.partial(jax.jit, static_argnames=("scale", "reverse", "axis_name", "backend", "interpret", "override"))
def _gla(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    initial_state: Any,
    cu_seqlens: Any,
    gv: Any,
    *,
    scale: float | None,
    reverse: bool,
    axis_name: str | None,
    backend: str | None,
    interpret: Any,
    override: Override,
) -> Any:
    arrays = {"q": q, "k": k, "v": v, "g": g, "initial_state": initial_state, "cu_seqlens": cu_seqlens, "gv": gv}
    check_backend("gla", backend, interpret, arrays)
    arrays = declared("gla", arrays)
    cu_seqlens = arrays["cu_seqlens"]
    bound = check("gla", arrays, {"scale": scale, "reverse": reverse, "axis_name": axis_name})
    if k.shape[0] == 0:  # no batch: nothing to attend to
        outputs = bound.outputs()
        return tuple(jnp.zeros(spec.shape, spec.dtype) for spec in outputs.values())
    factor = float(str(bound.params["scale"]))
    static = _Static(factor, bool(reverse), backend, interpret, override, signature(bound, arrays), gv is not None)
    gates = () if gv is None else (gv,)
    if axis_name is None:
        return _attend(static, *alike(q, k, v, g, initial_state, cu_seqlens, *gates))

    from tops_kernels.ops.gla import sequence  # few calls need it

    check_axis("gla", axis_name, {"initial_state": initial_state, "cu_seqlens": cu_seqlens})
    return sequence.attend(_Shard(static, axis_name), (q, k, v, g, *gates), initial_state, cu_seqlens)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: _Static, *arrays: Any) -> Any:
    return static.dispatch("fwd", "gla_fwd", *arrays)


def _attend_fwd(static: _Static, *arrays: Any) -> Any:
    q, k, v, g, initial_state, cu_seqlens, *gates = arrays
    kept = [named(x, f"gla.{name}") for x, name in zip((q, k, v, g), "qkvg", strict=True)]
    gates = [named(x, "gla.gv") for x in gates]
    return _attend(static, *arrays), (*kept, initial_state, cu_seqlens, *gates)


def _attend_bwd(static: _Static, residuals: Any, cotangents: Any) -> Any:
    grads = _attend_grad(static, *residuals, *cotangents)
    return (*grads[:5], _none_of(residuals[5]), *grads[5:])


_attend.defvjp(_attend_fwd, _attend_bwd)


# A custom_vjp too, so that a second derivative differentiates its XLA form and never a kernel.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_grad(static: _Static, *arrays: Any) -> Any:
    return static.dispatch("vjp", "gla_bwd", *arrays)


def _attend_grad_fwd(static: _Static, *arrays: Any) -> Any:
    return _attend_grad(static, *arrays), arrays


def _attend_grad_bwd(static: _Static, arrays: Any, cotangents: Any) -> Any:
    cu_seqlens = arrays[5]

    def plain(*parts: Any) -> Any:
        return static.xla.gla_bwd(*parts[:5], cu_seqlens, *parts[5:], **static.values)

    grads = jax.vjp(plain, *arrays[:5], *arrays[6:])[1](cotangents)
    return (*grads[:5], _none_of(cu_seqlens), *grads[5:])


def _none_of(integers: jax.Array | None) -> Any:
    """The gradient of an integer input."""
    return None if integers is None else np.zeros(integers.shape, jax.dtypes.float0)


_attend_grad.defvjp(_attend_grad_fwd, _attend_grad_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _edge(static: _Static, which: str, name: str, *arrays: Any) -> Any:
    """`gla_end` or `gla_start`: the state at an edge of a shard, or its gradient. Its derivative is that of its XLA form."""
    return static.dispatch(which, name, *arrays)


def _edge_fwd(static: _Static, which: str, name: str, *arrays: Any) -> Any:
    return _edge(static, which, name, *arrays), arrays


def _edge_bwd(static: _Static, which: str, name: str, arrays: Any, cotangent: Any) -> Any:
    form = static.xla.gla_end if name == "gla_end" else static.xla.gla_start
    plain = functools.partial(form, **static.values)
    return jax.vjp(plain, *arrays)[1](cotangent)


_edge.defvjp(_edge_fwd, _edge_bwd)


@dataclasses.dataclass(frozen=True, slots=True)
class _Shard:
    """gla on one shard's rows: the `sequence.Recurrence` of this op."""

    static: _Static
    axis_name: str
    name = "gla"

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("q", "k", "v", "g", "gv") if self.static.gates_values else ("q", "k", "v", "g")

    @property
    def reverse(self) -> bool:
        return self.static.reverse

    def forward(self, floats: Any, initial_state: Any, cu_seqlens: Any) -> Any:
        return _attend(self.static, *alike(*floats[:4], initial_state, cu_seqlens, *floats[4:]))

    def backward(self, floats: Any, initial_state: Any, cu_seqlens: Any, do: Any, dfinal: Any) -> Any:
        arrays = alike(*floats[:4], initial_state, cu_seqlens, *floats[4:], do, dfinal)
        grads = _attend_grad(self.static, *arrays)
        return (*grads[:4], *grads[5:], grads[4])

    def gates(self, floats: Any) -> Any:
        return (floats[3][..., None], *(x[..., None, :] for x in floats[4:]))

    def end(self, floats: Any, state: Any, rows: Any) -> Any:
        _, k, v, g, *gates = floats
        return _edge(self.static, "fwd", "gla_end", *alike(k, v, g, state, rows, *gates))

    def start(self, floats: Any, do: Any, dstate: Any, rows: Any) -> Any:
        q, _, v, g, *gates = floats
        return _edge(self.static, "vjp", "gla_start", *alike(q, v, g, do, dstate, rows, *gates))
