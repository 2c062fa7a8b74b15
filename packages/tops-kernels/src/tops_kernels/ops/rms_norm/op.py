"""rms_norm and add_rms_norm: public functions, argument checks, dispatch, and the tie between forward and backward."""

import dataclasses
import functools
from typing import Any

import jax

from tops_kernels.ops.rms_norm import xla
from tops_kernels.ops.rms_norm._pallas_gpu_config import RmsNormGpuConfig
from tops_kernels.ops.rms_norm.config import RmsNormTpuConfig
from tops_kernels.runtime.arguments import check, check_backend
from tops_kernels.runtime.call import call
from tops_kernels.runtime.dispatch import Implementation, dispatch
from tops_kernels.runtime.manual import alike
from tops_kernels.runtime.overrides import Override
from tops_kernels.runtime.residuals import named
from tops_kernels.runtime.signature import Signature, signature
from tops_kernels.runtime.tuned import Config, configured

CONFIGS: dict[str, type[Config]] = {"pallas_tpu": RmsNormTpuConfig, "pallas_gpu": RmsNormGpuConfig}


def rms_norm(
    x: jax.Array,  # [*B, D]
    scale: jax.Array | None = None,  # [D]
    *,
    eps: float = 1e-6,
    scale_offset: float = 0.0,
    backend: str | None = None,
    interpret: Any = False,
) -> jax.Array:
    """Root mean square norm over the last axis (arXiv:1910.07467, eq. 4).

        y = x / sqrt(mean(x^2) + eps) * (scale + scale_offset)

    Computed in float32 and rounded once.

    Args:
      x: float32 or bfloat16 [*B, D], any number of leading dimensions, any sizes; D >= 1.
      scale: float32 or bfloat16 [D]; None means ones, and scale_offset is not added.
      eps: >= 0, added to the mean square. Static.
      scale_offset: 1.0 for models that store scale - 1 (Gemma). Static.
      backend: None picks for the platform lowered for; "xla", "pallas_tpu" or "pallas_gpu" insists.
      interpret: True or a pltpu.InterpretParams runs the Pallas kernel in its interpreter, on any platform (for tests);
        the TPU's unless `backend` says another.
    Returns: y [*B, D] in x's dtype.
    Raises: ValueError or TypeError naming the argument that breaks the contract; ValueError, when the call is lowered, for a
      `backend` that has no kernel for the platform.
    Differentiable in x and scale (reverse mode); gradients come in their dtypes.
    """
    params = {"eps": eps, "scale_offset": scale_offset}
    return call(_rms_norm, "rms_norm", {"x": x, "scale": scale}, params, backend, interpret)  # type: ignore[no-any-return]  # jit loses the type


def add_rms_norm(
    x: jax.Array,  # [*B, D]
    residual: jax.Array,  # [*B, D]
    scale: jax.Array | None = None,  # [D]
    *,
    eps: float = 1e-6,
    scale_offset: float = 0.0,
    backend: str | None = None,
    interpret: Any = False,
) -> tuple[jax.Array, jax.Array]:
    """Residual sum and its root mean square norm, in one pass over memory (arXiv:1910.07467, eq. 4).

        h = x + residual        y = h / sqrt(mean(h^2) + eps) * (scale + scale_offset)

    The sum is taken and normed in float32; y and new_residual are each rounded once.

    Args:
      x: float32 or bfloat16 [*B, D]: what the block before gave.
      residual: [*B, D] in x's dtype: the residual stream.
      scale: float32 or bfloat16 [D]; None means ones, and scale_offset is not added.
      eps: >= 0, added to the mean square. Static.
      scale_offset: 1.0 for models that store scale - 1 (Gemma). Static.
      backend: None picks for the platform lowered for; "xla", "pallas_tpu" or "pallas_gpu" insists.
      interpret: True or a pltpu.InterpretParams runs the Pallas kernel in its interpreter, on any platform (for tests);
        the TPU's unless `backend` says another.
    Returns: (y, new_residual), both [*B, D] in x's dtype. Always both.
    Raises: ValueError or TypeError naming the argument that breaks the contract; ValueError, when the call is lowered, for a
      `backend` that has no kernel for the platform.
    Differentiable in x, residual and scale (reverse mode), for cotangents of both outputs. The backward pass keeps x and residual and
    adds them again: from new_residual, which is rounded, the gradient of scale would be off by 2e-3 in bfloat16.
    """
    params = {"eps": eps, "scale_offset": scale_offset}
    arrays = {"x": x, "residual": residual, "scale": scale}
    return call(_add_rms_norm, "add_rms_norm", arrays, params, backend, interpret)  # type: ignore[no-any-return]  # jit loses the type


