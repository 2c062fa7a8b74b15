"""Which implementation a call takes: by the platform it is lowered for, never by what this machine has."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tops_kernels import add_rms_norm, gla, gla_step, matmul, rms_norm, simple_gla, simple_gla_step
from tops_kernels.runtime.chip import tracing_for
from tops_kernels.runtime.dispatch import dispatch

# NumPy, not jnp: an array made at import would start a backend while pytest still collects.
X = np.ones((16, 128), np.float32)
CALLS: dict[str, Callable[..., Any]] = {
    "rms_norm": lambda x, **how: rms_norm(x, **how),
    "add_rms_norm": lambda x, **how: add_rms_norm(x, x, **how)[0],
    "matmul": lambda x, **how: matmul(x, x.T, **how),
}
STEPS, TOKEN = (lambda x: x.reshape(1, 8, 2, 128)), (lambda x: x.reshape(8, 2, 128))
INDEX = np.array([3, -1, 0, 1, 2, 5, 4, 9], np.int32)
RECURRENT: dict[str, Callable[..., Any]] = {
    "gla": lambda x, **how: gla(*(STEPS(x),) * 3, -abs(STEPS(x)), **how)[0],
    "simple_gla": lambda x, **how: simple_gla(*(STEPS(x),) * 3, -abs(STEPS(x))[..., 0], **how)[0],
    "gla_step": lambda x, **how: gla_step(*(TOKEN(x),) * 4, np.ones((8, 2, 128, 128), np.float32), INDEX, **how)[0],
    "simple_gla_step": lambda x, **how: simple_gla_step(*(TOKEN(x),) * 3, np.ones((8, 2, 128, 128), np.float32), **how)[
        0
    ],
}  # their kernels are for TPUs
KERNELS = {"pallas_tpu": ("tpu", "tpu_custom_call"), "pallas_gpu": ("cuda", "__gpu$xla.gpu.triton")}
PLATFORMS = ("cpu", "tpu", "cuda")

each_op = pytest.mark.parametrize("op", CALLS)
each_kernel = pytest.mark.parametrize("kernel", KERNELS)


Lowered = Callable[..., str]


@pytest.fixture
def lowered(on: Callable[[str], contextlib.AbstractContextManager[object]]) -> Lowered:
    """lowered(call, platform, **how): the program's text."""

    def lower(call: Callable[..., Any], platform: str, **how: Any) -> str:
        with on(platform):
            return jax.jit(lambda x: call(x, **how)).trace(X).lower(lowering_platforms=(platform,)).as_text()

    return lower


@each_op
@pytest.mark.parametrize("platform", PLATFORMS)
def test_lowered_for_a_platform_its_own_kernel_is_inside_and_no_other(op: str, platform: str, lowered: Lowered) -> None:
    text = lowered(CALLS[op], platform)
    for where, mark in KERNELS.values():
        assert (mark in text) == (where == platform)


@each_op
@each_kernel
def test_the_gradient_takes_kernels_too(op: str, kernel: str, lowered: Lowered) -> None:
    platform, mark = KERNELS[kernel]
    gradient = jax.value_and_grad(lambda x, **how: CALLS[op](x, **how).sum())
    assert lowered(gradient, platform).count(mark) >= 2  # forward and backward
    assert mark not in lowered(gradient, "cpu")


@pytest.mark.parametrize("op", [*CALLS, *RECURRENT])
def test_x64_keeps_no_platform_from_its_kernel(op: str, lowered: Lowered) -> None:
    call = (CALLS | RECURRENT)[op]
    gradient = jax.value_and_grad(lambda x, **how: call(x, **how).sum())
    with jax.enable_x64(True):
        for platform, mark in KERNELS.values():
            assert (mark in lowered(gradient, platform)) == (op in CALLS or platform == "tpu")


@each_op
def test_forced_to_xla_there_is_no_kernel_on_any_platform(op: str, lowered: Lowered) -> None:
    for platform in PLATFORMS:
        text = lowered(CALLS[op], platform, backend="xla")
        assert not any(mark in text for _, mark in KERNELS.values())


@each_op
@each_kernel
def test_forced_to_a_kernel_it_lowers_for_its_platform_and_for_nothing_else(
    op: str, kernel: str, lowered: Lowered
) -> None:
    own, mark = KERNELS[kernel]
    assert mark in lowered(CALLS[op], own, backend=kernel)
    for platform in set(PLATFORMS) - {own}:
        says = f"^{op}: backend='{kernel}' has no kernel for {platform}; expected a program lowered for {own}"
        with pytest.raises(ValueError, match=says):
            lowered(CALLS[op], platform, backend=kernel)


@each_op
def test_one_export_for_two_platforms_takes_the_xla_backend(op: str) -> None:
    """JAX lowers each branch for every platform of such an export, and Pallas has no code but for its own: docs/dispatch.md."""
    program = jax.jit(lambda x: CALLS[op](x, backend="xla"))
    exported = jax.export.export(program, platforms=("cpu", "tpu"))(X)
    assert exported.platforms == ("cpu", "tpu")
    assert jnp.array_equal(exported.call(X), CALLS[op](X))


