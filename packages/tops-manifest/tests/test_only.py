"""`only`: an optional input that some implementations do not take."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tops_manifest import contract, table
from tops_manifest.canonical import canonical_json, contract_data
from tops_manifest.changes import contract_changes
from tops_manifest.errors import Fault, ManifestError
from tops_manifest.tree import parse

_TEXT = (Path(__file__).parent / "pick.toml").read_text()
_ONLY = 'optional = true, only = ["xla"], indexes = "P"'
_TOML = _TEXT.replace('kernel_map = ["xla"]', 'kernel_map = ["xla", "pallas_tpu", "pallas_gpu"]').replace(
    'optional = true, indexes = "P"', _ONLY
)
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
    assert _OP.input("index").only == ("xla",)
    assert _OP.input("s").only == ()


def test_an_implementation_takes_the_contract_without_what_it_lacks() -> None:
    assert _OP.lacks("pallas_tpu") == {"index"}
    assert not _OP.lacks("xla")
    assert [spec.name for spec in _OP.as_taken_by("pallas_tpu").inputs] == ["q", "s"]
    assert _OP.as_taken_by("xla") == _OP


# (input, its key `only`, what was expected)
_MISTAKES: list[tuple[str, Any, str]] = [
    ("index", [], "a list that is not empty"),
    ("index", "xla", "a list of strings"),
    ("index", ["xla", "triton"], "xla or pallas_tpu or pallas_gpu"),
    ("index", ["pallas_tpu"], "xla among them"),
    ("index", ["xla", "pallas_gpu", "pallas_tpu"], "fewer than all of op.kernel_map"),
    ("q", ["xla"], "an optional input"),
]


@pytest.mark.parametrize(("name", "only", "expected"), _MISTAKES, ids=[str(i) for i in range(len(_MISTAKES))])
def test_a_mistake_is_named(name: str, only: object, expected: str) -> None:
    changed = copy.deepcopy(_GOOD)
    changed["inputs"][name]["only"] = only
    found = [(fault.key, fault.expected) for fault in _faults(changed)]
    assert any(at == f"inputs.{name}.only" and what.startswith(expected) for at, what in found), found


def test_it_is_part_of_the_contract_and_no_key_where_it_is_not_said() -> None:
    assert '"only":["xla"]' in canonical_json(contract_data(_OP))
    without = contract.from_table(tomllib.loads(_TOML.replace(_ONLY, 'optional = true, indexes = "P"')), _FILE)
    assert "only" not in canonical_json(contract_data(without))


@pytest.mark.parametrize(
    ("new", "there", "back"),
    [
        ("", False, True),
        (', only = ["xla", "pallas_tpu"]', False, True),
        (', only = ["pallas_gpu", "xla"]', False, True),
    ],
)
def test_a_change_breaks_where_fewer_take_it(new: str, there: bool, back: bool) -> None:
    changed = contract.from_table(tomllib.loads(_TOML.replace(', only = ["xla"]', new)), _FILE)
    for old, other, breaking in ((_OP, changed, there), (changed, _OP, back)):
        found = contract_changes(old, other)
        assert [change.key for change in found] == ["inputs.index.only"]
        assert found[0].breaking is breaking, str(found[0])


def test_people_are_told() -> None:
    assert "xla alone" in table.input_notes(_OP.input("index"))
