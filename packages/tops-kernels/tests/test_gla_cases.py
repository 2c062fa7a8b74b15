"""Inputs on which other libraries of gated linear attention failed, and what must hold of them here."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels

HOW = [
    pytest.param({"backend": "xla"}, id="xla"),
    pytest.param({"backend": "pallas_tpu", "interpret": True}, id="interpreted", marks=pytest.mark.slow),
]
FAST = {"xla_backend_optimization_level": 0}  # compiling is what takes the time
LIMITS = {"float32": 2e-6, "bfloat16": 4e-3}


def draw(
    t: int, *, b: int = 1, hq: int = 2, h: int = 2, k: int = 16, v: int = 16, dtype: Any = np.float32
) -> list[Any]:
    """q, k, v, g."""
    random = np.random.default_rng(t)
    shapes = (b, t, hq, k), (b, t, h, k), (b, t, h, v)
    q, key, value = (np.array(jnp.asarray(random.standard_normal(shape), dtype)) for shape in shapes)
    return [q, key, value, -0.1 * random.exponential(size=key.shape).astype(np.float32)]


def recurrence(q: Any, k: Any, v: Any, g: Any, state: Any) -> tuple[Any, Any]:
    """The definition in float64, for one batch entry without grouped heads: [T, H, ..] -> o, state."""
    q, k, v, g, state = (np.asarray(x, np.float64) for x in (q, k, v, g, state))
    o = np.zeros(v.shape)
    for t in range(len(q)):
        state = np.exp(g[t])[..., None] * state + k[t][..., None] * v[t][:, None]
        o[t] = q.shape[-1] ** -0.5 * np.einsum("hk,hkv->hv", q[t], state)
    return o, state


def passes(how: dict[str, Any]) -> Any:
    """(cotangents, integers, *floats) -> outputs and gradients of floats, compiled; floats after g: initial_state."""

    def run(cotangents: Any, cu_seqlens: Any, *floats: Any) -> Any:
        def forward(q: Any, k: Any, v: Any, g: Any, state: Any = None) -> Any:
            return tops_kernels.gla(q, k, v, g, state, cu_seqlens, **how)

        outputs, pull = jax.vjp(forward, *floats)
        return outputs, pull(cotangents)

    return jax.jit(run, compiler_options=FAST)


def cotangents(outputs: Any) -> Any:
    random = np.random.default_rng(5)
    return tuple(jnp.asarray(random.standard_normal(x.shape), x.dtype) for x in outputs)


def off(got: Any, want: Any) -> float:
    return float(np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gates_of_minus_6_minus_20_and_minus_1000_give_the_recurrence(
    how: dict[str, Any], dtype: str
) -> None:  # case 3
    *inputs, g = draw(129, dtype=dtype)
    one, half = np.zeros_like(g), np.zeros_like(g)
    one[:, 5] = half[np.random.default_rng(0).random(g.shape) < 0.5] = -1000
    state = np.zeros((1, 2, 16, 16), np.float32)
    run, given = passes(how), cotangents((inputs[2], state))
    for gates in (np.full_like(g, -6), np.full_like(g, -20), one, half):
        (o, final), gradients = run(given, None, *inputs, gates)
        want = recurrence(*(x[0] for x in (*inputs, gates, state)))
        assert off(o[0], want[0]) <= LIMITS[dtype]
        assert off(final[0], want[1]) <= LIMITS[dtype]
        assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in gradients)


@pytest.mark.parametrize("how", HOW)
def test_empty_packed_sequences_keep_their_state_bit_for_bit_and_others_are_alone(
    how: dict[str, Any],
) -> None:  # case 10
    inputs, run = draw(256), passes(how)
    states = np.random.default_rng(1).standard_normal((3, 2, 16, 16)).astype(np.float32)
    given = cotangents((inputs[2], states))
    for bounds in ([0, 128, 128, 256], [0, 0, 64, 64], [0, 0, 0, 0]):
        (o, final), gradients = run(given, jnp.array(bounds, jnp.int32), *inputs, states)
        for n, (a, b) in enumerate(itertools.pairwise(bounds)):
            if a == b:
                np.testing.assert_array_equal(final[n], states[n])
                np.testing.assert_array_equal(gradients[4][n], given[1][n])
                continue
            want = recurrence(*(x[0, a:b] for x in inputs), states[n])
            assert off(o[0, a:b], want[0]) <= LIMITS["float32"]
            assert off(final[n], want[1]) <= LIMITS["float32"]
    from_nothing = jax.jit(functools.partial(tops_kernels.gla, **how), compiler_options=FAST)
    _, final = from_nothing(*inputs, None, jnp.array([0, 128, 128, 256], jnp.int32))
    np.testing.assert_array_equal(final[1], 0 * states[1])


def test_no_steps_at_all_are_refused_with_the_least_number_of_them() -> None:  # case 10
    x = jnp.zeros((1, 0, 1, 4))
    with pytest.raises(ValueError, match=r"^gla: \w+ .*T >= 1"):
        tops_kernels.gla(x, x, x, x)


@pytest.mark.parametrize("how", HOW)
def test_nan_in_padding_rows_is_zero_in_every_output_and_gradient(how: dict[str, Any]) -> None:  # case 11
    inputs, bounds = draw(192), jnp.array([0, 130], jnp.int32)
    do, dfinal = cotangents((inputs[2], np.zeros((1, 2, 16, 16), np.float32)))
    run = passes(how)
    clean = run((do.at[:, 130:].set(1.0), dfinal), bounds, *inputs)
    for x in inputs:
        x[:, 130:] = np.nan
    (o, final), gradients = run((do.at[:, 130:].set(jnp.nan), dfinal), bounds, *inputs)
    for got, want in zip((o, *gradients), (clean[0][0], *clean[1]), strict=True):
        np.testing.assert_array_equal(got[:, 130:], 0 * want[:, 130:])
        np.testing.assert_array_equal(got[:, :130], want[:, :130])
    np.testing.assert_array_equal(final, clean[0][1])


@pytest.mark.parametrize(("hq", "h"), [(3, 2), (33, 2), (4, 0)])
def test_query_heads_that_key_heads_do_not_divide_are_refused_with_both_numbers(hq: int, h: int) -> None:  # case 15
    q, k = jnp.ones((1, 2, hq, 4)), jnp.ones((1, 2, h, 4))
    with pytest.raises(ValueError, match=rf"^gla: .*\b{hq if h else h}\b.*") as caught:
        tops_kernels.gla(q, k, k, -k)
    assert str(h) in str(caught.value)


def test_query_heads_repeat_key_heads_and_do_not_tile_them() -> None:  # case 15
    q, k = jnp.ones((1, 1, 4, 1)), jnp.ones((1, 1, 2, 1))
    v = jnp.arange(2.0).reshape(1, 1, 2, 1)
    o, _ = tops_kernels.gla(q, k, v, 0 * k, scale=1.0, backend="xla")
    np.testing.assert_array_equal(o.reshape(-1), [0, 0, 1, 1])


def test_boundaries_have_a_gradient_of_no_type_also_when_used_twice() -> None:  # case 19
    q, k, v, g = draw(5)
    bounds = jnp.array([0, 2, 5], jnp.int32)

    def loss(bounds: Any, q: Any) -> Any:
        first = tops_kernels.gla(q, k, v, g, cu_seqlens=bounds, backend="xla")[0]
        return tops_kernels.gla(first, k, v, g, cu_seqlens=bounds, backend="xla")[0].sum()

    of_bounds, of_q = jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True), compiler_options=FAST)(bounds, q)
    assert (of_bounds.shape, of_bounds.dtype) == (bounds.shape, jax.dtypes.float0)
    assert np.isfinite(of_q).all()
    assert np.asarray(of_q).any()


def test_x64_changes_nothing_and_numbers_of_64_bits_are_refused() -> None:  # case 20
    x = jnp.ones((2, 49, 8, 64), jnp.bfloat16)
    g = jnp.full(x.shape, -0.1, jnp.float32)
    run = jax.jit(functools.partial(tops_kernels.gla, backend="xla"), compiler_options=FAST)
    narrow = run(x, x, x, g)
    with jax.enable_x64(True):
        wide = run(x, x, x, g)
        for one, other in zip(narrow, wide, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))
        with pytest.raises(ValueError, match=r"^gla: g has dtype float64; expected float32"):
            tops_kernels.gla(x[:1], x[:1], x[:1], np.asarray(g, np.float64)[:1])


@pytest.mark.parametrize("op", ["gla", "simple_gla"])
def test_boundaries_of_64_bits_are_those_of_32(op: str) -> None:  # case 20
    q, k, v, g = draw(49)
    g = g if op == "gla" else g[..., 0]

    def both(q: Any, g: Any, bounds: Any) -> Any:
        outputs, pull = jax.vjp(lambda q, g: getattr(tops_kernels, op)(q, k, v, g, cu_seqlens=bounds), q, g)
        return outputs, pull(jax.tree.map(jnp.ones_like, outputs))

    run = jax.jit(both, compiler_options=FAST)
    bounds, to_the_end, far = np.array([0, 5, 5, 40]), np.array([0, 5, 5, 49]), np.array([0, 5, 5, 2**32 + 40])
    expected, expected_far = (run(q, g, x.astype(np.int32)) for x in (bounds, to_the_end))
    with jax.enable_x64(True):
        jax.tree.map(np.testing.assert_array_equal, run(q, g, bounds), expected)
        jax.tree.map(
            np.testing.assert_array_equal, run(q, g, far), expected_far
        )  # past T is clipped to T, and never wrapped


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_kernels_are_lowered_with_x64_on(dtype: str) -> None:  # case 20
    x, g = jnp.ones((1, 49, 2, 64), dtype), jnp.full((1, 49, 2, 64), -0.1)

    def gradients(x: Any, g: Any, bounds: Any) -> Any:
        outputs, pull = jax.vjp(lambda x, g: tops_kernels.gla(x, x, x, g, None, bounds, backend="pallas_tpu"), x, g)
        return pull(jax.tree.map(jnp.ones_like, outputs))

    with jax.enable_x64(True):
        for bounds in (None, jnp.array([0, 5, 49], jnp.int32)):
            jax.jit(gradients).trace(x, g, bounds).lower(lowering_platforms=("tpu",))


def test_gradients_through_checkpoint_and_a_scan_over_layers_are_those_without() -> None:  # cases 21, 22
    q, k, v, g = draw(17, b=3, hq=5, h=5, k=19, v=19, dtype="bfloat16")
    layers = jnp.asarray(np.random.default_rng(3).standard_normal((3, 19)), jnp.bfloat16)

    def layer(x: Any, weight: Any) -> Any:
        return tops_kernels.gla(x * weight, k, v, g, backend="xla")[0]

    def loss(keep: Any, loop: bool, q: Any, layers: Any) -> Any:
        if loop:
            q, _ = jax.lax.scan(lambda x, weight: (keep(layer)(x, weight), None), q, layers)
        else:
            for weight in layers:
                q = keep(layer)(q, weight)
        return jnp.sum(q.astype(jnp.float32) ** 2)

    named = functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("gla.q"))
    found = [
        jax.jit(jax.grad(functools.partial(loss, keep, loop), argnums=(0, 1)), compiler_options=FAST)(q, layers)
        for keep, loop in ((lambda f: f, False), (named, True))
    ]
    for plain, other, like in zip(*found, (q, layers), strict=True):
        assert plain.dtype == other.dtype == like.dtype
        assert other.shape == like.shape
        assert off(other, np.asarray(plain, np.float64)) < 1e-2


def test_operands_of_two_dtypes_and_a_scale_that_is_an_array_are_refused() -> None:  # case 22
    q, k, v, g = draw(3)
    with pytest.raises(ValueError, match=r"^gla: k has dtype float32; expected bfloat16"):
        tops_kernels.gla(jnp.asarray(q, jnp.bfloat16), k, v, g)
    with pytest.raises(TypeError, match=r"^gla: scale is of type .*; expected .*static"):
        tops_kernels.gla(q, k, v, g, scale=jnp.ones(()))  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("how", HOW)
def test_a_loss_of_the_final_state_alone_reaches_gates_and_the_initial_state(how: dict[str, Any]) -> None:  # case 28
    one = jnp.ones((1, 2, 1, 1))
    g = jnp.array([-0.5, -0.25]).reshape(one.shape)
    state = jnp.ones((1, 1, 1, 1))
    _, (dq, _, _, dg, dstate) = passes(how)((0 * one, state), None, one, one, one, g, state)
    np.testing.assert_array_equal(dq, 0 * one)
    np.testing.assert_allclose(dg.reshape(-1), [0.472367, 1.251167], rtol=1e-6)
    np.testing.assert_allclose(dstate.reshape(-1), [0.472367], rtol=1e-6)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("t", [63, 65, 500])
def test_the_final_state_is_the_recurrences_where_t_is_no_whole_number_of_chunks(
    how: dict[str, Any], t: int
) -> None:  # case 28
    inputs = draw(t)
    run = jax.jit(functools.partial(tops_kernels.gla, **how), compiler_options=FAST)
    _, final = run(*inputs)
    want = recurrence(*(x[0] for x in inputs), np.zeros((2, 16, 16)))
    assert off(final[0], want[1]) <= LIMITS["float32"]


def test_gates_above_0_give_the_recurrence_as_long_as_float32_holds_it() -> None:
    *inputs, g = draw(64)
    up, turning = np.full_like(g, 0.7), np.zeros_like(g)  # sums of 22 a half; sums of 0 a half, but 48 in between
    turning[:, :16], turning[:, 16:32] = 3, -3
    state = np.ones((1, 2, 16, 16), np.float32)
    run, given = passes({"backend": "xla"}), cotangents((inputs[2], state))
    for gates in (up, turning):
        (o, final), _ = run(given, None, *inputs, gates, state)
        expected, expected_final = recurrence(*(x[0] for x in (*inputs, gates)), state[0])
        assert off(o[0], expected) < 1e-5  # what rounding grows with a state
        assert off(final[0], expected_final) < 1e-5  # what rounding grows with a state


def test_gradients_under_vmap_are_those_of_each_call() -> (
    None
):  # sums over products of seven dimensions crashed XLA:CPU
    q, k, v, g = (np.concatenate([x, x[:, ::-1]])[:, None] for x in draw(33))

    def gradients(*arrays: Any) -> Any:
        return jax.grad(lambda *a: jnp.sum(tops_kernels.gla(*a, backend="xla")[0] ** 2), (0, 1, 2, 3))(*arrays)

    each = jax.jit(gradients)
    want = [each(*(x[i] for x in (q, k, v, 20 * g))) for i in range(2)]
    for got, *ones in zip(jax.jit(jax.vmap(gradients))(q, k, v, 20 * g), *want, strict=True):
        assert off(got, np.stack(ones)) <= LIMITS["float32"]
