"""`indexes`: an input whose values are positions along a dimension."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tops_manifest import ArraySpec, ContractValueError, bind, contract, table
from tops_manifest.canonical import canonical_json, contract_data
from tops_manifest.changes import contract_changes
from tops_manifest.errors import Fault, ManifestError
from tops_manifest.tree import parse
from tops_manifest.workloads import from_table

_TOML = (Path(__file__).parent / "pick.toml").read_text()
_GOOD = tomllib.loads(_TOML)
_FILE = Path("ops/pick.toml")
_OP = contract.from_table(_GOOD, _FILE)


def _faults(changed: dict[str, Any]) -> tuple[Fault, ...]:
    try:
        parse(changed, "ops/pick.toml", "pick")
    except ManifestError as error:
        return error.faults
    return ()


def test_the_file_is_sound_and_read() -> None:
    assert _faults(_GOOD) == ()
    assert _OP.input("index").indexes == "P"
    assert _OP.input("s").indexes is None


# (key that is set, its value, key that is named, what was expected)
_MISTAKES: list[tuple[str, Any, str, str]] = [
    ("indexes", "M", "indexes", "a dimension that other inputs bind in every call with index (known: B K P)"),
    ("indexes", 8, "indexes", "a string"),
    ("dtype", "uint32", "indexes", "an input of signed integers, not one of uint32"),
    ("dtype", "float32", "indexes", "an input of signed integers, not one of float32"),
    ("shape", "B K", "indexes", "an input of one dimension"),
    ("domain", "[0, inf)", "domain", "no domain beside indexes = 'P'"),
    ("rises", "B", "rises", "no rises beside indexes = 'P'"),
]


@pytest.mark.parametrize(("key", "value", "named", "expected"), _MISTAKES, ids=[str(i) for i in range(len(_MISTAKES))])
def test_a_mistake_is_named(key: str, value: object, named: str, expected: str) -> None:
    changed = copy.deepcopy(_GOOD)
    changed["inputs"]["index"][key] = value
    found = [(fault.key, fault.expected) for fault in _faults(changed)]
    assert any(at == f"inputs.index.{named}" and what.startswith(expected) for at, what in found), found


def test_what_is_indexed_must_be_there_in_every_call_with_the_index() -> None:
    changed = copy.deepcopy(_GOOD)
    del changed["inputs"]["s"]["with"]
    changed["inputs"]["pool"] = {"shape": "P K", "dtype": "float32", "optional": True}
    assert [fault.key for fault in _faults(changed)] == ["inputs.index.indexes"]


def test_bind_sees_shapes_alone() -> None:
    arrays = {"q": ArraySpec((2, 4), "float32"), "s": ArraySpec((7, 4), "float32"), "index": ArraySpec((2,), "int32")}
    assert bind(_OP, arrays, {}).dims == {"B": 2, "K": 4, "P": 7}
    with pytest.raises(ContractValueError, match=r"pick: index has shape \(3,\); expected \[B\] = \(2,\) from q"):
        bind(_OP, {**arrays, "index": ArraySpec((3,), "int32")}, {})
    with pytest.raises(ContractValueError, match=r"pick: s has shape \(7, 4\).*where index is not given"):
        bind(_OP, {**arrays, "index": None}, {})


def test_rows_and_their_bytes_know_of_it() -> None:
    (row,) = from_table(_GOOD, _OP, _FILE)
    assert [case.inputs()["s"].shape for case in row.cases()] == [(7, 4)]


def test_it_is_part_of_the_contract_and_no_key_where_it_is_not_said() -> None:
    inputs = contract_data(_OP)["inputs"]
    assert isinstance(inputs, list)
    assert inputs[2]["indexes"] == "P"
    without = contract.from_table(tomllib.loads(_TOML.replace(', indexes = "P"', "")), _FILE)
    assert "indexes" not in canonical_json(contract_data(without))


@pytest.mark.parametrize(
    ("new", "there", "back"),
    [("", False, True), (', indexes = "B"', True, True), (', domain = "[-5, inf)"', False, True)],
)
def test_a_change_is_told_and_classified(new: str, there: bool, back: bool) -> None:
    changed = contract.from_table(tomllib.loads(_TOML.replace(', indexes = "P"', new)), _FILE)
    for old, other, breaking in ((_OP, changed, there), (changed, _OP, back)):
        found = contract_changes(old, other)
        assert any(change.key == "inputs.index.indexes" for change in found)
        assert any(change.breaking for change in found) is breaking, [*map(str, found)]


def test_people_are_told() -> None:
    assert table.input_notes(_OP.input("index")) == ["optional", "each of 0 to P - 1 at most once, or -1"]
