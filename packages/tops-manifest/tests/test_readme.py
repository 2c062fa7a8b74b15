"""The README's example file and its fault are what this package reads and says."""

import re
import tomllib
from pathlib import Path

import pytest

import tops_manifest
from tops_manifest.errors import ManifestError
from tops_manifest.tree import parse

_TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def _example() -> str:
    found = re.search(r"```toml\n(.*?)```", _TEXT, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_file_is_sound() -> None:
    entry = parse(tomllib.loads(_example()), "ops/gla.toml", "gla")
    assert [row.name for row in entry.rows] == ["gla-1b3-train-4k"]


def test_the_example_of_a_fault_is_one() -> None:
    wrong = _example().replace('o = { shape = "*B T V"', 'o = { shape = "*B T D"')
    with pytest.raises(ManifestError) as raised:
        parse(tomllib.loads(wrong), "ops/gla.toml", "gla")
    assert str(raised.value) in _TEXT


def test_the_example_of_a_wrong_call_is_one() -> None:
    spec = tops_manifest.ArraySpec
    arrays = {"a": spec((8, 128, 64), "bfloat16"), "b": spec((64, 256), "bfloat16")}
    assert str(tops_manifest.bind(tops_manifest.op("matmul"), arrays, {"activation": "gelu"}).outputs()) in _TEXT
    with pytest.raises(tops_manifest.ContractValueError) as raised:
        tops_manifest.bind(tops_manifest.op("matmul"), arrays, {"activation": "gel"})
    assert str(raised.value) in _TEXT
