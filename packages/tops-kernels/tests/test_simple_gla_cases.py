"""Inputs on which other libraries of scalar-gated linear attention failed, and what must hold of them here."""

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


def draw(t: int, *, hq: int = 2, h: int = 2, k: int = 16, v: int = 16, dtype: Any = np.float32) -> list[Any]:
    """q, k, v, g."""
    random = np.random.default_rng(t)
    shapes = (1, t, hq, k), (1, t, h, k), (1, t, h, v)
    q, key, value = (np.array(jnp.asarray(random.standard_normal(shape), dtype)) for shape in shapes)
    return [q, key, value, -0.1 * random.exponential(size=(1, t, h)).astype(np.float32)]


def recurrence(q: Any, k: Any, v: Any, g: Any, state: Any) -> tuple[Any, Any]:
    """The definition in float64, for one sequence without grouped heads: [T, H, ..] -> o, state."""
    q, k, v, g, state = (np.asarray(x, np.float64) for x in (q, k, v, g, state))
    o = np.zeros(v.shape)
    for t in range(len(q)):
        state = np.exp(g[t])[:, None, None] * state + k[t][..., None] * v[t][:, None]
        o[t] = q.shape[-1] ** -0.5 * np.einsum("hk,hkv->hv", q[t], state)
    return o, state


def passes(how: dict[str, Any]) -> Any:
    """(cotangents, cu_seqlens, *floats) -> outputs and gradients of floats, compiled; floats: q, k, v, g, initial_state or None."""

    def run(cotangents: Any, cu_seqlens: Any, *floats: Any) -> Any:
        def forward(q: Any, k: Any, v: Any, g: Any, state: Any = None) -> Any:
            return tops_kernels.simple_gla(q, k, v, g, None, state, cu_seqlens, **how)

        outputs, pull = jax.vjp(forward, *floats)
        return outputs, pull(cotangents)

    return jax.jit(run, compiler_options=FAST)


def cotangents(outputs: Any) -> Any:
    random = np.random.default_rng(5)
    return tuple(jnp.asarray(random.standard_normal(x.shape), x.dtype) for x in outputs)


def off(got: Any, want: Any) -> float:
    return float(np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
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


def test_no_steps_at_all_are_refused_with_the_least_number_of_them() -> None:  # case 10
    x = jnp.zeros((1, 0, 1, 4))
    with pytest.raises(ValueError, match=r"^simple_gla: \w+ .*T >= 1"):
        tops_kernels.simple_gla(x, x, x)


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


def test_a_constant_decay_does_not_run_on_through_padding() -> None:  # case 11
    q, k, v, _ = draw(70)
    run = jax.jit(
        lambda q, k, v, bounds: tops_kernels.simple_gla(
            q, k, v, g_gamma=jnp.array([-0.5, -jnp.inf]), cu_seqlens=bounds, backend="xla"
        ),
        compiler_options=FAST,
    )
    for rows in (3, 64, 70):
        _, final = run(q, k, v, np.array([0, rows], np.int32))
        gates = np.broadcast_to([-0.5, -np.inf], (rows, 2))
        want = recurrence(q[0, :rows], k[0, :rows], v[0, :rows], gates, np.zeros((2, 16, 16)))
        assert off(final[0], want[1]) <= LIMITS["float32"]


@pytest.mark.parametrize(("hq", "h"), [(3, 2), (33, 2), (4, 0)])
def test_query_heads_that_key_heads_do_not_divide_are_refused_with_both_numbers(hq: int, h: int) -> None:  # case 15
    q, k = jnp.ones((1, 2, hq, 4)), jnp.ones((1, 2, h, 4))
    with pytest.raises(ValueError, match=rf"^simple_gla: .*\b{hq if h else h}\b.*") as caught:
        tops_kernels.simple_gla(q, k, k)
    assert str(h) in str(caught.value)


def test_query_heads_repeat_key_heads_and_do_not_tile_them() -> None:  # case 15
    q, k = jnp.ones((1, 1, 4, 1)), jnp.ones((1, 1, 2, 1))
    o, _ = tops_kernels.simple_gla(q, k, jnp.arange(2.0).reshape(1, 1, 2, 1), scale=1.0, backend="xla")
    np.testing.assert_array_equal(o.reshape(-1), [0, 0, 1, 1])


def test_boundaries_have_a_gradient_of_no_type_also_when_used_twice() -> None:  # case 19
    q, k, v, g = draw(5)
    bounds = jnp.array([0, 2, 5], jnp.int32)

    def loss(bounds: Any, q: Any) -> Any:
        first = tops_kernels.simple_gla(q, k, v, g, cu_seqlens=bounds, backend="xla")[0]
        return tops_kernels.simple_gla(first, k, v, g, cu_seqlens=bounds, backend="xla")[0].sum()

    of_bounds, of_q = jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True), compiler_options=FAST)(bounds, q)
    assert (of_bounds.shape, of_bounds.dtype) == (bounds.shape, jax.dtypes.float0)
    assert np.isfinite(of_q).all()
    assert np.asarray(of_q).any()


@pytest.mark.parametrize("how", HOW)
def test_a_loss_of_the_final_state_alone_reaches_gates_and_the_initial_state(how: dict[str, Any]) -> None:  # case 28
    one = jnp.ones((1, 2, 1, 1))
    g, state = jnp.array([-0.5, -0.25]).reshape(1, 2, 1), jnp.ones((1, 1, 1, 1))
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
    _, final = jax.jit(lambda *x: tops_kernels.simple_gla(*x, **how), compiler_options=FAST)(*inputs)
    want = recurrence(*(x[0] for x in inputs), np.zeros((2, 16, 16)))
    assert off(final[0], want[1]) <= LIMITS["float32"]


@pytest.mark.parametrize("op", ["gla", "simple_gla"])
def test_gradients_of_shared_heads_are_summed_in_float32_and_rounded_once(op: str) -> None:  # case S3
    q, k, v, g = draw(8, hq=8, h=2, k=64, v=64, dtype="bfloat16")
    g = g if op == "simple_gla" else np.broadcast_to(g[..., None], k.shape)

    def gradients(*x: Any) -> Any:
        return jax.vjp(lambda *y: getattr(tops_kernels, op)(*y, g, backend="xla")[0], *x)[1](x[0])

    run = jax.jit(gradients, compiler_options=FAST)
    rounded = run(q, k, v)
    exact = run(*(x.astype(np.float32) for x in (q, k, v)))
    for got, want in zip(rounded[1:], exact[1:], strict=True):  # dk, dv
        assert got.shape == k.shape
        np.testing.assert_array_equal(got, jnp.asarray(want, jnp.bfloat16))
