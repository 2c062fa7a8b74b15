"""Inputs on which other libraries' decode steps failed, and what must hold of gla_step and simple_gla_step."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels

HOW = {"xla": {"backend": "xla"}, "interpreted": {"interpret": True}}
FAST = {"xla_backend_optimization_level": 0}  # compiling is what takes the time
OPS = ("gla_step", "simple_gla_step")
B, HQ, H, K, V, P = 5, 4, 2, 16, 24, 7
INDEX = np.array(
    [-1, 2, 0, P + 92, 1], np.int32
)  # padding before and behind, where a clipped index finds states 0 and P - 1
PADDING, UNREAD = [0, 3], [3, 4, 5, 6]


def draw(op: str) -> dict[str, Any]:
    """Every array of a call with a pool, but the index."""
    random = np.random.default_rng(0)
    gates = {"g": (B, H, K), "gv": (B, H, V)} if op == "gla_step" else {"g": (B, H), "g_gamma": (H,)}
    shapes = {"q": (B, HQ, K), "k": (B, H, K), "v": (B, H, V), "state": (P, H, K, V), **gates}
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: -np.abs(x) if name in gates else x for name, x in arrays.items()}


def of_rows(arrays: dict[str, Any]) -> list[str]:
    return [name for name, x in arrays.items() if len(x) == B]


def poisoned(x: Any, rows: list[int], value: float = np.nan) -> Any:
    x = x.copy()
    x[rows] = value
    return x


@functools.cache
def passes(op: str, how: str) -> Any:
    """(cotangents, index, arrays) -> outputs, gradients by name; compiled once."""

    def run(cotangents: Any, index: Any, arrays: Any) -> Any:
        def forward(arrays: Any) -> Any:
            return getattr(tops_kernels, op)(**arrays, index=index, **HOW[how])

        outputs, pull = jax.vjp(forward, arrays)
        return outputs, pull(cotangents)[0]

    return jax.jit(run, compiler_options=FAST)


def cotangents() -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    return random.standard_normal((B, HQ, V)).astype(np.float32), random.standard_normal((P, H, K, V)).astype(
        np.float32
    )


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("op", OPS)
def test_what_a_row_of_padding_holds_reaches_no_state_and_no_gradient(op: str, how: str) -> None:  # cases 2, 6
    arrays, (do, dnew), run = draw(op), cotangents(), passes(op, how)
    clean = run((do, dnew), INDEX, arrays)
    for value in (np.nan, np.inf):
        held = {name: poisoned(x, PADDING, value) if name in of_rows(arrays) else x for name, x in arrays.items()}
        (o, new), gradients = run((poisoned(do, PADDING, value), dnew), INDEX, held)
        np.testing.assert_array_equal(o, clean[0][0])
        np.testing.assert_array_equal(new, clean[0][1])
        for name, gradient in gradients.items():
            np.testing.assert_array_equal(gradient, clean[1][name], err_msg=name)
    assert not np.asarray(clean[0][0])[PADDING].any()
    for name in of_rows(arrays):
        assert not np.asarray(clean[1][name])[PADDING].any(), name


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("op", OPS)
def test_states_of_no_row_are_not_read_and_stay_to_the_bit(op: str, how: str) -> None:  # case 2
    arrays, given, run = draw(op), cotangents(), passes(op, how)
    arrays["state"][UNREAD] = -0.0  # what adding 0 would change
    (o, new), gradients = run(given, INDEX, arrays)
    assert np.signbit(np.asarray(new)[UNREAD]).all()
    np.testing.assert_array_equal(gradients["state"][np.array(UNREAD)], given[1][UNREAD])
    arrays["state"][UNREAD] = np.nan
    (other_o, other), others = run(given, INDEX, arrays)
    np.testing.assert_array_equal(o, other_o)
    np.testing.assert_array_equal(other[:3], new[:3])
    assert np.isnan(np.asarray(other)[UNREAD]).all()
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(others[name], gradient, err_msg=name)


@pytest.mark.parametrize("how", HOW)
def test_two_rows_of_one_state_harm_no_other(how: str) -> None:
    arrays, run = draw("gla_step"), passes("gla_step", how)
    (o, new), _ = run(cotangents(), np.array([2, 2, 0, -1, 2], np.int32), arrays)
    (alone, expected), _ = run(cotangents(), np.array([-1, -1, 0, -1, -1], np.int32), arrays)
    np.testing.assert_array_equal(np.delete(new, 2, axis=0), np.delete(expected, 2, axis=0))
    np.testing.assert_array_equal(o[2], alone[2])


@pytest.mark.parametrize("how", HOW)
def test_no_index_is_out_of_bounds(how: str) -> None:
    arrays, run = draw("gla_step"), passes("gla_step", how)
    for index in (-1, P, -P, 2**31 - 1, -(2**31)):
        (o, new), _ = run(cotangents(), np.full(B, index, np.int32), arrays)
        assert not np.asarray(o).any()
        np.testing.assert_array_equal(new, arrays["state"])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("op", OPS)
def test_no_row_at_all_leaves_a_donated_pool_as_it_was(op: str, how: str) -> None:
    arrays = draw(op)
    arrays |= {name: arrays[name][:0] for name in of_rows(arrays)}
    step = jax.jit(functools.partial(getattr(tops_kernels, op), **HOW[how]), donate_argnames="state")
    o, new = step(**{**arrays, "state": jnp.array(arrays["state"])}, index=INDEX[:0])
    assert o.shape == (0, HQ, V)
    np.testing.assert_array_equal(new, arrays["state"])


def test_one_array_may_be_query_key_and_value_beside_a_donated_state() -> None:  # case S8
    x = jnp.asarray(draw("gla_step")["k"])
    state, g = jnp.ones((B, H, K, K)), jnp.zeros_like(x)
    want = tops_kernels.gla_step(x, x, x, g, state)
    got = jax.jit(tops_kernels.gla_step, donate_argnames="state")(x, x, x, g, state=jnp.ones_like(state))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", ["gla_step", pytest.param("simple_gla_step", marks=pytest.mark.slow)])
def test_an_index_has_a_gradient_of_no_type_also_when_used_twice(op: str) -> None:  # case 19
    arrays = draw(op)

    def loss(index: Any, arrays: Any) -> Any:
        step = getattr(tops_kernels, op)
        _, state = step(**arrays, index=index)
        return step(**{**arrays, "state": state}, index=index)[0].sum()

    of_index, gradients = jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True), compiler_options=FAST)(INDEX, arrays)
    assert (of_index.shape, of_index.dtype) == (INDEX.shape, jax.dtypes.float0)
    assert np.asarray(gradients["state"])[0].any()
    assert all(np.isfinite(x).all() for x in gradients.values())


@pytest.mark.parametrize("op", ["gla_step", pytest.param("simple_gla_step", marks=pytest.mark.slow)])
def test_gradients_under_vmap_through_a_pool_are_those_of_each_call(op: str) -> None:
    drawn = [draw(op), {name: x * np.float32(0.5) for name, x in draw(op).items()}]
    indices, given = np.stack([INDEX, np.roll(INDEX, 1)]), cotangents()
    run = functools.partial(passes(op, "xla"), given)
    stacked = {name: np.stack([one[name] for one in drawn]) for name in drawn[0]}
    got = jax.vmap(run)(indices, stacked)
    for at, one in enumerate(drawn):
        want = run(indices[at], one)
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(x[at], y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("hq", "h"), [(3, 2), (33, 2), (4, 0)])
@pytest.mark.parametrize("op", OPS)
def test_query_heads_that_key_heads_do_not_divide_are_refused_with_both_numbers(
    op: str, hq: int, h: int
) -> None:  # case 15
    q, k = jnp.ones((1, hq, 4)), jnp.ones((1, h, 4))
    with pytest.raises(ValueError, match=rf"^{op}: .*\b{hq if h else h}\b.*") as caught:
        getattr(tops_kernels, op)(q=q, k=k, v=k, g=-k if op == "gla_step" else -k[..., 0], state=jnp.ones((1, h, 4, 4)))
    assert str(h) in str(caught.value)


@pytest.mark.parametrize("op", OPS)
def test_an_index_of_64_bits_is_that_of_32_and_never_wraps(op: str) -> None:  # case 20
    arrays, run = draw(op), passes(op, "xla")
    expected = run(cotangents(), INDEX, arrays)
    far = INDEX.astype(np.int64)
    far[3] = 2**32 + 2  # wrapped it would be state 2
    with jax.enable_x64(True):
        found = run(cotangents(), far, arrays)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
