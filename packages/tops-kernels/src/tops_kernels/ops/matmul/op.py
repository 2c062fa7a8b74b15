"""matmul: public function, argument checks, dispatch, and the tie between forward and backward."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from tops_kernels.ops.matmul import xla
from tops_kernels.ops.matmul._pallas_gpu_config import MatmulGpuConfig
from tops_kernels.ops.matmul.config import MatmulTpuConfig
from tops_kernels.ops.matmul.epilogue import slope
from tops_kernels.runtime.arguments import check, check_backend
from tops_kernels.runtime.call import call
from tops_kernels.runtime.dispatch import Implementation, dispatch
from tops_kernels.runtime.manual import alike
from tops_kernels.runtime.overrides import Override
from tops_kernels.runtime.residuals import named
from tops_kernels.runtime.signature import Signature, signature
from tops_kernels.runtime.tuned import Config, configured

CONFIGS: dict[str, type[Config]] = {"pallas_tpu": MatmulTpuConfig, "pallas_gpu": MatmulGpuConfig}


def matmul(
    a: jax.Array,  # [*B, M, K]
    b: jax.Array,  # [K, N] or [*B, K, N]
    bias: jax.Array | None = None,  # [N]
    *,
    activation: str = "none",
    out_dtype: str | None = None,
    backend: str | None = None,
    interpret: Any = False,
) -> jax.Array:
    """Matrix product with an epilogue (BLAS level 3 gemm; gelu: arXiv:1606.08415 section 2; silu: arXiv:1702.03118).

        y = activation(a @ b + bias)

    Accumulated in float32 (int8: int32); bias and activation are applied to the sum, which is rounded once. float32 operands are
    multiplied as float32 on every platform.

    Args:
      a: float32, bfloat16 or int8 [*B, M, K]; any leading batch dimensions.
      b: a's dtype, [K, N]: one for the whole batch, or [*B, K, N]: one each.
      bias: [N] in a's dtype (int8: int32); None adds nothing.
      activation: "none", "relu", "gelu" (tanh form) or "silu"; not for int8. Static.
      out_dtype: "float32", "bfloat16" or "int32" (int8 operands alone); None means a's dtype (int8: int32). Static.
      backend: None picks for the platform lowered for; "xla", "pallas_tpu" or "pallas_gpu" insists.
      interpret: True or a pltpu.InterpretParams runs the Pallas kernel in its interpreter, on any platform (for tests);
        the TPU's unless `backend` says another.
    Returns: y [*B, M, N] in out_dtype.
    Raises: ValueError or TypeError naming the argument that breaks the contract; ValueError, when the call is lowered, for a
      `backend` that has no kernel for the platform.
    Differentiable in a, b and bias (reverse mode), which get gradients in their own dtypes. With an activation, the backward pass
    keeps the float32 sum [*B, M, N] before it, under the name "matmul.z" for checkpoint policies.
    """
    params = {"activation": activation, "out_dtype": out_dtype}
    return call(_matmul, "matmul", {"a": a, "b": b, "bias": bias}, params, backend, interpret)  # type: ignore[no-any-return]  # jit loses the type


@dataclasses.dataclass(frozen=True, slots=True)
class _Static:
    """What a call fixes at trace time."""

    activation: str
    out_dtype: str
    backend: str | None
    interpret: Any
    override: Override
    signature: Signature | None

    def dispatch(self, which: str, name: str, values: dict[str, Any], *arrays: Any) -> Any:
        """Function `name` of each implementation's module. `which`: the pass whose configuration may be overridden."""

        config = configured("matmul", self.signature, self.override, which, self.backend, self.interpret, CONFIGS)

        def on_tpu(*arrays: Any) -> Any:
            from tops_kernels.ops.matmul import pallas_tpu  # Pallas takes longer to import than all of this package

            run = getattr(pallas_tpu, name)
            return run(*arrays, **values, config=config["pallas_tpu"], interpret=self.interpret)

        def on_gpu(*arrays: Any) -> Any:
            from tops_kernels.ops.matmul import pallas_gpu  # likewise

            run = getattr(pallas_gpu, name)
            return run(*arrays, **values, config=config["pallas_gpu"], interpret=self.interpret)

        implementations: dict[str, Implementation] = {
            "xla": functools.partial(getattr(xla, name), **values),
            "pallas_tpu": on_tpu,
            "pallas_gpu": on_gpu,
        }
        return dispatch("matmul", self.backend, self.interpret, implementations, *arrays)


