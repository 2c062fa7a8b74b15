"""One decode token of gated linear attention: the recurrence's step (arXiv:2312.06635 eq. 3-4), on states that may lie in a pool."""

import dataclasses

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def gla_step(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    g: npt.ArrayLike,
    state: npt.ArrayLike,
    index: npt.ArrayLike | None = None,
    gv: npt.ArrayLike | None = None,
    *,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """S' = diag(exp(g)) S diag(exp(gv)) + k v^T;   o = scale * q^T S'

    q [B, HQ, K], k and g [B, H, K], v and gv [B, H, V] (gv None: 0), state [B, H, K, V] -> o [B, HQ, V], the new state.

    With index [B] the state is a pool [P, H, K, V]: row b has pool[index[b]]. Where index[b] is none of the pool's, o is 0 and
    nothing is written. Query head i reads head i // (HQ // H). Without a scale it is K ** -0.5. Gates are <= 0, and may be -inf.
    """
    return _forward(_rows("gla_step", q, k, v, _f64(g), gv, state, index, scale))


def gla_step_vjp(
    cotangents: tuple[npt.ArrayLike, ...],
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    g: npt.ArrayLike,
    state: npt.ArrayLike,
    index: npt.ArrayLike | None = None,
    gv: npt.ArrayLike | None = None,
    *,
    scale: float | None = None,
) -> dict[str, Array]:
    """With dS' = dnew_state + scale * q do^T, summed over the query heads of a head, D = exp(g), E = exp(gv):

    dq = scale * S' do;  dk = dS' v;  dv = dS'^T k;  dS = diag(D) dS' diag(E);
    dg = D * sum over V of (S diag(E) dS');  dgv = E * sum over K of (diag(D) S dS')

    A state of the pool that no row has keeps its cotangent. A row without a state has gradients 0.
    """
    gradients = _backward(_rows("gla_step", q, k, v, _f64(g), gv, state, index, scale), cotangents)
    if gv is None:
        del gradients["gv"]
    return gradients


def simple_gla_step(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    state: npt.ArrayLike,
    g: npt.ArrayLike | None = None,
    g_gamma: npt.ArrayLike | None = None,
    index: npt.ArrayLike | None = None,
    *,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """S' = exp(g + g_gamma) S + k v^T;   o = scale * q^T S'

    As `gla_step`, with a decay a head: g [B, H] and g_gamma [H], each 0 where it is None.
    """
    return _forward(_rows("simple_gla_step", q, k, v, _gates(k, g, g_gamma), None, state, index, scale))


def simple_gla_step_vjp(
    cotangents: tuple[npt.ArrayLike, ...],
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    state: npt.ArrayLike,
    g: npt.ArrayLike | None = None,
    g_gamma: npt.ArrayLike | None = None,
    index: npt.ArrayLike | None = None,
    *,
    scale: float | None = None,
) -> dict[str, Array]:
    """As `gla_step_vjp`; dg sums over the channels that share the gate, dg_gamma over the rows too."""
    rows = _rows("simple_gla_step", q, k, v, _gates(k, g, g_gamma), None, state, index, scale)
    gradients = _backward(rows, cotangents)
    del gradients["gv"]
    of_gates = gradients.pop("g").sum(axis=-1)
    if g is not None:
        gradients["g"] = of_gates
    if g_gamma is not None:
        gradients["g_gamma"] = of_gates.sum(axis=0)
    return gradients


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """A call in float64, decays instead of gates."""

    q: Array  # [B, HQ, K]
    k: Array  # [B, H, K]
    v: Array  # [B, H, V]
    decay: Array  # [B, H, K]
    decay_v: Array  # [B, H, V]
    pool: Array  # [P, H, K, V]; memory of its own
    places: list[int | None]  # of each row in the pool
    scale: float

    def after(self, b: int, place: int) -> Array:
        """S' of row b, [H, K, V]."""
        kept: Array = self.decay[b][:, :, None] * self.pool[place] * self.decay_v[b][:, None, :]
        added: Array = self.k[b][:, :, None] * self.v[b][:, None, :]
        return kept + added


def _rows(
    op: str,
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    g: Array,
    gv: npt.ArrayLike | None,
    state: npt.ArrayLike,
    index: npt.ArrayLike | None,
    scale: float | None,
) -> _Rows:
    q, k, v, pool = _f64(q), _f64(k), _f64(v), _f64(state)
    (B, HQ, K), H = q.shape, k.shape[1]
    if H == 0 or HQ % H:
        raise ValueError(f"{op}: q has {HQ} heads and k has {H}; expected a multiple of k's")
    numbers: list[int] = list(range(B)) if index is None else np.asarray(index).tolist()
    places = [place if 0 <= place < len(pool) else None for place in numbers]
    decay_v = np.ones_like(v) if gv is None else np.exp(_f64(gv))
    return _Rows(q, k, v, np.exp(g), decay_v, pool, places, K**-0.5 if scale is None else scale)


def _forward(rows: _Rows) -> tuple[Array, Array]:
    B, HQ, _ = rows.q.shape
    group = HQ // rows.k.shape[1]
    o, new = np.zeros((B, HQ, rows.v.shape[-1])), rows.pool.copy()
    for b, place in enumerate(rows.places):
        if place is not None:
            new[place] = rows.after(b, place)
            for i in range(HQ):
                o[b, i] = rows.scale * (rows.q[b, i] @ new[place, i // group])
    return o, new


def _backward(rows: _Rows, cotangents: tuple[npt.ArrayLike, ...]) -> dict[str, Array]:
    do, dstate = _f64(cotangents[0]), _f64(cotangents[1])
    HQ = rows.q.shape[1]
    group = HQ // rows.k.shape[1]
    dq, dk, dv, dg, dgv = (np.zeros_like(x) for x in (rows.q, rows.k, rows.v, rows.decay, rows.decay_v))
    for b, place in enumerate(rows.places):
        if place is None:
            continue
        before, after, ds = rows.pool[place], rows.after(b, place), dstate[place].copy()
        for i in range(HQ):
            ds[i // group] += rows.scale * np.outer(rows.q[b, i], do[b, i])
            dq[b, i] = rows.scale * (after[i // group] @ do[b, i])
        dk[b] = np.einsum("hkv,hv->hk", ds, rows.v[b])
        dv[b] = np.einsum("hkv,hk->hv", ds, rows.k[b])
        by_decays = rows.decay[b][:, :, None] * rows.decay_v[b][:, None, :]
        through = by_decays * before * ds
        dg[b], dgv[b] = through.sum(axis=2), through.sum(axis=1)
        dstate[place] = by_decays * ds
    return {"q": dq, "k": dk, "v": dv, "g": dg, "gv": dgv, "state": dstate}


def _gates(k: npt.ArrayLike, g: npt.ArrayLike | None, g_gamma: npt.ArrayLike | None) -> Array:
    """g + g_gamma for each channel of the keys, [B, H, K]."""
    both = np.zeros_like(_f64(k))
    if g is not None:
        both = both + _f64(g)[..., None]
    return both if g_gamma is None else both + _f64(g_gamma)[:, None]


def _f64(array: npt.ArrayLike) -> Array:
    """A copy in float64."""
    return np.asarray(array).astype(np.float64)
