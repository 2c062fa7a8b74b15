"""Gated linear attention (arXiv:2312.06635 eq. 3-4): a state a head, each of its rows with a decay of its own, and each column where values are gated."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def gla(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    g: npt.ArrayLike,
    initial_state: npt.ArrayLike | None = None,
    cu_seqlens: npt.ArrayLike | None = None,
    gv: npt.ArrayLike | None = None,
    *,
    scale: float | None = None,
    reverse: bool = False,
) -> tuple[Array, Array]:
    """S_t = diag(exp(g_t)) S_{t-1} diag(exp(gv_t)) + k_t v_t^T;   o_t = scale * q_t^T S_t

    q [B, T, HQ, K], k and g [B, T, H, K], v [B, T, H, V], initial_state [N, H, K, V] or None (zeros), cu_seqlens [N + 1] or
    None, gv [B, T, H, V] or None (0) -> o [B, T, HQ, V], final_state [N, H, K, V]. N = B without cu_seqlens.

    Query head i reads head i // (HQ // H). Without a scale it is K ** -0.5. With reverse, time runs from the last step of a
    sequence to its first. With cu_seqlens B is 1 and rows cu_seqlens[n] to cu_seqlens[n + 1] - 1 are sequence n; an empty
    one ends in its initial state, and in rows that no sequence has o = 0. Gates are <= 0, and may be -inf: the state starts anew.

    Raises ValueError where HQ is no multiple of H, and for cu_seqlens that do not cut T.
    """
    q, k, v, g = _grouped(_f64(q), _f64(k)), _f64(k), _f64(v), _f64(g)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    sequences = _sequences(k, cu_seqlens, reverse)
    state = _states(initial_state, k, v, cu_seqlens)
    of_values = _of_values(gv, v)
    o = np.zeros((*q.shape[:-1], v.shape[-1]))
    for which, steps in sequences:
        s = state[which]
        for t in steps:
            s = _step(s, k[:, t], v[:, t], g[:, t], of_values[:, t])
            o[:, t] = scale * (q[:, t] @ s)
        state[which] = s
    return _flat(o), state


def gla_vjp(
    cotangents: tuple[npt.ArrayLike, ...],
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    g: npt.ArrayLike,
    initial_state: npt.ArrayLike | None = None,
    cu_seqlens: npt.ArrayLike | None = None,
    gv: npt.ArrayLike | None = None,
    *,
    scale: float | None = None,
    reverse: bool = False,
) -> dict[str, Array]:
    """From the last step back, with dS_T = dfinal_state and dS_t what reaches S_t from o_t and from all after it:

    dS_t += scale * q_t do_t^T;   dq_t = scale * S_t do_t;   dk_t = dS_t v_t;   dv_t = dS_t^T k_t;
    with M_t = diag(exp(g_t)) (S_{t-1} * dS_t) diag(exp(gv_t)):   dg_t = sum over V of M_t;   dgv_t = sum over K of M_t;
    dS_{t-1} = diag(exp(g_t)) dS_t diag(exp(gv_t));   dinitial_state = dS_0

    dq_t has a part for each query head, and dS_t sums over them. A gate of -inf has gradient 0: the limit of the formula.
    """
    q, k, v, g = _grouped(_f64(q), _f64(k)), _f64(k), _f64(v), _f64(g)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    sequences = _sequences(k, cu_seqlens, reverse)
    state = _states(initial_state, k, v, cu_seqlens)
    of_values = _of_values(gv, v)
    do, dstate = _grouped(_f64(cotangents[0]), k), _f64(cotangents[1])
    dq, dk, dv, dg, dgv = (np.zeros_like(x) for x in (q, k, v, g, of_values))
    for which, steps in sequences:
        ds = dstate[which]  # a view: it ends as the gradient of the initial state
        for t, before, after in _from_the_end(state[which], steps, k, v, g, of_values):
            ds += np.swapaxes(scale * q[:, t], -1, -2) @ do[:, t]  # the product sums over query heads
            dq[:, t] = scale * (do[:, t] @ np.swapaxes(after, -1, -2))
            dk[:, t] = (ds @ v[:, t][..., None])[..., 0]
            dv[:, t] = (k[:, t][..., None, :] @ ds)[..., 0, :]
            decay = np.exp(g[:, t])[..., :, None] * of_values[:, t][..., None, :]
            dg[:, t] = np.einsum("bhkv,bhkv,bhkv->bhk", decay, before, ds)
            dgv[:, t] = np.einsum("bhkv,bhkv,bhkv->bhv", decay, before, ds)
            ds *= decay
    gradients = {"q": _flat(dq), "k": dk, "v": dv, "g": dg}
    if initial_state is not None:
        gradients["initial_state"] = dstate
    if gv is not None:
        gradients["gv"] = dgv
    return gradients


def _of_values(gv: npt.ArrayLike | None, v: Array) -> Array:
    """exp(gv), [B, T, H, V]."""
    return np.ones_like(v) if gv is None else np.exp(_f64(gv))


def _step(s: Array, k: Array, v: Array, g: Array, of_values: Array) -> Array:
    """S_t of S_{t-1} [B, H, K, V], k and g [B, H, K], v and the decays of its channels [B, H, V]."""
    after = np.exp(g)[..., None] * s * of_values[..., None, :]
    after += k[..., None] * v[..., None, :]
    return after


def _from_the_end(
    s: Array, steps: Sequence[int], k: Array, v: Array, g: Array, of_values: Array
) -> Iterator[tuple[int, Array, Array]]:
    """(t, S_{t-1}, S_t) from the last step to the first.

    The states of all steps at once can be too large for a machine, so one in sqrt(T) is kept and those between are made again.
    """
    stride = math.isqrt(len(steps)) + 1
    parts = [steps[i : i + stride] for i in range(0, len(steps), stride)]
    kept = []
    for part in parts:
        kept.append(s)
        for t in part:
            s = _step(s, k[:, t], v[:, t], g[:, t], of_values[:, t])
    for part in reversed(parts):
        states = [kept.pop()]
        for t in part:
            states.append(_step(states[-1], k[:, t], v[:, t], g[:, t], of_values[:, t]))
        for t in reversed(part):
            after = states.pop()
            yield t, states[-1], after


def _sequences(k: Array, cu_seqlens: npt.ArrayLike | None, reverse: bool) -> list[tuple[slice, Sequence[int]]]:
    """(which states, steps in the order of time): all of the batch together, or one packed sequence after another."""
    B, T = k.shape[:2]
    order = slice(None, None, -1 if reverse else 1)
    if cu_seqlens is None:
        return [(slice(0, B), range(T)[order])]
    cuts = np.asarray(cu_seqlens)
    if cuts.ndim != 1 or not cuts.size or not np.issubdtype(cuts.dtype, np.integer):
        raise ValueError(f"gla: cu_seqlens is {cuts.dtype}{list(cuts.shape)}; expected integers [N + 1]")
    ends: list[int] = cuts.tolist()
    if ends[0] != 0 or ends != sorted(ends) or ends[-1] > T:
        raise ValueError(f"gla: cu_seqlens is {ends}; expected 0 first, no step down, and {T} (T) at most")
    if B != 1:
        raise ValueError(f"gla: k has {B} rows in its batch; expected 1 with cu_seqlens")
    return [(slice(n, n + 1), range(ends[n], ends[n + 1])[order]) for n in range(len(ends) - 1)]


def _states(initial_state: npt.ArrayLike | None, k: Array, v: Array, cu_seqlens: npt.ArrayLike | None) -> Array:
    """The first states [N, H, K, V], in memory of their own."""
    if initial_state is not None:
        return _f64(initial_state)
    N = len(k) if cu_seqlens is None else len(np.asarray(cu_seqlens)) - 1
    return np.zeros((N, *k.shape[2:], v.shape[-1]))


def _grouped(x: Array, k: Array) -> Array:
    """[B, T, HQ, D] -> [B, T, H, HQ // H, D]: neighbouring query heads share a head of k."""
    B, T, HQ, D = x.shape
    H = k.shape[2]
    if H == 0 or HQ % H:
        raise ValueError(f"gla: q has {HQ} heads and k has {H}; expected a multiple of k's")
    return x.reshape(B, T, H, HQ // H, D)


def _flat(x: Array) -> Array:
    """[B, T, H, HQ // H, D] -> [B, T, HQ, D]."""
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3], x.shape[4])


def _f64(array: npt.ArrayLike) -> Array:
    """A copy in float64."""
    return np.asarray(array).astype(np.float64)
