"""Packed sequences: dimensions with an offset, shapes that follow an optional input, inputs that rise."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tops_manifest import (
    ArraySpec,
    ContractTypeError,
    ContractValueError,
    Op,
    bind,
    canonical,
    contract,
    cost,
    show,
    table,
)
from tops_manifest.tree import Entry, parse
from tops_manifest.workloads import Case

_F32 = "float32"
_TOML = (Path(__file__).parent / "scan.toml").read_text()
_STATE = next(line for line in _TOML.splitlines() if line.startswith("initial_state"))
_OFFSETS = next(line for line in _TOML.splitlines() if line.startswith("cu_seqlens"))
_LATER = _TOML.replace(f"{_STATE}\n{_OFFSETS}", f"{_OFFSETS}\n{_STATE}")  # cu_seqlens stands before initial_state


def _entry(text: str = _TOML) -> Entry:
    return parse(tomllib.loads(text), "ops/scan.toml", "scan")


def _op(text: str = _TOML) -> Op:
    return contract.from_table(tomllib.loads(text), Path("ops/scan.toml"))


_each_order = pytest.mark.parametrize("op", [_op(_TOML), _op(_LATER)], ids=["state first", "cu_seqlens first"])


def _arrays(batch: int, **shapes: tuple[int, ...]) -> dict[str, ArraySpec]:
    dtypes = {"cu_seqlens": "int32"}
    arrays = {"q": (batch, 8, 3, 4), "v": (batch, 8, 3, 5), **shapes}
    return {name: ArraySpec(shape, dtypes.get(name, _F32)) for name, shape in arrays.items()}


def test_both_orders_are_two_files() -> None:
    assert _TOML != _LATER
    assert [spec.name for spec in _op(_LATER).inputs] == ["q", "v", "cu_seqlens", "initial_state"]


@_each_order
def test_a_shape_follows_the_optional_input_that_decides_it(op: Op) -> None:
    padded = bind(op, _arrays(2, initial_state=(2, 3, 4, 5)), {})
    assert padded.dims == {"B": 2, "T": 8, "H": 3, "K": 4, "V": 5}
    assert padded.outputs()["final_state"] == ArraySpec((2, 3, 4, 5), _F32)
    packed = bind(op, _arrays(1, initial_state=(6, 3, 4, 5), cu_seqlens=(7,)), {})
    assert packed.dims == {"B": 1, "T": 8, "H": 3, "K": 4, "V": 5, "N": 6}
    assert packed.outputs()["final_state"] == ArraySpec((6, 3, 4, 5), _F32)
    assert packed.outputs()["o"] == ArraySpec((1, 8, 3, 5), _F32)


@_each_order
def test_an_output_follows_where_the_input_of_its_shape_is_not_given(op: Op) -> None:
    assert bind(op, _arrays(2), {}).outputs()["final_state"] == ArraySpec((2, 3, 4, 5), _F32)
    packed = bind(op, _arrays(1, cu_seqlens=(3,)), {})
    assert packed.outputs()["final_state"] == ArraySpec((2, 3, 4, 5), _F32)
    assert packed.environment()["N"] == 2
    assert "N" not in bind(op, _arrays(2), {}).environment()


@_each_order
def test_an_offset_is_taken_off_the_size_and_put_on_it_again(op: Op) -> None:
    binding = bind(op, _arrays(1, cu_seqlens=(7,)), {})
    assert binding.dims["N"] == 6
    assert binding.shape(op.input("cu_seqlens").shapes[0]) == (7,)


# (batch, shapes of the optional inputs, what is said where the state stands first, and where it stands second)
_SAME = ""
_WRONG: list[tuple[int, dict[str, tuple[int, ...]], str, str]] = [
    (1, {"cu_seqlens": (0,)}, "cu_seqlens has shape (0,); expected [N+1]", _SAME),
    (1, {"cu_seqlens": ()}, "cu_seqlens has shape (); expected [N+1]", _SAME),
    (1, {"cu_seqlens": (2, 3)}, "cu_seqlens has shape (2, 3); expected [N+1]", _SAME),
    (
        2,
        {"initial_state": (3, 3, 4, 5)},
        "initial_state has shape (3, 3, 4, 5); expected [B, H, K, V] = (2, 3, 4, 5) from q and v where cu_seqlens is not given",
        _SAME,
    ),
    (
        1,
        {"initial_state": (6, 3, 4, 5), "cu_seqlens": (6,)},
        "cu_seqlens has shape (6,); expected [N+1] = (7,) from initial_state",
        "initial_state has shape (6, 3, 4, 5); expected [N, H, K, V] = (5, 3, 4, 5) from cu_seqlens and q and v where cu_seqlens is given",
    ),
    (
        1,
        {"initial_state": (6, 3, 4, 5), "cu_seqlens": (0,)},
        "cu_seqlens has shape (0,); expected [N+1] = (7,) from initial_state",
        "cu_seqlens has shape (0,); expected [N+1]",
    ),
    (
        1,
        {"initial_state": (6, 3, 9, 5), "cu_seqlens": (7,)},
        "initial_state has shape (6, 3, 9, 5); expected [N, H, K, V] = (6, 3, 4, 5) from q and v where cu_seqlens is given",
        "initial_state has shape (6, 3, 9, 5); expected [N, H, K, V] = (6, 3, 4, 5) from cu_seqlens and q and v where cu_seqlens is given",
    ),
    (
        1,
        {"initial_state": (6, 3, 4), "cu_seqlens": (7,)},
        "initial_state has shape (6, 3, 4); expected [N, H, K, V] where cu_seqlens is given",
        "initial_state has shape (6, 3, 4); expected [N, H, K, V] = (6, 3, 4, 5) from cu_seqlens and q and v where cu_seqlens is given",
    ),
    (
        2,
        {"cu_seqlens": (3,)},
        "q has shape (2, 8, 3, 4), so B = 2, has_cu_seqlens = 1; expected has_cu_seqlens == 0 or B == 1. pack the sequences into one",
        _SAME,
    ),
    (1, {"cu_seqlens": (66,)}, "cu_seqlens has shape (66,), so N = 65; expected N <= 64", _SAME),
    (1, {"cu_seqlens": (1,)}, "cu_seqlens has shape (1,), so N = 0; expected N >= 1", _SAME),
]


@pytest.mark.parametrize("index", range(len(_WRONG)))
@pytest.mark.parametrize("later", [False, True], ids=["state first", "cu_seqlens first"])
def test_a_wrong_call_is_named_with_the_shape_for_what_is_given(index: int, later: bool) -> None:
    batch, shapes, first, second = _WRONG[index]
    with pytest.raises(ContractValueError) as raised:
        bind(_op(_LATER if later else _TOML), _arrays(batch, **shapes), {})
    assert str(raised.value) == f"scan: {second if later and second else first}"


def test_a_missing_input_is_told_with_the_shape_for_what_is_given() -> None:
    op = _op(_TOML.replace('q = { shape = "B T H K"', 'q = { shape = "B T H K", with = { cu_seqlens = "T H K" }'))
    for shape, presence in (
        ({}, "[B, T, H, K] where cu_seqlens is not given"),
        ({"cu_seqlens": (3,)}, "[T, H, K] where cu_seqlens is given"),
    ):
        arrays: dict[str, Any] = {**_arrays(1, **shape), "q": None}
        with pytest.raises(ContractTypeError) as raised:
            bind(op, arrays, {})
        assert str(raised.value) == f"scan: q is None; expected an array {presence}"


def test_one_letter_with_and_without_an_offset_is_one_number() -> None:
    op = _op(
        _TOML.replace(
            'shape = "N+1", dtype = "int32", optional = true, rises = "T"',
            'shape = "N N+1", dtype = "int32", optional = true',
        )
    )
    assert bind(op, _arrays(1, cu_seqlens=(3, 4)), {}).dims["N"] == 3
    with pytest.raises(ContractValueError, match=r"has shape \(3, 3\); expected \[N, N\+1\] with one N"):
        bind(op, _arrays(1, cu_seqlens=(3, 3)), {})


def test_offsets_stand_beside_leading_dimensions_and_alternatives() -> None:
    op = _op(
        _TOML.replace(
            '"N+1", dtype = "int32", optional = true, rises = "T"',
            '["N+2", "*L N+2"], dtype = "int32", optional = true',
        )
    )
    assert bind(op, _arrays(1, cu_seqlens=(5,)), {}).dims["N"] == 3
    assert bind(op, _arrays(1, cu_seqlens=(2, 2, 5)), {}).dims["L"] == (2, 2)
    with pytest.raises(ContractValueError, match=r"has shape \(2, 1\); expected \[\*L, N\+2\]"):
        bind(op, _arrays(1, cu_seqlens=(2, 1)), {})


@pytest.mark.parametrize("given", [True, False])
def test_a_static_bool_is_a_python_bool(given: bool) -> None:
    assert bind(_op(), _arrays(1), {"reverse": given}).params["reverse"] is given
    assert bind(_op(), _arrays(1), {}).params["reverse"] is False


@pytest.mark.parametrize("value", [0, 1, 1.0, None, "true"])
def test_what_is_no_bool_is_refused(value: object) -> None:
    with pytest.raises(ContractTypeError, match=r"scan: reverse is .*; expected True or False"):
        bind(_op(), _arrays(1), {"reverse": value})


def test_another_bool_is_refused_under_its_full_name() -> None:
    """As numpy's is: no bool to Python, and "of type bool; expected True or False" would help nobody."""
    kind = type("bool", (), {"__module__": "numpy"})
    with pytest.raises(ContractTypeError, match=r"scan: reverse is of type numpy.bool; expected True or False"):
        bind(_op(), _arrays(1), {"reverse": kind()})


