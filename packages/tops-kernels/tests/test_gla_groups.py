"""A CPU takes few heads of gla at a time, other platforms take all: the same numbers."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tops_kernels.ops.gla import _xla_chunk, _xla_loops, _xla_narrow
from tops_kernels.ops.gla._xla_layout import WIDTH, Layout

FORMS = _xla_loops.Forms(_xla_chunk, _xla_narrow, _xla_narrow.narrow_chunks)
FAST = {"xla_backend_optimization_level": 0}  # compiling is what takes the time
# batch, query heads, key/value heads, K, V -> batch entries and heads of a group
GROUPS = {
    (3, 3, 3, 128, 64): (1, 1),
    (1, 8, 4, 64, 32): (1, 2),
    (4, 2, 2, 16, 16): (4, 2),
    (3, 6, 3, 20, 8): (1, 3),
    (2, 5, 5, 16, 32): (2, 1),
    (2, 2, 1, 160, 16): (1, 1),
}


def draw(b: int, hq: int, h: int, k: int, v: int, t: int) -> list[Any]:
    """q, k, v, g, initial_state: every second head has strong gates, as heads of one group and of one batch may."""
    random = np.random.default_rng(0)
    shapes = (b, t, hq, k), (b, t, h, k), (b, t, h, v), (b, t, h, k), (b, h, k, v)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    arrays[3] = -np.abs(arrays[3]) * np.where((np.arange(h) + np.arange(b)[:, None]) % 2, 2.0, 0.02)[:, None, :, None]
    return [jnp.asarray(x, jnp.float32) for x in arrays]


@functools.partial(jax.jit, static_argnames=("few", "reverse"), compiler_options=FAST)
def everything(arrays: Any, cu_seqlens: Any, *, few: bool, reverse: bool) -> Any:
    """Both passes' results, and the end and the start alone."""
    q, k, v, g, state = arrays
    if cu_seqlens is not None:
        state = jnp.concatenate([state, 2 * state])
    how: dict[str, Any] = {"scale": 0.25, "reverse": reverse, "forms": FORMS, "few": few}
    do, dfinal = jnp.sin(jnp.arange(q.shape[1] * v.shape[3]).reshape(1, q.shape[1], 1, -1)), jnp.cos(state)
    do = jnp.broadcast_to(do, (*q.shape[:3], v.shape[3]))
    found = [
        _xla_loops._forward(q, k, v, g, state, cu_seqlens, **how),
        _xla_loops._backward(q, k, v, g, state, cu_seqlens, do, dfinal, **how),
    ]
    if cu_seqlens is None:
        rows = jnp.array([2, q.shape[1] - 3])
        found += [
            _xla_loops._end(k, v, g, state, rows, **how),
            _xla_loops._start(q, v, g, do, dfinal, rows, **how),
        ]
    return found


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", GROUPS, ids=str)
def test_few_heads_at_a_time_give_what_all_at_once_give(sizes: tuple[int, int, int, int, int], reverse: bool) -> None:
    arrays = draw(*sizes, t=100)
    packed = [None] if sizes[0] > 1 else [None, jnp.array([0, 70, 97], jnp.int32)]
    for cu_seqlens in packed:
        few, together = (everything(arrays, cu_seqlens, few=few, reverse=reverse) for few in (True, False))
        for one, other in zip(jax.tree.leaves(few), jax.tree.leaves(together), strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * float(jnp.linalg.norm(other)))
            assert float(jnp.linalg.norm(other)) > 0


@pytest.mark.parametrize(("sizes", "group"), GROUPS.items(), ids=str)
def test_a_group_has_as_many_heads_as_the_width_holds(
    sizes: tuple[int, int, int, int, int], group: tuple[int, int]
) -> None:
    q, k, v, *_ = draw(*sizes, t=3)
    call = Layout(q, k, v, None, reverse=False, few=True)
    assert (call.entries, call.n) == group
    assert call.entries * call.n == 1 or call.entries * call.n * max(sizes[3:]) <= WIDTH
    assert len(call.groups.batch) * call.entries * call.n == sizes[0] * sizes[2]
