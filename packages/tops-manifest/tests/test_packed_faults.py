"""Packed sequences: mistakes in a file, and what a change of one breaks."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tops_manifest import contract
from tops_manifest.changes import Change, contract_changes
from tops_manifest.errors import Fault, ManifestError
from tops_manifest.tree import parse

_TOML = (Path(__file__).parent / "scan.toml").read_text()
_GOOD = tomllib.loads(_TOML)


def _faults(table: dict[str, Any]) -> tuple[Fault, ...]:
    try:
        parse(table, "ops/scan.toml", "scan")
    except ManifestError as error:
        return error.faults
    return ()


def _with_value(section: str, name: str, key: str, value: object) -> dict[str, Any]:
    table = copy.deepcopy(_GOOD)
    table[section][name][key] = value
    return table


def test_the_file_is_sound() -> None:
    assert _faults(_GOOD) == ()


_NAMES = "dimension names (a capital first; a leading * for any number; +1 behind it for one more)"

# (section, name, key that is set, its value, key that is named, what is shown of the value, what was expected)
_CASES: list[tuple[str, str, str, Any, str, str, str]] = [
    ("inputs", "cu_seqlens", "shape", "N+0", "inputs.cu_seqlens.shape", "'N+0'", f"{_NAMES}, not 'N+0'"),
    ("inputs", "cu_seqlens", "shape", "N-1", "inputs.cu_seqlens.shape", "'N-1'", f"{_NAMES}, not 'N-1'"),
    ("inputs", "cu_seqlens", "shape", "N+", "inputs.cu_seqlens.shape", "'N+'", "not 'N+'"),
    ("inputs", "cu_seqlens", "shape", "N + 1", "inputs.cu_seqlens.shape", "'N + 1'", "not '+'"),
    ("inputs", "cu_seqlens", "shape", "N+01", "inputs.cu_seqlens.shape", "'N+01'", "not 'N+01'"),
    ("inputs", "cu_seqlens", "shape", "N+1.5", "inputs.cu_seqlens.shape", "'N+1.5'", "not 'N+1.5'"),
    ("inputs", "cu_seqlens", "shape", "N+T", "inputs.cu_seqlens.shape", "'N+T'", "not 'N+T'"),
    ("inputs", "cu_seqlens", "shape", "1+N", "inputs.cu_seqlens.shape", "'1+N'", "not '1+N'"),
    ("inputs", "cu_seqlens", "shape", "N+" + "9" * 5000, "inputs.cu_seqlens.shape", "'N+999", "dimension names"),
    ("inputs", "cu_seqlens", "shape", "*N+1", "inputs.cu_seqlens.shape", "'*N+1'", "*N with no number behind it"),
    ("outputs", "final_state", "shape", "B H K V+1", "outputs.final_state.shape", "'B H K V+1'", "V alone: the sizes of an output have no number added"),
    ("outputs", "final_state", "with", {"cu_seqlens": "N+1 H"}, "outputs.final_state.with.cu_seqlens", "'N+1 H'", "N alone"),
    ("inputs", "initial_state", "with", {"q": "N H K V"}, "inputs.initial_state.with.q", "'N H K V'", "no such key (known: cu_seqlens)"),
    ("inputs", "initial_state", "with", {"initial_state": "N"}, "inputs.initial_state.with.initial_state", "'N'", "no such key (known: cu_seqlens)"),
    ("inputs", "initial_state", "with", {"seqlens": "N"}, "inputs.initial_state.with.seqlens", "'N'", "no such key (known: cu_seqlens)"),
    ("inputs", "initial_state", "with", {}, "inputs.initial_state.with", "{}", "one optional input, and the shape where it is given"),
    ("inputs", "initial_state", "with", "cu_seqlens", "inputs.initial_state.with", "'cu_seqlens'", "a table"),
    ("inputs", "initial_state", "with", {"cu_seqlens": 3}, "inputs.initial_state.with.cu_seqlens", "3", "dimensions as a string"),
    ("inputs", "initial_state", "with", {"cu_seqlens": ["N", "N H"]}, "inputs.initial_state.with.cu_seqlens", "['N', 'N H']", "dimensions as a string"),
    ("inputs", "initial_state", "with", {"cu_seqlens": "n H"}, "inputs.initial_state.with.cu_seqlens", "'n H'", "not 'n'"),
    ("inputs", "initial_state", "with", {"cu_seqlens": "*N H"}, "inputs.initial_state.with.cu_seqlens", "[*N, H]", "N with * everywhere or nowhere"),
    ("outputs", "final_state", "with", {"q": "B"}, "outputs.final_state.with.q", "'B'", "no such key (known: initial_state, cu_seqlens)"),
    ("outputs", "final_state", "with", {"cu_seqlens": "M H"}, "outputs.final_state.with.cu_seqlens", "'M H'", "no input binds M (known: B H K N T V)"),
    ("outputs", "final_state", "with", {"cu_seqlens": "*N H"}, "outputs.final_state.with.cu_seqlens", "'*N H'", "N with * everywhere or nowhere"),
    ("outputs", "final_state", "with", {"initial_state": "N H"}, "outputs.final_state.with.initial_state", "'N H'", "N in an input that is always given where initial_state is, in each of its shapes"),
    ("outputs", "final_state", "with", ["cu_seqlens"], "outputs.final_state.with", "['cu_seqlens']", "a table"),
    ("outputs", "final_state", "shape", "N H K V", "outputs.final_state.shape", "'N H K V'", "N in an input that is always given, in each of its shapes"),
    ("inputs", "cu_seqlens", "rises", "M", "inputs.cu_seqlens.rises", "'M'", "a dimension that other inputs bind in every call (known: B H K T V)"),
    ("inputs", "cu_seqlens", "rises", "N", "inputs.cu_seqlens.rises", "'N'", "a dimension that other inputs bind in every call"),
    ("inputs", "cu_seqlens", "rises", "", "inputs.cu_seqlens.rises", "''", "a dimension that other inputs bind in every call"),
    ("inputs", "cu_seqlens", "rises", 8, "inputs.cu_seqlens.rises", "8", "a string"),
    ("inputs", "cu_seqlens", "dtype", "float32", "inputs.cu_seqlens.rises", "'T'", "an integer input, not one of float32"),
    ("inputs", "cu_seqlens", "shape", "N+1 T", "inputs.cu_seqlens.rises", "'T'", "an input of one dimension"),
    ("inputs", "cu_seqlens", "domain", "[0, inf)", "inputs.cu_seqlens.domain", "'[0, inf)'", "no domain beside rises = 'T'"),
    ("outputs", "o", "rises", "T", "outputs.o.rises", "'T'", "no such key"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("section", "name", "key", "value", "named", "shown", "expected"), _CASES, ids=[str(i) for i in range(len(_CASES))]
)
def test_a_mistake_is_named(
    section: str, name: str, key: str, value: object, named: str, shown: str, expected: str
) -> None:
    faults = _faults(_with_value(section, name, key, value))
    assert any(
        fault.file == "ops/scan.toml" and fault.key == named and shown in fault.value and expected in fault.expected
        for fault in faults
    ), "\n".join(map(str, faults)) or "no fault"
    assert len(set(faults)) == len(faults), "a fault told twice"


def test_two_inputs_cannot_both_decide_a_shape() -> None:
    both = {"cu_seqlens": "N H K V", "initial_state": "B H K V"}
    faults = _faults(_with_value("outputs", "final_state", "with", both))
    assert [(fault.key, fault.expected) for fault in faults] == [
        ("outputs.final_state.with", "one optional input, and the shape where it is given")
    ]


def test_a_dimension_that_a_required_input_loses_where_another_is_given_is_not_always_bound() -> None:
    """q has no B in a call with cu_seqlens, so nothing that must have B in every call may ask for it."""
    table = copy.deepcopy(_GOOD)
    table["inputs"]["v"]["shape"] = "T H V"
    table["inputs"]["q"]["with"] = {"cu_seqlens": "T H K"}
    table["outputs"]["o"]["shape"] = "B T H V"
    found = {fault.key: fault.expected for fault in _faults(table)}
    assert found == {"outputs.o.shape": "B in an input that is always given, in each of its shapes"}
    table["outputs"]["o"]["with"] = {"cu_seqlens": "T H V"}  # now `shape` speaks of calls without it alone
    table["contract"]["where"] = []
    assert _faults(table) == ()


def test_a_dtype_variable_rises_where_all_its_choices_are_integers() -> None:
    table = _with_value("inputs", "cu_seqlens", "dtype", "I")
    table["dtypes"] = {"I": ["int32", "int64"]}
    table["workloads"][1]["I"] = ["int32"]
    assert not [fault for fault in _faults(table) if fault.key.endswith("rises")]
    table["dtypes"] = {"I": ["int32", "float32"]}
    assert "an integer input, not one of I" in [fault.expected for fault in _faults(table)]


def test_faults_of_all_three_come_at_once() -> None:
    table = _with_value("inputs", "cu_seqlens", "shape", "N-1")
    table["inputs"]["cu_seqlens"]["rises"] = "M"
    table["inputs"]["initial_state"]["with"] = {"q": "B"}
    table["outputs"]["final_state"]["with"] = {"v": "B"}
    assert {fault.key for fault in _faults(table)} >= {
        "inputs.cu_seqlens.shape",
        "inputs.cu_seqlens.rises",
        "inputs.initial_state.with.q",
        "outputs.final_state.with.v",
    }


def test_a_condition_on_presence_is_no_fault_and_one_on_an_unknown_input_is() -> None:
    table = copy.deepcopy(_GOOD)
    table["contract"]["where"] = ["has_cu_seqlens == 0 or B == 1", "has_q == 1"]
    assert [fault.key for fault in _faults(table)] == ["contract.where[1]"]


def _changes(*pairs: tuple[str, str], back: bool = False) -> list[Change]:
    text = _TOML
    for old, new in pairs:
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new, 1)
    before, after = (contract.from_table(tomllib.loads(one), Path("ops/scan.toml")) for one in (_TOML, text))
    return contract_changes(after, before) if back else contract_changes(before, after)


_STATE = 'initial_state = { shape = "B H K V", with = { cu_seqlens = "N H K V" }'
_FINAL = 'final_state = { shape = "B H K V", with = { cu_seqlens = "N H K V" }'

# (old, new, breaking, what is told; and the same backwards)
_CHANGES: list[tuple[str, str, tuple[bool, str], tuple[bool, str]]] = [
    ('"N+1"', '"N+2"', (True, "inputs.cu_seqlens.shape: offset: [N+1] -> [N+2]"), (True, "inputs.cu_seqlens.shape: offset: [N+2] -> [N+1]")),
    ('"N+1"', '"N"', (True, "inputs.cu_seqlens.shape: offset: [N+1] -> [N]"), (True, "inputs.cu_seqlens.shape: offset: [N] -> [N+1]")),
    (', rises = "T"', "", (False, "inputs.cu_seqlens.rises: T -> none"), (True, "inputs.cu_seqlens.rises: none -> T")),
    ('rises = "T"', 'rises = "H"', (True, "inputs.cu_seqlens.rises: T -> H"), (True, "inputs.cu_seqlens.rises: H -> T")),
    ('rises = "T"', 'domain = "[0, inf)"', (False, "inputs.cu_seqlens.rises: T -> none"), (True, "inputs.cu_seqlens.rises: none -> T")),
    (_STATE, 'initial_state = { shape = "B H K V"', (True, "inputs.initial_state.with.cu_seqlens: [N, H, K, V] -> [B, H, K, V]"), (True, "inputs.initial_state.with.cu_seqlens: [B, H, K, V] -> [N, H, K, V]")),
    (_STATE, _STATE.replace("N H K V", "N H V K"), (True, "inputs.initial_state.with.cu_seqlens: [N, H, K, V] -> [N, H, V, K]"), (True, "inputs.initial_state.with.cu_seqlens: [N, H, V, K] -> [N, H, K, V]")),
    (_STATE, _STATE.replace("N H K V", "N+1 H K V"), (True, "inputs.initial_state.with.cu_seqlens: offset: [N, H, K, V] -> [N+1, H, K, V]"), (True, "inputs.initial_state.with.cu_seqlens: offset:")),
    (_FINAL, 'final_state = { shape = "B H K V"', (True, "outputs.final_state.with.cu_seqlens: [N, H, K, V] -> [B, H, K, V]"), (True, "outputs.final_state.with.cu_seqlens: [B, H, K, V] -> [N, H, K, V]")),
    (_FINAL, _FINAL.replace("cu_seqlens", "initial_state").replace("N H", "B H"), (True, "outputs.final_state.with.cu_seqlens: [N, H, K, V] -> [B, H, K, V]"), (True, "outputs.final_state.with.cu_seqlens: [B, H, K, V] -> [N, H, K, V]")),
]  # fmt: skip


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("case", _CHANGES, ids=[str(i) for i in range(len(_CHANGES))])
def test_a_change_is_told_and_classified(case: tuple[str, str, tuple[bool, str], tuple[bool, str]], back: bool) -> None:
    old, new, there, backwards = case
    breaking, what = backwards if back else there
    found = _changes((old, new), back=back)
    assert any(str(change).startswith(what) and change.breaking is breaking for change in found), [*map(str, found)]
    assert any(change.breaking for change in found) is breaking, [*map(str, found)]


def test_a_shape_that_follows_a_new_optional_input_breaks_nobody() -> None:
    """No call gave cu_seqlens before, so none has another shape now."""
    without = [
        (_STATE, 'initial_state = { shape = "B H K V"'),
        (_FINAL, 'final_state = { shape = "B H K V"'),
        ('cu_seqlens = { shape = "N+1", dtype = "int32", optional = true, rises = "T" }\n', ""),
        ('    { expr = "has_cu_seqlens == 0 or B == 1", hint = "pack the sequences into one" },\n', ""),
        ('    "N <= 64",\n    "N >= 1",\n', ""),
    ]
    told = {str(change) for change in _changes(*without, back=True)}
    assert "inputs.cu_seqlens: added, optional (not breaking)" in told
    assert "inputs.initial_state.with.cu_seqlens: [B, H, K, V] -> [N, H, K, V] (not breaking)" in told
    assert "outputs.final_state.with.cu_seqlens: [B, H, K, V] -> [N, H, K, V] (not breaking)" in told


def test_a_smaller_offset_breaks_nobody_where_its_letter_stands_nowhere_else() -> None:
    alone = [(_STATE, 'initial_state = { shape = "B H K V"'), (_FINAL, 'final_state = { shape = "B H K V"')]
    alone += [('    "N <= 64",\n    "N >= 1",\n', "")]
    text = _TOML
    for old, new in alone:
        text = text.replace(old, new)
    ops = [
        contract.from_table(tomllib.loads(text.replace('"N+1"', f'"{shape}"')), Path("ops/scan.toml"))
        for shape in ("N+1", "N")
    ]
    (smaller,) = contract_changes(ops[0], ops[1])
    (larger,) = contract_changes(ops[1], ops[0])
    assert str(smaller) == "inputs.cu_seqlens.shape: offset: [N+1] -> [N] (not breaking)"
    assert str(larger) == "inputs.cu_seqlens.shape: offset: [N] -> [N+1] (breaking)"