def _cases(text: str = _TOML) -> dict[str, Case]:
    return {row.name: case for row in _entry(text).rows for case in row.cases()}


@pytest.mark.parametrize("text", [_TOML, _LATER], ids=["state first", "cu_seqlens first"])
def test_a_case_has_the_shapes_of_what_its_row_gives(text: str) -> None:
    padded, packed = _cases(text)["padded"], _cases(text)["packed"]
    assert padded.inputs()["initial_state"].shape == padded.outputs()["final_state"].shape == (2, 3, 4, 5)
    assert "cu_seqlens" not in padded.inputs()
    assert packed.inputs()["initial_state"].shape == packed.outputs()["final_state"].shape == (6, 3, 4, 5)
    assert packed.inputs()["cu_seqlens"] == ArraySpec((7,), "int32")
    assert list(packed.inputs()) == [spec.name for spec in packed.op.inputs]
    shapes = {name: canonical.model.shape_text(shape) for name, shape in packed.input_shapes().items()}
    assert (shapes["initial_state"], shapes["cu_seqlens"]) == ("[N, H, K, V]", "[N+1]")


def test_bytes_and_operations_follow_what_is_given() -> None:
    entry = _entry()
    padded, packed = _cases()["padded"], _cases()["packed"]
    q, v, state = 8 * 3 * 4, 8 * 3 * 5, 3 * 4 * 5
    assert padded.memory() == 4 * (2 * (q + v + v) + 2 * 2 * state)
    assert packed.memory() == 4 * (q + v + v + 2 * 6 * state + 7)
    assert padded.memory("vjp") == padded.memory() + 4 * 2 * (q + v + state)
    flops = {case.row: entry.cost.flops("fwd", case.binding())["vpu"] for case in (padded, packed)}
    assert flops == {"padded": 0.0, "packed": 6.0 * state}  # N counts as 0 where nothing binds it
    assert entry.cost.bytes("fwd", packed.binding(), packed.inputs()) == packed.memory()
    assert cost.io_bytes("fwd", packed.binding(), packed.inputs()) == packed.memory()