@functools.partial(jax.jit, static_argnames=("activation", "out_dtype", "backend", "interpret", "override"))
def _matmul(
    a: Any,
    b: Any,
    bias: Any,
    *,
    activation: str,
    out_dtype: str | None,
    backend: str | None,
    interpret: Any,
    override: Override,
) -> Any:
    check_backend("matmul", backend, interpret)
    given = {"a": a, "b": b, "bias": bias}
    bound = check("matmul", given, {"activation": activation, "out_dtype": out_dtype})
    out = bound.outputs()["y"].dtype
    static = _Static(activation, out, backend, interpret, override, signature(bound, given))
    arrays = alike(a, b, bias)
    if jnp.issubdtype(a.dtype, jnp.integer):
        return _forward(static, *arrays, keep=False)[0]  # no gradient: nothing to tie
    return _product(static, *arrays)


def _forward(static: _Static, a: jax.Array, b: jax.Array, bias: jax.Array | None, *, keep: bool) -> Any:
    values = {"activation": static.activation, "out_dtype": static.out_dtype, "keep": keep}
    return static.dispatch("fwd", "matmul_fwd", values, a, b, bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(static: _Static, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> Any:
    return _forward(static, a, b, bias, keep=False)[0]


def _product_fwd(static: _Static, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> Any:
    if static.activation == "none":
        return _product(static, a, b, bias), (a, b, bias, None)
    y, z = _kept(static, a, b, bias)
    return y, (a, b, bias, named(z, "matmul.z"))


def _product_bwd(static: _Static, residuals: Any, dy: jax.Array) -> Any:
    a, b, bias, z = residuals
    dz = dy.astype(jnp.float32)
    if z is not None:
        dz = dz * slope(z, static.activation)
    dbias = None if bias is None else jnp.sum(dz, axis=tuple(range(dz.ndim - 1))).astype(bias.dtype)
    # The gradients are products in the operands' dtype, as the forward pass is: bfloat16 units take bfloat16.
    dz = dz.astype(a.dtype)
    return _da(static, dz, b), _db(static, a, dz, b.ndim < a.ndim), dbias


_product.defvjp(_product_fwd, _product_bwd)


# Each is a custom_vjp too, so that a second derivative differentiates its XLA form and never a kernel.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _kept(static: _Static, a: jax.Array, b: jax.Array, bias: jax.Array | None) -> Any:
    """(y, z): the result, and the sum before the activation."""
    return _forward(static, a, b, bias, keep=True)


def _kept_fwd(static: _Static, *arrays: Any) -> Any:
    return _kept(static, *arrays), arrays


def _kept_bwd(static: _Static, arrays: Any, cotangents: Any) -> Any:
    plain = functools.partial(xla.matmul_fwd, activation=static.activation, out_dtype=static.out_dtype, keep=True)
    return jax.vjp(plain, *arrays)[1](cotangents)


_kept.defvjp(_kept_fwd, _kept_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _da(static: _Static, dz: jax.Array, b: jax.Array) -> Any:
    return static.dispatch("vjp", "matmul_da", {"out_dtype": str(dz.dtype)}, dz, b)


def _da_fwd(static: _Static, dz: jax.Array, b: jax.Array) -> Any:
    return _da(static, dz, b), (dz, b)


def _da_bwd(static: _Static, arrays: Any, cotangent: jax.Array) -> Any:
    dz, b = arrays
    return jax.vjp(functools.partial(xla.matmul_da, out_dtype=dz.dtype), dz, b)[1](cotangent)


_da.defvjp(_da_fwd, _da_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def _db(static: _Static, a: jax.Array, dz: jax.Array, shared: bool) -> Any:
    return static.dispatch("vjp", "matmul_db", {"shared": shared, "out_dtype": str(a.dtype)}, a, dz)


def _db_fwd(static: _Static, a: jax.Array, dz: jax.Array, shared: bool) -> Any:
    return _db(static, a, dz, shared), (a, dz)


def _db_bwd(static: _Static, shared: bool, arrays: Any, cotangent: jax.Array) -> Any:
    a, dz = arrays
    return jax.vjp(functools.partial(xla.matmul_db, shared=shared, out_dtype=a.dtype), a, dz)[1](cotangent)


_db.defvjp(_db_fwd, _db_bwd)
