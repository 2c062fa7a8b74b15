"""The oracle of gated linear attention: on paper, by four loops of Python floats, and its derivative by central differences."""

import itertools
import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from tops_tests.oracles.gla import gla, gla_vjp

Array = npt.NDArray[np.float64]
Inputs = dict[str, Array]

HEADS = [(2, 2), (4, 2), (3, 1)]  # HQ, H
GATES = ["mild", "strong", "resets"]
CUTS = {
    "dense": None,
    "packed": [0, 2, 5],
    "packed with empty sequences": [0, 0, 3, 3, 5, 5],
    "packed and short of T": [0, 1, 1, 4],
}
NAMES = ("q", "k", "v", "g", "initial_state")


def draw(
    *,
    B: int = 2,
    T: int = 5,
    heads: tuple[int, int] = (4, 2),
    K: int = 3,
    V: int = 2,
    gates: str = "mild",
    states: int | None = None,
) -> Inputs:
    """Inputs by name; `states` is how many initial states there are, one a row of the batch unless told."""
    random = np.random.default_rng(0)
    HQ, H = heads
    g = -random.uniform(0.0, 30.0 if gates == "strong" else 1.0, (B, T, H, K))
    if gates == "resets":
        g = np.where(random.random(g.shape) < 0.3, -np.inf, np.where(random.random(g.shape) < 0.3, -1000.0, g))
    return {
        "q": random.standard_normal((B, T, HQ, K)),
        "k": random.standard_normal((B, T, H, K)),
        "v": random.standard_normal((B, T, H, V)),
        "g": g,
        "initial_state": random.standard_normal((B if states is None else states, H, K, V)),
    }


def draw_for(cuts: list[int] | None, **options: object) -> Inputs:
    """Inputs for one of CUTS."""
    return draw(**options) if cuts is None else draw(B=1, states=len(cuts) - 1, **options)  # type: ignore[arg-type]  # as draw


def draw_cotangents(inputs: Mapping[str, Array]) -> tuple[Array, Array]:
    random = np.random.default_rng(1)
    q, v = inputs["q"], inputs["v"]
    return random.standard_normal((*q.shape[:-1], v.shape[-1])), random.standard_normal(inputs["initial_state"].shape)


def rows(inputs: Mapping[str, Array], at: slice) -> Inputs:
    """q, k, v and g of some steps."""
    return {name: array[:, at] for name, array in inputs.items() if name != "initial_state"}


def assert_same(got: Mapping[str, Array], expected: Mapping[str, Array], *, rtol: float = 1e-12) -> None:
    """By name and shape; of every array up to rtol of its largest."""
    assert set(got) == set(expected)
    for name, array in expected.items():
        assert got[name].shape == array.shape, name
        largest = float(np.max(np.abs(array), initial=0.0))
        np.testing.assert_allclose(got[name], array, rtol=0.0, atol=rtol * largest, equal_nan=False, err_msg=name)


def named(outputs: tuple[Array, Array]) -> Inputs:
    return dict(zip(("o", "final_state"), outputs, strict=True))