def test_an_alternative_is_the_row_s_choice_only_where_no_other_input_decides() -> None:
    text = _TOML.replace('initial_state = { shape = "B H K V"', 'initial_state = { shape = ["H K V", "B H K V"]')
    text = text.replace("pass = ", "alternatives = { initial_state = 1 }\npass = ")
    cases = _cases(text)
    assert cases["padded"].inputs()["initial_state"].shape == (2, 3, 4, 5)
    assert cases["packed"].inputs()["initial_state"].shape == (6, 3, 4, 5)


# (old, new): what a caller can see, so the digest must see it
_MEANINGS = [
    ("N+1", "N"),
    ("N+1", "N+2"),
    (', rises = "T"', ""),
    ('rises = "T"', 'rises = "H"'),
    (_STATE, _STATE.replace("N H K V", "N H V K")),
    (_STATE, _STATE.replace(', with = { cu_seqlens = "N H K V" }', "")),
    ('final_state = { shape = "B H K V", with = { cu_seqlens = "N H K V" }', 'final_state = { shape = "B H K V"'),
    ('cu_seqlens = "N H K V" }, dtype = "float32" }', 'cu_seqlens = "N H V K" }, dtype = "float32" }'),
]


@pytest.mark.parametrize(("old", "new"), _MEANINGS)
def test_the_digest_changes_with_an_offset_a_with_and_a_rise(old: str, new: str) -> None:
    text = _TOML.replace(old, new)
    assert text != _TOML
    assert canonical.contract_digest_of(_op(text)) != canonical.contract_digest_of(_op())


