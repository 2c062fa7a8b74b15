"""Linear attention with one decay a head (arXiv:2307.08621 eq. 5-6; with gates that hang on the data, arXiv:2405.21060): literally, step by step."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def simple_gla(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    g: npt.ArrayLike | None = None,
    g_gamma: npt.ArrayLike | None = None,
    initial_state: npt.ArrayLike | None = None,
    cu_seqlens: npt.ArrayLike | None = None,
    *,
    scale: float | None = None,
    reverse: bool = False,
) -> tuple[Array, Array]:
    """S_t = exp(g_t + g_gamma) S_{t-1} + k_t v_t^T;   o_t = scale * q_t^T S_t

    q [B, T, HQ, K], k [B, T, H, K], v [B, T, H, V], g [B, T, H] and g_gamma [H] or None (0), initial_state [N, H, K, V] or None
    (zeros), cu_seqlens [N + 1] or None -> o [B, T, HQ, V], final_state [N, H, K, V]. N = B without cu_seqlens.

    Query head i reads head i // (HQ // H). Without a scale it is K ** -0.5. With reverse, time runs from the last step of a
    sequence to its first. With cu_seqlens B is 1 and rows cu_seqlens[n] to cu_seqlens[n + 1] - 1 are sequence n; an empty
    one ends in its initial state, and in rows that no sequence has o = 0. Gates are <= 0, and may be -inf.
    """
    q, k, v = _f64(q), _f64(k), _f64(v)
    decay = np.exp(_gates(g, g_gamma, k))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    repeats = _repeats(q, k)
    state = _states(initial_state, k, v, cu_seqlens)
    o = np.zeros((*q.shape[:-1], v.shape[-1]))
    for which, steps in _sequences(k, cu_seqlens, reverse):
        s = state[which]
        for t in steps:
            s = decay[:, t, :, None, None] * s + _outer(k[:, t], v[:, t])
            o[:, t] = scale * np.einsum("bhk,bhkv->bhv", q[:, t], np.repeat(s, repeats, axis=1))
        state[which] = s
    return o, state


def simple_gla_vjp(
    cotangents: tuple[npt.ArrayLike, ...],
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    g: npt.ArrayLike | None = None,
    g_gamma: npt.ArrayLike | None = None,
    initial_state: npt.ArrayLike | None = None,
    cu_seqlens: npt.ArrayLike | None = None,
    *,
    scale: float | None = None,
    reverse: bool = False,
) -> dict[str, Array]:
    """From the last step back, with dS_T = dfinal_state and a_t = g_t + g_gamma:

    dS_t += scale * q_t do_t^T;   dq_t = scale * S_t do_t;   dk_t = dS_t v_t;   dv_t = dS_t^T k_t;
    da_t = exp(a_t) <S_{t-1}, dS_t>;   dS_{t-1} = exp(a_t) dS_t;   dg_t = da_t;   dg_gamma = sum of da_t;   dinitial_state = dS_0

    A gate of -inf has gradient 0: the limit of the formula. Rows that no sequence has add nothing.
    """
    q, k, v = _f64(q), _f64(k), _f64(v)
    decay = np.exp(_gates(g, g_gamma, k))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    repeats = _repeats(q, k)
    state = _states(initial_state, k, v, cu_seqlens)
    do, dstate = _f64(cotangents[0]), _f64(cotangents[1])
    dq, dk, dv, da = (np.zeros_like(x) for x in (q, k, v, decay))
    for which, steps in _sequences(k, cu_seqlens, reverse):
        ds = dstate[which]
        for t, before, after in _from_the_end(state[which], steps, k, v, decay):
            per_query = scale * _outer(q[:, t], do[:, t])
            ds = ds + per_query.reshape(*ds.shape[:2], repeats, *ds.shape[2:]).sum(axis=2)
            dq[:, t] = scale * np.einsum("bhv,bhkv->bhk", do[:, t], np.repeat(after, repeats, axis=1))
            dk[:, t] = np.einsum("bhkv,bhv->bhk", ds, v[:, t])
            dv[:, t] = np.einsum("bhkv,bhk->bhv", ds, k[:, t])
            da[:, t] = decay[:, t] * np.einsum("bhkv,bhkv->bh", before, ds)
            ds = decay[:, t, :, None, None] * ds
        dstate[which] = ds
    gradients = {"q": dq, "k": dk, "v": dv}
    if g is not None:
        gradients["g"] = da
    if g_gamma is not None:
        gradients["g_gamma"] = da.sum(axis=(0, 1))
    if initial_state is not None:
        gradients["initial_state"] = dstate
    return gradients


def _from_the_end(
    s: Array, steps: Sequence[int], k: Array, v: Array, decay: Array
) -> Iterator[tuple[int, Array, Array]]:
    """(t, S_{t-1}, S_t) from the last step to the first.

    The states of all steps at once can be too large for a machine, so one in sqrt(T) is kept and those between are made again.
    """
    stride = math.isqrt(len(steps)) + 1
    parts = [steps[i : i + stride] for i in range(0, len(steps), stride)]

    def step(s: Array, t: int) -> Array:
        return decay[:, t, :, None, None] * s + _outer(k[:, t], v[:, t])

    kept = []
    for part in parts:
        kept.append(s)
        for t in part:
            s = step(s, t)
    for part in reversed(parts):
        states = [kept.pop()]
        for t in part:
            states.append(step(states[-1], t))
        for t in reversed(part):
            after = states.pop()
            yield t, states[-1], after


def _gates(g: npt.ArrayLike | None, g_gamma: npt.ArrayLike | None, k: Array) -> Array:
    """g_t + g_gamma, [B, T, H]."""
    both = np.zeros(k.shape[:3])
    if g is not None:
        both = both + _f64(g)
    return both if g_gamma is None else both + _f64(g_gamma)


def _outer(a: Array, b: Array) -> Array:
    """[..., K], [..., V] -> [..., K, V]."""
    return a[..., :, None] * b[..., None, :]


def _sequences(k: Array, cu_seqlens: npt.ArrayLike | None, reverse: bool) -> list[tuple[slice, Sequence[int]]]:
    """(which states, steps in the order of time): all of the batch together, or one packed sequence after another."""
    B, T = k.shape[:2]
    order = slice(None, None, -1 if reverse else 1)
    if cu_seqlens is None:
        return [(slice(0, B), range(T)[order])]
    ends: list[int] = np.asarray(cu_seqlens).tolist()
    if ends[0] != 0 or ends != sorted(ends) or ends[-1] > T:
        raise ValueError(f"simple_gla: cu_seqlens is {ends}; expected 0 first, no step down, and {T} (T) at most")
    if B != 1:
        raise ValueError(f"simple_gla: k has {B} rows in its batch; expected 1 with cu_seqlens")
    return [(slice(n, n + 1), range(ends[n], ends[n + 1])[order]) for n in range(len(ends) - 1)]


def _states(initial_state: npt.ArrayLike | None, k: Array, v: Array, cu_seqlens: npt.ArrayLike | None) -> Array:
    """The first states [N, H, K, V], in memory of their own."""
    if initial_state is not None:
        return _f64(initial_state)
    N = len(k) if cu_seqlens is None else len(np.asarray(cu_seqlens)) - 1
    return np.zeros((N, *k.shape[2:], v.shape[-1]))


def _repeats(q: Array, k: Array) -> int:
    """How many neighbouring query heads share a head of k."""
    HQ, H = q.shape[2], k.shape[2]
    if H == 0 or HQ % H:
        raise ValueError(f"simple_gla: q has {HQ} heads and k has {H}; expected a multiple of k's")
    return int(HQ // H)


def _f64(array: npt.ArrayLike) -> Array:
    """A copy in float64."""
    return np.asarray(array).astype(np.float64)