@each_op
def test_a_symbolic_batch_takes_xla_and_a_forced_kernel_is_refused(op: str) -> None:
    (rows,) = jax.export.symbolic_shape("b")
    aval = jax.ShapeDtypeStruct((rows, 128), jnp.float32)
    exported = jax.export.export(jax.jit(CALLS[op]), platforms=("tpu",))(aval)
    assert "tpu_custom_call" not in exported.mlir_module()
    with pytest.raises(ValueError, match=f"{op}: backend='pallas_tpu' with a symbolic shape"):
        jax.export.export(jax.jit(lambda x: CALLS[op](x, backend="pallas_tpu")), platforms=("tpu",))(aval)


@each_op
def test_a_forced_kernel_in_a_program_for_two_platforms_is_refused(op: str) -> None:
    with pytest.raises(ValueError, match=f"{op}: backend='pallas_tpu' has no kernel for"):
        jax.export.export(jax.jit(lambda x: CALLS[op](x, backend="pallas_tpu")), platforms=("cpu", "tpu"))(X)


@each_op
@pytest.mark.parametrize(
    "how", [{}, {"backend": "pallas_tpu"}, {"backend": "pallas_gpu"}], ids=lambda how: how.get("backend", "none")
)
def test_interpret_runs_a_kernel_here_and_agrees_with_xla(op: str, how: dict[str, Any]) -> None:
    x = jax.random.normal(jax.random.key(0), X.shape)
    assert jnp.allclose(CALLS[op](x, interpret=True, **how), CALLS[op](x, backend="xla"), rtol=1e-5, atol=1e-5)


@each_op
def test_a_backend_forced_inside_jit_vmap_and_grad_is_still_refused(op: str) -> None:
    def forced(x: Any) -> Any:
        return CALLS[op](x, backend="pallas_tpu")

    vmapped = jax.vmap(forced)
    for wrapped in (jax.jit(forced), vmapped, jax.grad(lambda x: forced(x).sum())):
        with pytest.raises(ValueError, match=f"{op}: backend='pallas_tpu'"):
            wrapped(jnp.ones((1, 4, 4)) if wrapped is vmapped else jnp.ones((4, 4)))


def test_a_kernel_is_traced_under_the_settings_of_its_call_though_lowered_later() -> None:
    seen: list[Any] = []

    def kernel(x: Any) -> Any:
        device = jax.sharding.get_abstract_mesh().abstract_device
        seen.append((device.device_kind, jax.config.jax_default_matmul_precision, jax.config.jax_enable_x64))  # type: ignore[attr-defined]  # jax makes its settings attributes at run time
        return x

    run = {"xla": lambda x: x, "pallas_tpu": kernel}
    with tracing_for("v6e"), jax.default_matmul_precision("float32"), jax.enable_x64(True):
        traced = jax.jit(jax.vmap(lambda x: dispatch("op", None, False, run, x))).trace(X)
    traced.lower(lowering_platforms=("tpu",))
    assert seen == [("TPU v6 lite", "float32", True)]


def test_within_a_vmap_over_something_else_a_call_is_made_once() -> None:
    def scaled(by: jax.Array) -> jax.Array:
        return by * rms_norm(jnp.array(X))

    np.testing.assert_array_equal(jax.vmap(scaled)(jnp.arange(3.0))[2], scaled(jnp.array(2.0)))


def test_a_kernel_that_gives_other_shapes_than_the_xla_path_is_refused_by_name() -> None:
    run: dict[str, Any] = {"xla": lambda x: x, "pallas_tpu": lambda x: x[1:]}
    traced = jax.jit(lambda x: dispatch("op", None, False, run, x)).trace(X)
    with pytest.raises(TypeError, match=r"tpu gives \['float32\[15, 128\]'\]; expected \['float32\[16, 128\]'\]"):
        traced.lower(lowering_platforms=("tpu",))


def test_without_jit_the_path_of_this_machine_runs() -> None:
    with jax.disable_jit():
        assert jnp.allclose(rms_norm(X), rms_norm(X, backend="xla"))


def test_dispatch_asks_for_no_backend_until_it_runs() -> None:
    """Tracing and lowering for a platform this machine does not have touches no device."""
    calls: list[str] = []

    def implementation(name: str) -> Callable[..., Any]:
        return lambda x: calls.append(name) or x * 2

    both = {key: implementation(key) for key in ("xla", "pallas_tpu", "pallas_gpu")}
    traced = jax.jit(lambda x: dispatch("op", None, False, both, x)).trace(X)
    traced.lower(lowering_platforms=("cpu",))
    assert calls == ["xla"]  # no kernel is traced for a program that has none
    traced.lower(lowering_platforms=("tpu",))
    assert calls == ["xla", "pallas_tpu"]
    for backend, interpret, taken in (
        ("xla", False, "xla"),
        (None, True, "pallas_tpu"),
        ("pallas_gpu", True, "pallas_gpu"),
    ):
        calls.clear()
        dispatch("op", backend, interpret, both, X)
        assert calls == [taken]


def test_a_vmap_over_an_axis_between_a_kernels_last_two_lowers(
    on: Callable[[str], contextlib.AbstractContextManager[object]],
) -> None:
    """Mosaic refuses blocks with the mapped axis where x has it."""
    with on("tpu"):
        call = jax.jit(jax.vmap(rms_norm, in_axes=1, out_axes=1)).trace(np.ones((4, 8, 128), np.float32))
        assert "tpu_custom_call" in call.lower(lowering_platforms=("tpu",)).as_text()
