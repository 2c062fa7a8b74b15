"""simple_gla: public function, argument checks, dispatch, and the tie between forward and backward."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tops_kernels.ops.simple_gla import xla
from tops_kernels.ops.simple_gla.config import SimpleGlaTpuConfig
from tops_kernels.ops.simple_gla.decays import log_decays
from tops_kernels.runtime.arguments import check, check_backend, declared
from tops_kernels.runtime.call import call
from tops_kernels.runtime.dispatch import Implementation, dispatch
from tops_kernels.runtime.manual import alike, cast, check_axis, varying
from tops_kernels.runtime.overrides import Override
from tops_kernels.runtime.residuals import named
from tops_kernels.runtime.signature import Signature, signature
from tops_kernels.runtime.tuned import Config, configured

CONFIGS: dict[str, type[Config]] = {"pallas_tpu": SimpleGlaTpuConfig}


def simple_gla(
    q: jax.Array,  # [B, T, HQ, K]
    k: jax.Array,  # [B, T, H, K]
    v: jax.Array,  # [B, T, H, V]
    g: jax.Array | None = None,  # [B, T, H]
    g_gamma: jax.Array | None = None,  # [H]
    initial_state: jax.Array | None = None,  # [B or N, H, K, V]
    cu_seqlens: jax.Array | None = None,  # [N + 1]
    *,
    scale: float | None = None,
    reverse: bool = False,
    axis_name: str | None = None,
    backend: str | None = None,
    interpret: Any = False,
) -> tuple[jax.Array, jax.Array]:
    """Gated linear attention with a scalar log decay for each head: Mamba-2 (arXiv:2405.21060 section 6), RetNet, lightning attention.

        S_t = exp(g_t + g_gamma) S_(t-1) + k_t v_t^T        o_t = scale * q_t^T S_t

    The decay comes first, and o_t includes step t. Computed in float32 by chunks and rounded once; exact at any gate: no exponent is
    above 0, and none is a difference of rounded sums.

    Args:
      q: float32 or bfloat16 [B, T, HQ, K]; T >= 1, HQ a multiple of H.
      k: [B, T, H, K] in q's dtype. Query head i has key/value head i // (HQ // H).
      v: [B, T, H, V] in q's dtype.
      g: float32 [B, T, H], <= 0: log decays. -inf forgets all that was before. Values above 0 are not checked. None: zeros.
      g_gamma: float32 [H], <= 0: a constant log decay of each head, added to g. None: zeros; with neither nothing is forgotten.
      initial_state: float32 [B, H, K, V], with cu_seqlens [N, H, K, V]; None: zeros.
      cu_seqlens: int32 (or int64) [N + 1], traced: N sequences packed along T (then B = 1), rising from 0 to at most T. Sequence n has rows
        cu_seqlens[n] up to cu_seqlens[n + 1]; it may be empty. Rows after the last boundary are padding: o and gradients are 0 there, whatever
        they hold. One compilation serves all contents. The values are not checked; they are clipped to 0..T.
      scale: of q; None means K ** -0.5. Static.
      reverse: time runs from the last step to the first, of each sequence. Static.
      axis_name: sequence parallelism inside jax.shard_map: T is split over this mesh axis in its order, shard after shard. q, k, v, g and o are
        the shard's rows; g_gamma, initial_state, final_state and cu_seqlens (boundaries in the whole of T) are whole, the same on every shard.
        Values and gradients are those of one device, with one exchange of states and decays a pass. Static.
      backend: None picks for the platform lowered for; "xla" or "pallas_tpu" insists.
      interpret: True or a pltpu.InterpretParams runs the Pallas kernel in its interpreter, on any platform (for tests).
    Returns: (o [B, T, HQ, V] in q's dtype, final_state float32 like initial_state: the state after the last step in the order of time; an
      empty sequence's is its initial state). Always both.
    Raises: ValueError or TypeError naming the argument that breaks the contract, or an axis_name that no shard_map binds; ValueError, when the call is lowered, for a
      `backend` that has no kernel for the platform.
    Differentiable in q, k, v, g, g_gamma and initial_state (reverse mode), for cotangents of both outputs; gradients come in their dtypes. Nothing
    but the inputs is kept: states are computed again, one a chunk.
    """
    params = {"scale": scale, "reverse": reverse, "axis_name": axis_name}
    arrays = {
        "q": q,
        "k": k,
        "v": v,
        "g": g,
        "g_gamma": g_gamma,
        "initial_state": initial_state,
        "cu_seqlens": cu_seqlens,
    }
    return call(_simple_gla, "simple_gla", arrays, params, backend, interpret)  # type: ignore[no-any-return]  # jit loses the type


@dataclasses.dataclass(frozen=True, slots=True)
class _Static:
    """What a call fixes at trace time."""

    scale: float
    reverse: bool
    backend: str | None
    interpret: Any
    override: Override
    signature: Signature | None

    def dispatch(self, which: str, *arrays: Any) -> Any:
        """Pass `which`, "fwd" or "vjp", by the implementation for the platform."""
        values: dict[str, Any] = {"scale": self.scale, "reverse": self.reverse}
        config = configured("simple_gla", self.signature, self.override, which, self.backend, self.interpret, CONFIGS)

        def on_tpu(*arrays: Any) -> Any:
            from tops_kernels.ops.simple_gla import pallas_tpu  # Pallas takes longer to import than all of this package

            run = pallas_tpu.simple_gla_fwd if which == "fwd" else pallas_tpu.simple_gla_bwd
            # Where jax_enable_x64 is on, the indices of loops and the numbers in a kernel would have 64 bits, and Mosaic takes none.
            with jax.enable_x64(False):
                return run(*arrays, **values, config=config["pallas_tpu"], interpret=self.interpret)

        plain: Implementation = xla.simple_gla_fwd if which == "fwd" else xla.simple_gla_bwd
        implementations: dict[str, Implementation] = {
            "xla": functools.partial(plain, **values),
            "pallas_tpu": on_tpu,
        }
        return dispatch("simple_gla", self.backend, self.interpret, implementations, *arrays)


@functools.partial(jax.jit, static_argnames=("scale", "reverse", "axis_name", "backend", "interpret", "override"))
def _simple_gla(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    g_gamma: Any,
    initial_state: Any,
    cu_seqlens: Any,
    *,
    scale: float | None,
    reverse: bool,
    axis_name: str | None,
    backend: str | None,
    interpret: Any,
    override: Override,
) -> Any:
    check_backend("simple_gla", backend, interpret)
    arrays = {
        "q": q,
        "k": k,
        "v": v,
        "g": g,
        "g_gamma": g_gamma,
        "initial_state": initial_state,
        "cu_seqlens": cu_seqlens,
    }
    arrays = declared("simple_gla", arrays)
    cu_seqlens = arrays["cu_seqlens"]
    bound = check("simple_gla", arrays, {"scale": scale, "reverse": reverse, "axis_name": axis_name})
    if k.shape[0] == 0:  # no batch: nothing to attend to
        outputs = bound.outputs()
        return tuple(jnp.zeros(spec.shape, spec.dtype) for spec in outputs.values())
    factor = float(str(bound.params["scale"]))
    static = _Static(factor, bool(reverse), backend, interpret, override, signature(bound, arrays))
    if axis_name is None:
        return _attend(static, *alike(*arrays.values()))

    from tops_kernels.ops.gla import sequence  # few calls need it

    shared = {"g_gamma": g_gamma, "initial_state": initial_state, "cu_seqlens": cu_seqlens}
    check_axis("simple_gla", axis_name, shared)
    return sequence.attend(_Shard(static, axis_name), (q, k, v, g, g_gamma), initial_state, cu_seqlens)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: _Static, *arrays: Any) -> Any:
    return static.dispatch("fwd", *arrays)


def _attend_fwd(static: _Static, *arrays: Any) -> Any:
    q, k, v, g, *rest = arrays
    kept = [None if x is None else named(x, f"simple_gla.{name}") for x, name in zip((q, k, v, g), "qkvg", strict=True)]
    return _attend(static, *arrays), (*kept, *rest)


def _attend_bwd(static: _Static, residuals: Any, cotangents: Any) -> Any:
    return (*_attend_grad(static, *residuals, *cotangents), _none_of(residuals[-1]))


_attend.defvjp(_attend_fwd, _attend_bwd)


# A custom_vjp too, so that a second derivative differentiates its XLA form and never a kernel.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_grad(static: _Static, *arrays: Any) -> Any:
    return static.dispatch("vjp", *arrays)


def _attend_grad_fwd(static: _Static, *arrays: Any) -> Any:
    return _attend_grad(static, *arrays), arrays


def _attend_grad_bwd(static: _Static, arrays: Any, cotangents: Any) -> Any:
    *inputs, cu_seqlens, do, dfinal = arrays

    def plain(*parts: Any) -> Any:
        q, k, v, g, g_gamma, initial_state, do, dfinal = parts
        return xla.simple_gla_bwd(
            q, k, v, g, g_gamma, initial_state, cu_seqlens, do, dfinal, scale=static.scale, reverse=static.reverse
        )

    *grads, ddo, ddfinal = jax.vjp(plain, *inputs, do, dfinal)[1](cotangents)
    return (*grads, _none_of(cu_seqlens), ddo, ddfinal)


def _none_of(integers: jax.Array | None) -> Any:
    """The gradient of an integer input."""
    return None if integers is None else np.zeros(integers.shape, jax.dtypes.float0)


_attend_grad.defvjp(_attend_grad_fwd, _attend_grad_bwd)


@dataclasses.dataclass(frozen=True, slots=True)
class _Shard:
    """simple_gla on one shard's rows: the `sequence.Recurrence` of this op."""

    static: _Static
    axis_name: str
    name = "simple_gla"
    inputs = ("q", "k", "v", "g", "g_gamma")

    @property
    def reverse(self) -> bool:
        return self.static.reverse

    def forward(self, floats: Any, initial_state: Any, cu_seqlens: Any) -> Any:
        return _attend(self.static, *alike(*floats, initial_state, cu_seqlens))

    def backward(self, floats: Any, initial_state: Any, cu_seqlens: Any, do: Any, dfinal: Any) -> Any:
        return _attend_grad(self.static, *alike(*floats, initial_state, cu_seqlens, do, dfinal))

    def gates(self, floats: Any) -> Any:
        _, k, _, g, g_gamma = floats
        return (cast(log_decays(g, g_gamma, k.shape[:3]), varying(k))[..., None, None],)

    def end(self, floats: Any, state: Any, rows: Any) -> Any:
        from tops_kernels.ops.simple_gla import edges

        _, k, v, g, g_gamma = floats
        return edges.end(k, v, g, g_gamma, state, rows, reverse=self.reverse)

    def start(self, floats: Any, do: Any, dstate: Any, rows: Any) -> Any:
        from tops_kernels.ops.simple_gla import edges

        q, k, _, g, g_gamma = floats
        scale = self.static.scale
        return edges.start(q, k, g, g_gamma, do, dstate, rows, scale=scale, reverse=self.reverse)