def by_loops(inputs: Mapping[str, Array], *, scale: float, reverse: bool = False) -> tuple[Array, Array]:
    """The definition with Python floats, one element at a time."""
    q, k, v, g, s = (inputs[name].tolist() for name in NAMES)
    B, T, HQ, K = inputs["q"].shape
    H, V = inputs["v"].shape[2:]
    o = np.zeros((B, T, HQ, V))
    for b in range(B):
        for t in reversed(range(T)) if reverse else range(T):
            for h, i, j in itertools.product(range(H), range(K), range(V)):
                s[b][h][i][j] = math.exp(g[b][t][h][i]) * s[b][h][i][j] + k[b][t][h][i] * v[b][t][h][j]
            for h, j in itertools.product(range(HQ), range(V)):
                o[b, t, h, j] = scale * sum(q[b][t][h][i] * s[b][h // (HQ // H)][i][j] for i in range(K))
    return o, np.array(s)


def test_the_gradients_of_the_final_state_alone_are_on_paper() -> None:
    ones = np.ones((1, 2, 1, 1))
    g = np.array([-0.5, -0.25]).reshape(1, 2, 1, 1)
    state = np.ones((1, 1, 1, 1))
    _, final_state = gla(ones, ones, ones, g, state)
    after_first = math.exp(-0.5) + 1
    assert final_state.item() == pytest.approx(math.exp(-0.25) * after_first + 1, rel=1e-15)
    gradients = gla_vjp((np.zeros((1, 2, 1, 1)), np.ones((1, 1, 1, 1))), ones, ones, ones, g, state)
    assert gradients["initial_state"].item() == pytest.approx(0.472367, abs=5e-7)  # exp(-0.75)
    assert gradients["g"].ravel() == pytest.approx([0.472367, 1.251167], abs=5e-7)
    assert gradients["g"][0, 1].item() == pytest.approx(math.exp(-0.25) * after_first, rel=1e-15)
    assert gradients["k"].ravel() == pytest.approx([math.exp(-0.25), 1.0], rel=1e-15)
    assert not gradients["q"].any()


@pytest.mark.parametrize("T", [63, 65, 500])
def test_a_long_final_state_is_the_recurrence(T: int) -> None:
    inputs = draw(B=1, T=T, heads=(1, 1), K=1, V=1)
    s = inputs["initial_state"].item()
    for k, v, g in zip(*(inputs[name].ravel() for name in "kvg"), strict=True):
        s = math.exp(g) * s + k * v
    assert gla(**inputs)[1].item() == pytest.approx(s, rel=1e-12)


def test_the_state_decays_before_the_step_is_added_and_is_read_after() -> None:
    half = np.full((1, 1, 1, 1), math.log(0.5))
    one, zero = np.ones((1, 1, 1, 1)), np.zeros((1, 1, 1, 1))
    o, final_state = gla(one, one, 3 * one, half, 8 * one)
    assert (o.item(), final_state.item()) == pytest.approx((7.0, 7.0), rel=1e-15)
    assert gla(one, one, zero, half, one)[1].item() == pytest.approx(0.5, rel=1e-15)


def test_query_heads_repeat_the_heads_of_k_and_v_and_do_not_tile_them() -> None:
    ones = np.ones((1, 1, 2, 1))
    v = np.array([10.0, 20.0]).reshape(1, 1, 2, 1)
    o, _ = gla(np.ones((1, 1, 4, 1)), ones, v, np.zeros((1, 1, 2, 1)))
    assert o.ravel().tolist() == [10, 10, 20, 20]


def test_without_a_scale_it_is_one_over_the_root_of_k() -> None:
    inputs = draw(K=4)
    assert_same(named(gla(**inputs)), named(gla(**inputs, scale=0.5)))
    cotangents = draw_cotangents(inputs)
    assert_same(gla_vjp(cotangents, **inputs), gla_vjp(cotangents, **inputs, scale=0.5))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("heads", HEADS)
def test_it_is_the_definition_by_loops(heads: tuple[int, int], gates: str, reverse: bool) -> None:
    inputs = draw(heads=heads, gates=gates)
    outputs = gla(**inputs, scale=0.7, reverse=reverse)
    assert_same(named(outputs), named(by_loops(inputs, scale=0.7, reverse=reverse)), rtol=1e-14)


def test_no_initial_state_is_zeros_and_has_no_gradient() -> None:
    inputs = draw()
    cotangents = draw_cotangents(inputs)
    zeros = inputs | {"initial_state": np.zeros_like(inputs["initial_state"])}
    without = {name: array for name, array in inputs.items() if name != "initial_state"}
    for got, expected in zip(gla(**without), gla(**zeros), strict=True):
        np.testing.assert_array_equal(got, expected)
    expected_gradients = gla_vjp(cotangents, **zeros)
    del expected_gradients["initial_state"]
    assert_same(gla_vjp(cotangents, **without), expected_gradients, rtol=0.0)


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("form", CUTS)
def test_the_derivative_is_that_of_central_differences(
    form: str, heads: tuple[int, int], gates: str, reverse: bool, has_state: bool
) -> None:
    cuts = CUTS[form]
    inputs = draw_for(cuts, heads=heads, gates=gates)
    cotangents = draw_cotangents(inputs)
    if not has_state:
        del inputs["initial_state"]

    def loss() -> float:
        outputs = gla(**inputs, cu_seqlens=cuts, scale=0.7, reverse=reverse)
        return sum(float(np.sum(d * y)) for d, y in zip(cotangents, outputs, strict=True))

    gradients = gla_vjp(cotangents, **inputs, cu_seqlens=cuts, scale=0.7, reverse=reverse)
    differences = {}
    for name, array in inputs.items():
        flat, slopes = array.reshape(-1), np.zeros(array.size)  # a view: what is written is seen by loss()
        for i, value in enumerate(flat.tolist()):
            ends = []
            for moved in (value + 1e-5, value - 1e-5):
                flat[i] = moved
                ends.append(loss())
            flat[i] = value
            slopes[i] = (ends[0] - ends[1]) / 2e-5
        differences[name] = slopes.reshape(array.shape)
    for name, slopes in differences.items():
        np.testing.assert_allclose(gradients[name], slopes, rtol=1e-7, atol=1e-8, equal_nan=False, err_msg=name)
    assert set(gradients) == set(inputs)


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("T", [0, 1, 2, 3, 4, 9, 17])
def test_cutting_time_in_two_calls_changes_nothing(T: int, gates: str) -> None:
    inputs = draw(T=T, gates=gates)
    do, dfinal_state = draw_cotangents(inputs)
    whole, gradients = gla(**inputs), gla_vjp((do, dfinal_state), **inputs)
    for cut in range(T + 1):
        first, second = rows(inputs, slice(cut)), rows(inputs, slice(cut, T))
        left, middle = gla(**first, initial_state=inputs["initial_state"])
        right, final_state = gla(**second, initial_state=middle)
        assert_same(named((np.concatenate([left, right], axis=1), final_state)), named(whole))
        later = gla_vjp((do[:, cut:], dfinal_state), **second, initial_state=middle)
        earlier = gla_vjp((do[:, :cut], later["initial_state"]), **first, initial_state=inputs["initial_state"])
        joined = {name: np.concatenate([earlier[name], later[name]], axis=1) for name in "qkvg"}
        assert_same(joined | {"initial_state": earlier["initial_state"]}, gradients)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("gates", GATES)
def test_reverse_is_forward_on_flipped_time(gates: str, cuts: list[int] | None) -> None:
    """Flipping a pack flips the order of its sequences too, and with it that of their states."""
    used = 5 if cuts is None else cuts[-1]
    inputs = draw_for(cuts, T=used, gates=gates)
    do, dfinal_state = draw_cotangents(inputs)
    flipped_cuts = None if cuts is None else [used - cut for cut in reversed(cuts)]

    def flip_states(states: Array) -> Array:
        return states if cuts is None else states[::-1]

    def flip(arrays: Mapping[str, Array]) -> Inputs:
        return {name: flip_states(a) if name.endswith("state") else a[:, ::-1] for name, a in arrays.items()}

    assert_same(
        named(gla(**inputs, cu_seqlens=cuts, reverse=True)), flip(named(gla(**flip(inputs), cu_seqlens=flipped_cuts)))
    )
    assert_same(
        gla_vjp((do, dfinal_state), **inputs, cu_seqlens=cuts, reverse=True),
        flip(gla_vjp((do[:, ::-1], flip_states(dfinal_state)), **flip(inputs), cu_seqlens=flipped_cuts)),
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize(
    "cuts", [[0, 128, 128, 256], [0, 0, 64], [0, 64, 64], [0, 64], [0, 0, 0, 7, 9, 9, 9], [0, 0, 0], [0, 0], [0]]
)
def test_packed_is_each_sequence_alone_and_an_empty_one_ends_where_it_starts(
    cuts: list[int], has_state: bool, reverse: bool
) -> None:
    inputs = draw(B=1, T=cuts[-1], states=len(cuts) - 1)
    do, dfinal_state = draw_cotangents(inputs)
    states = inputs["initial_state"] if has_state else np.zeros_like(inputs["initial_state"])
    if not has_state:
        del inputs["initial_state"]
    o, final_state = gla(**inputs, cu_seqlens=cuts, reverse=reverse)
    gradients = gla_vjp((do, dfinal_state), **inputs, cu_seqlens=cuts, reverse=reverse)
    assert o.shape == do.shape
    assert final_state.shape == dfinal_state.shape
    assert {name: array.shape for name, array in gradients.items()} == {name: a.shape for name, a in inputs.items()}
    for n, (start, end) in enumerate(itertools.pairwise(cuts)):
        own, at = slice(start, end), slice(n, n + 1)
        alone = rows(inputs, own) | ({"initial_state": states[at]} if has_state else {})
        assert_same(named((o[:, own], final_state[at])), named(gla(**alone, reverse=reverse)))
        expected = gla_vjp((do[:, own], dfinal_state[at]), **alone, reverse=reverse)
        got = rows(gradients, own) | ({"initial_state": gradients["initial_state"][at]} if has_state else {})
        assert_same(got, expected)
        if start == end:
            np.testing.assert_array_equal(final_state[n], states[n])
            if has_state:
                np.testing.assert_array_equal(gradients["initial_state"][n], dfinal_state[n])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("filler", [math.nan, math.inf, 1e300])
def test_rows_of_no_sequence_are_zero_whatever_they_hold(filler: float, reverse: bool) -> None:
    T, end = 192, 130
    inputs = draw(B=1, T=T)
    do, dfinal_state = draw_cotangents(inputs)
    state = inputs["initial_state"]
    expected = gla(**rows(inputs, slice(end)), initial_state=state, reverse=reverse)
    expected_gradients = gla_vjp(
        (do[:, :end], dfinal_state), **rows(inputs, slice(end)), initial_state=state, reverse=reverse
    )
    for array in (do, *rows(inputs, slice(end, T)).values()):
        array[:, -(T - end) :] = filler
    o, final_state = gla(**inputs, cu_seqlens=[0, end], reverse=reverse)
    gradients = gla_vjp((do, dfinal_state), **inputs, cu_seqlens=[0, end], reverse=reverse)
    assert_same(named((o[:, :end], final_state)), named(expected), rtol=0.0)
    assert_same(
        rows(gradients, slice(end)) | {"initial_state": gradients["initial_state"]}, expected_gradients, rtol=0.0
    )
    for array in (o, *rows(gradients, slice(T)).values()):
        assert array.shape[1] == T
        np.testing.assert_array_equal(array[:, end:], np.zeros_like(array[:, end:]))


@pytest.mark.parametrize("gate", [-np.inf, -1000.0])
def test_a_closed_gate_starts_anew_and_nothing_flows_through_it(gate: float) -> None:
    T, at = 6, 3
    inputs = draw(T=T)
    inputs["g"][:, at] = gate
    do, dfinal_state = draw_cotangents(inputs)
    o, final_state = gla(**inputs)
    later = rows(inputs, slice(at, T))
    assert_same(named((o[:, at:], final_state)), named(gla(**later)), rtol=1e-15)
    gradients = gla_vjp((do, dfinal_state), **inputs)
    assert all(np.isfinite(array).all() for array in gradients.values())
    np.testing.assert_array_equal(gradients["g"][:, at], np.zeros_like(gradients["g"][:, at]))
    assert_same(rows(gradients, slice(at, T)), gla_vjp((do[:, at:], dfinal_state), **later))
    no_end = np.zeros_like(dfinal_state)
    earlier = rows(inputs, slice(at)) | {"initial_state": inputs["initial_state"]}
    expected = gla_vjp((do[:, :at], no_end), **earlier)
    assert_same(rows(gradients, slice(at)) | {"initial_state": gradients["initial_state"]}, expected)


@pytest.mark.parametrize("gates", ["-6", "-20", "one of -1000", "half of -1000"])
def test_strong_gates_over_a_long_sequence_stay_the_definition(gates: str) -> None:
    inputs = draw(B=1, T=129, heads=(2, 2), K=4, V=3)
    g = np.zeros_like(inputs["g"])
    if gates == "one of -1000":
        g[:, 5] = -1000.0
    elif gates == "half of -1000":
        g[np.random.default_rng(2).random(g.shape) < 0.5] = -1000.0
    else:
        g[:] = float(gates)
    inputs["g"] = g
    assert_same(named(gla(**inputs)), named(by_loops(inputs, scale=0.5)), rtol=1e-13)
    assert all(np.isfinite(array).all() for array in gla_vjp(draw_cotangents(inputs), **inputs).values())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.float32])
def test_inputs_of_any_dtype_are_taken_as_rounded_and_computed_in_float64(dtype: npt.DTypeLike) -> None:
    rounded = {name: array.astype(dtype) for name, array in draw(gates="resets").items()}
    exact = {name: array.astype(np.float64) for name, array in rounded.items()}
    cotangents = tuple(array.astype(dtype) for array in draw_cotangents(exact))
    outputs, gradients = named(gla(**rounded)), gla_vjp(cotangents, **rounded)
    assert {array.dtype for array in (*outputs.values(), *gradients.values())} == {np.dtype(np.float64)}
    assert_same(outputs, named(gla(**exact)), rtol=0.0)
    assert_same(gradients, gla_vjp(tuple(c.astype(np.float64) for c in cotangents), **exact), rtol=0.0)


def test_inputs_are_left_as_they_were() -> None:
    inputs = draw()
    cotangents = draw_cotangents(inputs)
    for array in (*inputs.values(), *cotangents):
        array.flags.writeable = False
    outputs = gla(**inputs)
    gla_vjp(cotangents, **inputs)
    assert not np.shares_memory(outputs[1], inputs["initial_state"])


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([1, 5], r"gla: cu_seqlens is \[1, 5\]; expected 0 first"),
        ([0, 3, 2], r"gla: cu_seqlens is \[0, 3, 2\]; expected 0 first, no step down"),
        ([0, 6], r"expected 0 first, no step down, and 5 \(T\) at most"),
        ([0.0, 5.0], r"gla: cu_seqlens is float64\[2\]; expected integers \[N \+ 1\]"),
        ([], r"gla: cu_seqlens is float64\[0\]; expected integers"),
    ],
)
def test_cu_seqlens_that_cannot_cut_are_refused(cuts: list[float], message: str) -> None:
    inputs = draw(B=1)
    with pytest.raises(ValueError, match=message):
        gla(**inputs, cu_seqlens=cuts)
    with pytest.raises(ValueError, match=message):
        gla_vjp(draw_cotangents(inputs), **inputs, cu_seqlens=cuts)


def test_a_batch_with_cu_seqlens_and_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="gla: k has 2 rows in its batch; expected 1 with cu_seqlens"):
        gla(**draw(), cu_seqlens=[0, 2, 5])
    with pytest.raises(ValueError, match="gla: q has 3 heads and k has 2; expected a multiple"):
        gla(**draw(heads=(3, 2)))