def test_the_digest_does_not_change_with_spelling() -> None:
    spelled = 'cu_seqlens = { rises = "T", optional = true, dtype = "int32", shape = " N+1" }'
    text = _TOML.replace('"N H K V"', '" N  H K V "').replace(_OFFSETS, spelled)
    assert spelled in text
    assert canonical.contract_digest_of(_op(text)) == canonical.contract_digest_of(_op())


def test_an_op_without_these_keys_has_none_of_them_in_its_canonical_form() -> None:
    """What the grammar gains must not change the digest of a contract that does not use it."""
    text = canonical.canonical_json(canonical.contract_data(contract.op("matmul")))
    assert not any(f'"{key}"' in text for key in ("with", "rises"))
    ours = canonical.contract_data(_op())
    assert ours["inputs"][3] == {  # type: ignore[index]  # plain data, typed as object
        "name": "cu_seqlens", "shapes": ["[N+1]"], "dtype": "int32", "optional": True, "domain": None, "rises": "T",
    }  # fmt: skip
    assert ours["outputs"][1]["with"] == {"cu_seqlens": "[N, H, K, V]"}  # type: ignore[index]  # as above


def test_show_and_the_table_say_what_a_reader_must_know() -> None:
    entry = _entry()
    text = " ".join(show.text(entry).split())
    assert "initial_state [B, H, K, V]; [N, H, K, V] with cu_seqlens float32 optional" in text
    assert "cu_seqlens [N+1] int32 optional; rises from 0 to at most T" in text
    assert "final_state [B, H, K, V]; [N, H, K, V] with cu_seqlens float32" in text
    assert show.data(entry)["contract"]["inputs"][2]["with"] == {"cu_seqlens": "[N, H, K, V]"}  # type: ignore[index]  # plain data
    lines = table.markdown({"scan": entry}).splitlines()
    assert "| `initial_state` | `[B, H, K, V]; [N, H, K, V] with cu_seqlens` | float32 | optional |" in lines
    assert "| `cu_seqlens` | `[N+1]` | int32 | optional; rises from 0 to at most T |" in lines
    assert "| -> `final_state` | `[B, H, K, V]; [N, H, K, V] with cu_seqlens` | float32 |  |" in lines


@pytest.mark.parametrize("text", [_TOML, _LATER], ids=["state first", "cu_seqlens first"])
@pytest.mark.parametrize(
    "present", [(), ("initial_state",), ("cu_seqlens",), ("initial_state", "cu_seqlens")], ids=" ".join
)
def test_every_presence_binds_to_its_own_case(text: str, present: tuple[str, ...]) -> None:
    op = _op(text)
    dims = {"B": 1, "T": 8, "H": 3, "K": 4, "V": 5, "N": 6}
    case = Case(op, "drawn", dims, {}, {}, present, {}, ("fwd",))
    state = 6 if "cu_seqlens" in present else 1
    assert case.outputs()["final_state"].shape == (state, 3, 4, 5)
    assert case.binding().present == {"q", "v", *present}