@dataclasses.dataclass(frozen=True, slots=True)
class _Static:
    """What a call fixes at trace time."""

    op: str
    eps: float
    scale_offset: float
    backend: str | None
    interpret: Any
    override: Override
    signature: Signature | None

    def dispatch(self, which: str, name: str, *arrays: Any) -> Any:
        """Function `name` of each implementation's module. `which`: the pass whose configuration may be overridden."""
        values = {"eps": self.eps, "scale_offset": self.scale_offset}

        config = configured(self.op, self.signature, self.override, which, self.backend, self.interpret, CONFIGS)

        def on_tpu(*arrays: Any) -> Any:
            from tops_kernels.ops.rms_norm import pallas_tpu  # Pallas takes longer to import than all of this package

            run = getattr(pallas_tpu, name)
            return run(*arrays, **values, config=config["pallas_tpu"], interpret=self.interpret)

        def on_gpu(*arrays: Any) -> Any:
            from tops_kernels.ops.rms_norm import pallas_gpu  # likewise

            run = getattr(pallas_gpu, name)
            return run(*arrays, **values, config=config["pallas_gpu"], interpret=self.interpret)

        implementations: dict[str, Implementation] = {
            "xla": functools.partial(getattr(xla, name), **values),
            "pallas_tpu": on_tpu,
            "pallas_gpu": on_gpu,
        }
        return dispatch(self.op, self.backend, self.interpret, implementations, *arrays)


_STATIC_NAMES = ("eps", "scale_offset", "backend", "interpret", "override")


@functools.partial(jax.jit, static_argnames=_STATIC_NAMES)
def _rms_norm(x: Any, scale: Any, **static: Any) -> Any:
    return _norm(_checked("rms_norm", {"x": x, "scale": scale}, **static), *alike(x, scale))


@functools.partial(jax.jit, static_argnames=_STATIC_NAMES)
def _add_rms_norm(x: Any, residual: Any, scale: Any, **static: Any) -> Any:
    arrays = {"x": x, "residual": residual, "scale": scale}
    return _add_norm(_checked("add_rms_norm", arrays, **static), *alike(x, residual, scale))


def _checked(
    op: str,
    arrays: dict[str, Any],
    eps: float,
    scale_offset: float,
    backend: str | None,
    interpret: Any,
    override: Override,
) -> _Static:
    check_backend(op, backend, interpret)
    call = signature(check(op, arrays, {"eps": eps, "scale_offset": scale_offset}), arrays)
    return _Static(op, float(eps), float(scale_offset), backend, interpret, override, call)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm(static: _Static, x: jax.Array, scale: jax.Array | None) -> Any:
    return static.dispatch("fwd", "rms_norm_fwd", x, scale)


def _norm_fwd(static: _Static, x: jax.Array, scale: jax.Array | None) -> Any:
    return _norm(static, x, scale), (named(x, "rms_norm.x"), scale)


def _norm_bwd(static: _Static, residuals: Any, dy: jax.Array) -> Any:
    return _norm_grad(static, *residuals, dy)


_norm.defvjp(_norm_fwd, _norm_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_norm(static: _Static, x: jax.Array, residual: jax.Array, scale: jax.Array | None) -> Any:
    return static.dispatch("fwd", "add_rms_norm_fwd", x, residual, scale)


def _add_norm_fwd(static: _Static, x: jax.Array, residual: jax.Array, scale: jax.Array | None) -> Any:
    kept = named(x, "add_rms_norm.x"), named(residual, "add_rms_norm.residual"), scale
    return _add_norm(static, x, residual, scale), kept


def _add_norm_bwd(static: _Static, residuals: Any, cotangents: Any) -> Any:
    dh, dscale = _add_norm_grad(static, *residuals, *cotangents)
    return dh, dh, dscale


_add_norm.defvjp(_add_norm_fwd, _add_norm_bwd)


# The backward passes are custom_vjps too, so that a second derivative differentiates their XLA form and never a kernel.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm_grad(static: _Static, *arrays: Any) -> Any:
    return static.dispatch("vjp", "rms_norm_bwd", *arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_norm_grad(static: _Static, *arrays: Any) -> Any:
    return static.dispatch("vjp", "add_rms_norm_bwd", *arrays)


def _second(plain: Any, static: _Static, arrays: Any, cotangents: Any) -> Any:
    plain = functools.partial(plain, eps=static.eps, scale_offset=static.scale_offset)
    return jax.vjp(plain, *arrays)[1](cotangents)


_norm_grad.defvjp(
    lambda static, *arrays: (_norm_grad(static, *arrays), arrays), functools.partial(_second, xla.rms_norm_bwd)
)
_add_norm_grad.defvjp(
    lambda static, *arrays: (_add_norm_grad(static, *arrays), arrays), functools.partial(_second, xla.add_rms_norm_bwd)
)
