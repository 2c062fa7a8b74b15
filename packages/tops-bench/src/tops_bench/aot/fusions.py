"""Programs whose XLA fusions are held against XLA's own estimate of them: one of each kind of work."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tops_bench.aot.avals import aval

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def _a(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return aval(shape, dtype)


_F32, _I32 = jnp.float32, jnp.int32
_X = _a(4096, 4096)
_V = _a(4096)


def _softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x.astype(_F32), axis=-1).astype(x.dtype)


def _rms(x: jax.Array, w: jax.Array) -> jax.Array:
    acc = x.astype(_F32)
    return (acc * lax.rsqrt(jnp.mean(acc * acc, -1, keepdims=True) + 1e-6) * w.astype(_F32)).astype(x.dtype)


# kind: program. The kind says what the largest fusion of it does.
FUSIONS: Mapping[str, Program] = {
    "matmul square": (lambda a, b: a @ b, (_X, _X)),
    "matmul gelu": (lambda a, b: jax.nn.gelu(a @ b), (_X, _X)),
    "matmul bias": (lambda a, b, c: a @ b + c, (_X, _X, _V)),
    "matmul tall": (lambda a, b: a @ b, (_a(16384, 512), _a(512, 1024))),
    "matmul deep": (lambda a, b: a @ b, (_a(512, 16384), _a(16384, 512))),
    "matmul batched": (lambda a, b: a @ b, (_a(32, 1024, 128), _a(32, 128, 1024))),
    "matmul float32": (lambda a, b: a @ b, (_a(2048, 2048, dtype=_F32), _a(2048, 2048, dtype=_F32))),
    "matmul vector": (lambda a, b: a @ b, (_a(16, 4096), _X)),
    "elementwise add": (lambda a, b: a + b, (_X, _X)),
    "elementwise silu": (lambda a, b: jax.nn.silu(a) * b, (_X, _X)),
    "elementwise exp": (lambda a: jnp.exp(a.astype(_F32)), (_X,)),
    "elementwise tanh": (lambda a: jnp.tanh(a), (_a(4096, 4096, dtype=_F32),)),
    "elementwise int32": (lambda a, b: (a * b) ^ (a + b), (_a(4096, 4096, dtype=_I32), _a(4096, 4096, dtype=_I32))),
    "cast": (lambda a: a.astype(_F32), (_X,)),
    "reduce rows": (lambda a: jnp.sum(a.astype(_F32), -1), (_X,)),
    "reduce columns": (lambda a: jnp.sum(a.astype(_F32), 0), (_X,)),
    "reduce max": (lambda a: jnp.max(a, -1), (_X,)),
    "reduce all": (lambda a: jnp.sum(a.astype(_F32)), (_X,)),
    "softmax": (_softmax, (_X,)),
    "rms_norm": (_rms, (_X, _V)),
    "rms_norm small rows": (_rms, (_a(131072, 128), _a(128))),
    "transpose": (lambda a: a.T + 1, (_X,)),
    "broadcast": (lambda a, b: a[:, None] * b[None, :], (_V, _V)),
    "select": (lambda a, b: jnp.where(a > b, a, b * 2), (_X, _X)),
    "concatenate": (lambda a, b: jnp.concatenate([a, b], 1) * 2, (_X, _X)),
    "slice": (lambda a: a[128:3968, 256:3840] + 1, (_X,)),
    "convolution": (
        lambda a, b: lax.conv_general_dilated(a, b, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (_a(8, 64, 64, 256), _a(3, 3, 256, 256)),
    ),
}
