"""The README's example file and its fault are what this package reads and says."""

import re
import tomllib
from pathlib import Path

import pytest

import tops_manifest
from tops_manifest.errors import ManifestError
from tops_manifest.tree import parse

_TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


_EXAMPLES = re.findall(r"```toml\n(.*?)```", _TEXT, re.DOTALL)


def _example() -> str:
    text: str = _EXAMPLES[0]
    return text


def _packed() -> tops_manifest.Op:
    """The first example with the sections of the second in place of its own."""
    table = tomllib.loads(_example()) | tomllib.loads(_EXAMPLES[1])
    table["op"]["status"] = "planned"
    table["cost"] = {"flops": {"mxu": "4*B*T*H*K*V"}, "vjp": {"flops": {"mxu": "12*B*T*H*K*V"}}}
    table["workloads"] = []
    return parse(table, "ops/gla.toml", "gla").op


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


def test_the_example_of_packed_sequences_is_sound_and_its_wrong_calls_are_ones() -> None:
    op, spec = _packed(), tops_manifest.ArraySpec
    arrays = {"q": spec((1, 8, 2, 16), "float32"), "v": spec((1, 8, 2, 32), "float32")}
    state, three = spec((4, 2, 16, 32), "float32"), spec((4,), "int32")
    final = tops_manifest.bind(op, {**arrays, "cu_seqlens": three}, {}).outputs()["final_state"]
    assert final.shape == (3, 2, 16, 32)
    wrong = {"cu_seqlens": spec((0,), "int32")}, {"cu_seqlens": three, "initial_state": state}, {"initial_state": state}
    for given in wrong:
        with pytest.raises(tops_manifest.ContractValueError) as raised:
            tops_manifest.bind(op, {**arrays, **given}, {})
        assert f"    {raised.value}\n" in _TEXT
