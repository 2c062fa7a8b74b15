"""What is promised of gla and simple_gla in XLA: relative errors by norm against the float64 oracle, at any gate, length, width and packing."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels
from tops_tests.oracles.gla import gla, gla_vjp
from tops_tests.oracles.simple_gla import simple_gla, simple_gla_vjp

FAST = {"xla_backend_optimization_level": 0}  # compiling takes the time here
LIMITS = {"float32": (2e-6, 2e-5), "bfloat16": (4e-3, 1e-2)}  # forward, gradients
UNDERFLOW = 1e-36  # what float32 holds no normal number for may be 0
ORACLES = {"gla": (gla, gla_vjp), "simple_gla": (simple_gla, simple_gla_vjp)}
MEANS = (0.0, -1e-6, -0.05, -1.0, -5.0, -20.0)
KINDS = (*MEANS, "mixed", "one of -100", "-inf first", "-inf last", "some of -inf", "all of -inf", "half of -inf")
WIDTHS = (16, 48, 64, 80, 128, 192, 256)


def gates(kind: Any, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    """[B, T, ..] float32."""
    size = random.exponential(size=shape)
    if kind == "mixed":
        size *= 10 ** random.uniform(-6, 2.5, shape)
    g = (size * (kind if isinstance(kind, float) else -1.0 if kind == "mixed" else -0.05)).astype(np.float32)
    places: dict[Any, Any] = {"-inf first": np.s_[:, 0], "-inf last": np.s_[:, -1], "half of -inf": np.s_[..., ::2]}
    places |= {"all of -inf": np.s_[:], "some of -inf": random.random(shape) < 0.05}
    if kind in places:
        g[places[kind]] = -np.inf
    elif kind == "one of -100":
        g[:, shape[1] // 3] = -100
    return g


class Passes:
    """Forward and backward of one shape, compiled once and held against the oracle for many contents."""

    def __init__(
        self, op: str, t: int, k: int, v: int, *, b: int = 1, hq: int = 2, h: int = 1, sequences: int = 0,
        dtype: str = "float32", reverse: bool = False, scale: float | None = None, without: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.op, self.dtype, self.static = op, dtype, {"reverse": reverse, "scale": scale}
        states = (sequences or b, h, k, v)
        g = (b, t, h, k) if op == "gla" else (b, t, h)
        shapes = {"q": (b, t, hq, k), "k": (b, t, h, k), "v": (b, t, h, v), "g": g}
        shapes |= {"g_gamma": (h,)} if op == "simple_gla" else {}
        shapes |= {"initial_state": states}
        self.shapes = {name: shape for name, shape in shapes.items() if name not in without}
        self.cotangents = (b, t, hq, v), states
        self.random = np.random.default_rng(t + k)
        self.traced = 0

        def run(cotangents: Any, cu_seqlens: Any, arrays: dict[str, Any]) -> Any:
            self.traced += 1

            def forward(arrays: dict[str, Any]) -> Any:
                call = getattr(tops_kernels, op)
                return call(**arrays, cu_seqlens=cu_seqlens, **self.static, backend="xla")

            outputs, pull = jax.vjp(forward, arrays)
            return outputs, pull(cotangents)[0]

        self.plain, self.run = run, jax.jit(run, compiler_options=FAST)

    def draw(self, kind: Any) -> tuple[dict[str, Any], tuple[Any, Any]]:
        arrays = {name: self.random.standard_normal(shape) for name, shape in self.shapes.items()}
        arrays |= {name: arrays[name].astype(jnp.dtype(self.dtype)) for name in "qkv"}
        arrays |= {name: -0.05 * np.abs(x) for name, x in arrays.items() if name == "g_gamma"}
        arrays = {name: x if name in ("q", "k", "v") else x.astype(np.float32) for name, x in arrays.items()}
        if "g" in arrays:
            arrays["g"] = gates(kind, arrays["g"].shape, self.random)
        do, dfinal = (self.random.standard_normal(shape) for shape in self.cotangents)
        return arrays, (do.astype(jnp.dtype(self.dtype)), dfinal.astype(np.float32))

    def hold(self, kind: Any, bounds: Sequence[int] | None = None) -> None:
        arrays, cotangents = self.draw(kind)
        forward, backward = ORACLES[self.op]
        given = {**self.static, "cu_seqlens": bounds}
        o, final = forward(**arrays, **given)  # type: ignore[operator]  # oracles of two signatures
        truth = {"o": o, "final_state": final} | backward(cotangents, **arrays, **given)  # type: ignore[operator]  # the same
        do, dfinal = cotangents
        if bounds is not None:  # what lies in padding is nobody's business
            for x in (do, *(arrays[name] for name in ("q", "k", "v", "g") if name in arrays)):
                x[:, bounds[-1] :] = np.nan
        cu_seqlens = None if bounds is None else np.asarray(bounds, np.int32)
        (o, final), gradients = self.run((do, dfinal), cu_seqlens, arrays)
        assert self.traced == 1, "one compilation serves all contents"
        sizes = {name: np.linalg.norm(x) for name, x in truth.items()}
        if "g_gamma" in gradients and "g" in gradients:  # a sum over all steps of terms of both signs: by their size
            sizes["g_gamma"] = np.linalg.norm(np.abs(truth["g"]).sum((0, 1)))
        for name, got in {"o": o, "final_state": final, **gradients}.items():
            limit = LIMITS[self.dtype][name in gradients] * sizes[name]
            error = np.linalg.norm(np.asarray(got, np.float64) - truth[name])
            what = f"{name} of {kind}, {bounds}: {error:.3g}, {limit:.3g} allowed"
            assert error <= max(limit, UNDERFLOW), what  # where all is 0, so must ours be; a NaN fails too


@pytest.mark.parametrize("op", ["gla", pytest.param("simple_gla", marks=pytest.mark.slow)])
def test_values_and_gradients_are_exact_at_any_gate(op: str) -> None:
    passes = Passes(op, 130, 48, 80, b=2, hq=4, h=2)
    for kind in KINDS:
        passes.hold(kind)


def packs(t: int) -> list[list[int]]:
    """Boundaries of 7 sequences: empty ones first, last and repeated; short of t; none but empty ones."""
    a, b = t // 4, t // 2
    return [[0, 0, 0, a, b, b, b, t], [0, a, b, b, b + 1, t, t, t], [0, 0, 1, 1, b, b + 1, t - 2, t - 2], [0] * 8]


def at_most_one_step_each(t: int) -> list[list[int]]:
    """Boundaries of t sequences."""
    return [list(range(t + 1)), [0, *range(t)], [0, 0, *(n // 2 for n in range(t - 1))]]


@pytest.mark.parametrize(
    ("op", "without"),
    [
        ("gla", ("initial_state",)),
        ("simple_gla", ()),
        pytest.param("gla", (), marks=pytest.mark.slow),
        pytest.param("simple_gla", ("initial_state",), marks=pytest.mark.slow),
    ],
)
def test_packed_sequences_are_those_sequences_alone_also_where_each_is_one_step(op: str, without: Any) -> None:
    t = 70
    passes = Passes(op, t, 16, 24, sequences=t, reverse=bool(without), without=without)
    for bounds in (*at_most_one_step_each(t), *([*pack, *[pack[-1]] * (t - 7)] for pack in packs(t))):
        for kind in (-0.05, "some of -inf"):
            passes.hold(kind, bounds)


@pytest.mark.slow
@pytest.mark.parametrize("op", ORACLES)
def test_one_sequence_packed_is_that_sequence(op: str) -> None:
    passes = Passes(op, 65, 16, 16, sequences=1, scale=0.3)
    for bounds in ([0, 65], [0, 64], [0, 1], [0, 0]):
        passes.hold("mixed", bounds)


@pytest.mark.parametrize(
    ("op", "cut"),
    [("gla", 37), *(pytest.param(op, cut, marks=pytest.mark.slow) for op in ORACLES for cut in (1, 64, 69))],
)
def test_two_calls_through_the_state_are_one_call_gradients_too(op: str, cut: int) -> None:
    whole = Passes(op, 70, 12, 16, reverse=cut == 69)
    arrays, cotangents = whole.draw("some of -inf")

    def in_two(arrays: Any) -> Any:
        call, rows = getattr(tops_kernels, op), [name for name in ("q", "k", "v", "g") if name in arrays]
        halves = [arrays | {name: arrays[name][:, at] for name in rows} for at in (np.s_[:cut], np.s_[cut:])]
        first, second = halves[::-1] if whole.static["reverse"] else halves
        earlier, state = call(**first, **whole.static, backend="xla")
        later, final = call(**{**second, "initial_state": state}, **whole.static, backend="xla")
        return jnp.concatenate([later, earlier] if whole.static["reverse"] else [earlier, later], axis=1), final

    def pulled(arrays: Any) -> Any:
        outputs, pull = jax.vjp(in_two, arrays)
        return outputs, pull(cotangents)[0]

    got, want = jax.jit(pulled, compiler_options=FAST)(arrays), whole.run(cotangents, None, arrays)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert np.linalg.norm(one - other) <= LIMITS["float32"][0] * np.linalg.norm(other)


@pytest.mark.slow
@pytest.mark.parametrize("t", [1, 2, 15, 63, 64, 65, 100, 1000])
@pytest.mark.parametrize("op", ORACLES)
def test_any_length_and_width(op: str, t: int) -> None:
    for at, k in enumerate(WIDTHS):
        v = 512 if k == 128 else WIDTHS[(at + t) % len(WIDTHS)]
        how: dict[str, Any] = {"dtype": ("float32", "bfloat16")[at % 3 == 2], "reverse": at % 2 == 1, "h": 1 + at % 3}
        is_packed, kinds = (at + t // 2) % 2 == 0, KINDS if t < 1000 else KINDS[at % 4 :: 4]
        passes = Passes(op, t, k, v, sequences=7 * is_packed, hq=how["h"] * (1 + is_packed), **how)
        for place, kind in enumerate(kinds):
            bounds = sorted(min(max(x, 0), t) for x in packs(t)[place % 4])
            passes.hold(kind, bounds if is_packed else None)


@pytest.mark.slow
@pytest.mark.parametrize("mapped", [False, True], ids=["alone", "under vmap"])
@pytest.mark.parametrize("kind", [-0.05, -5.0, "some of -inf"])
@pytest.mark.parametrize("op", ORACLES)
def test_a_second_derivative_is_that_of_the_oracle_also_behind_resets(op: str, kind: Any, mapped: bool) -> None:
    """Of a loss linear in the gradients, against central differences of the oracle's; vmap runs both forms of a chunk."""
    passes = Passes(op, 40, 4, 3, sequences=4)
    arrays, cotangents = passes.draw(kind)
    bounds = [0, 0, 20, 38, 38]
    directions = {name: passes.random.standard_normal(x.shape).astype(np.float32) for name, x in arrays.items()}
    directions["g"][~np.isfinite(arrays["g"])] = 0  # there is no difference at -inf

    def along(arrays: Any) -> Any:
        gradients = passes.plain(cotangents, np.asarray(bounds, np.int32), arrays)[1]
        return sum(jnp.vdot(gradients[name], directions[name]) for name in directions)

    second = jax.jit(jax.vmap(jax.grad(along)) if mapped else jax.grad(along), compiler_options=FAST)
    got = second(jax.tree.map(lambda x: np.stack([x, np.zeros_like(x)]) if mapped else x, arrays))
    for name, step in directions.items():
        ends = []
        for sign in (1, -1):
            moved = {**arrays, name: arrays[name].astype(np.float64) + sign * 1e-5 * step}
            gradients = ORACLES[op][1](cotangents, **moved, cu_seqlens=bounds)  # type: ignore[operator]  # oracles of two signatures
            ends.append(sum(np.vdot(gradients[n], d) for n, d in directions.items()))
        want = (ends[0] - ends[1]) / 2e-5
        found = np.asarray(got[name][0] if mapped else got[name], np.float64)
        assert np.isfinite(found).all()
        assert np.vdot(found, step) == pytest.approx(want, rel=1e-3, abs=1e-3), name
