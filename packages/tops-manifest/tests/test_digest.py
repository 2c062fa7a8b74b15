"""Digests stay when the spelling changes and change when the meaning does."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tops_manifest
from tops_manifest import canonical, contract, digest
from tops_manifest.tree import parse

_TEXT = (contract.ops_folder() / "matmul.toml").read_text()


def _entry(text: str) -> Any:
    return parse(tomllib.loads(text), "ops/matmul.toml", "matmul")


_DIGESTS = _entry(_TEXT).digests()


def _edited(*pairs: tuple[str, str]) -> Any:
    text = _TEXT
    for old, new in pairs:
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new, 1)
    return _entry(text).digests()


_SPELLINGS: list[tuple[str, str]] = [
    ("schema = 1", "# a comment\n\nschema = 1"),
    ('doc = "y = activation', 'doc = "Y is activation'),
    ('ref = "BLAS', 'ref = "the BLAS'),
    ('doc = "left operand; any', 'doc = "any'),
    ('"*B M K"', '" *B  M K "'),
    ('["float32", "bfloat16", "int8"]', '["int8", "bfloat16", "float32"]'),
    ('Y = { of = "X", int8 = "int32" }', 'Y = { int8 = "int32", of = "X", float32 = "float32" }'),
    ('"X == \'int8\' or out_dtype != \'int32\'"', '"(X  ==  \'int8\') or out_dtype != \'int32\'"'),
    ('hint = "int32 results', 'hint = "results'),
    ('vjp = ["a", "b", "bias"]', 'vjp = ["bias", "b", "a"]'),
    ("vmap = true\n", ""),
    ('shard_free = ["B", "M", "N"]', 'shard_free = ["N", "M", "B"]'),
    ('choices = ["none", "relu", "gelu", "silu"]', 'choices = ["silu", "none", "relu", "gelu"]'),
    ("2*B*M*N*K", "2 * B*M*N*(K)"),
    ('"2*B*M*N*K", vpu', '"2*B*M*N*K" , vpu'),
    ('bytes = "io"\n\n[cost.vjp]', "\n[cost.vjp]"),
    ('doc = "the square that peers quote"\n', ""),
    ("dims = { B = [], M = 4096, K = 4096, N = 4096 }", "dims = { N = 4096, K = 4096, M = 4096, B = [] }"),
    ('X = ["float32", "bfloat16"]\npass', 'X = ["bfloat16", "float32"]\npass'),
    ('pass = ["fwd", "vjp"]', 'pass = ["vjp", "fwd"]'),
    ("alternatives = { b = 1 }", "alternatives = { b = 0x1 }"),
    ("dims = { B = [], M = 4096, K = 4096, N = 4096 }", "alternatives = { b = 0 }\ndims = { B = [], M = 4096, K = 4096, N = 4096 }"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), _SPELLINGS, ids=[f"{i}" for i in range(len(_SPELLINGS))])
def test_a_spelling_changes_no_digest(old: str, new: str) -> None:
    assert _edited((old, new)) == _DIGESTS


def test_the_order_of_sections_rows_and_keyword_parameters_changes_no_digest() -> None:
    head, _, rows = _TEXT.partition("[[workloads]]")
    shuffled = "[[workloads]]".join(["", *reversed(rows.split("[[workloads]]"))])
    assert _entry(head + shuffled).digests() == _DIGESTS
    table = tomllib.loads(_TEXT)
    table["params"] = dict(reversed(table["params"].items()))
    assert parse(dict(reversed(table.items())), "ops/matmul.toml", "matmul").digests() == _DIGESTS


def test_a_whole_number_is_the_same_default_as_its_float() -> None:
    text = (contract.ops_folder() / "rms_norm.toml").read_text()
    assert "default = 0.0" in text

    def of(one: str) -> Any:
        return parse(tomllib.loads(one), "ops/rms_norm.toml", "rms_norm").digests()

    assert of(text.replace("default = 0.0", "default = 0")) == of(text)


# (old, new, the digests that must change; all others must not)
_MEANINGS: list[tuple[str, str, set[str]]] = [
    ('"*B M K"', '"*B K M"', {"contract"}),
    ('["K N", "*B K N"]', '["K N", "*B K N", "*B K K N"]', {"contract"}),
    ('["K N", "*B K N"]', '["*B K N", "K N"]', {"contract"}),
    ('dtype = "Y", optional = true, doc', 'dtype = "Y", optional = true, domain = "[0, 1]", doc', {"contract"}),
    ('["float32", "bfloat16", "int8"]', '["float32", "bfloat16", "int8", "float16"]', {"contract"}),
    ('int8 = "int32" }', 'int8 = "int16" }', {"contract"}),
    ('"dtype", optional = true', '"dtype", default = "float32"', {"contract"}),
    ('"none", "relu", "gelu"', '"none", "relu", "gelu", "tanh"', {"contract"}),
    ('dtype = "Y", dtype_param = "out_dtype"', 'dtype = "Y"', {"contract"}),
    ('vjp = ["a", "b", "bias"]', 'vjp = ["a", "b"]', {"contract"}),
    ("vmap = true", "vmap = false", {"contract"}),
    ('shard_free = ["B", "M", "N"]', 'shard_free = ["B"]', {"contract"}),
    ("out_dtype != 'int32'\"", "out_dtype != 'int16'\"", {"contract"}),
    ('kernel_map = ["xla", "pallas_tpu", "pallas_gpu"]', 'kernel_map = ["xla"]', {"listing"}),
    ('status = "implemented"', 'status = "deprecated"', {"listing", "status"}),
    ('family = "matmul"', 'family = "linear"', {"listing"}),
    ("version = 1", "version = 2", {"version"}),
    ("2*B*M*N*K", "3*B*M*N*K", {"cost"}),
    ('bytes = "io"', 'bytes = "B*M"', {"cost"}),
    ("M = 4096, K = 4096, N = 4096", "M = 4096, K = 4096, N = 2048", {"workloads"}),
    ('name = "square-4k"', 'name = "square-4096"', {"workloads"}),
    ('activation = "silu"', 'activation = "gelu"', {"workloads"}),
    ('pass = ["fwd", "vjp"]', 'pass = ["fwd"]', {"workloads"}),
    ('present = ["bias"]\n', "", {"workloads"}),
    ("alternatives = { b = 1 }\n", "", {"workloads"}),
]


@pytest.mark.parametrize(("old", "new", "changed"), _MEANINGS, ids=[f"{i}" for i in range(len(_MEANINGS))])
def test_a_change_of_meaning_changes_the_digest_of_its_part_and_no_other(old: str, new: str, changed: set[str]) -> None:
    text = _TEXT.replace(old, new, 1)
    assert text != _TEXT
    after = _entry(text).digests()
    was, now = dataclasses.asdict(_DIGESTS), dataclasses.asdict(after)
    assert {part for part in was if was[part] != now[part]} == changed


def test_the_order_of_inputs_is_part_of_the_contract() -> None:
    table = tomllib.loads(_TEXT)
    inputs = table["inputs"]
    table["inputs"] = {"b": {**inputs["b"], "shape": "*B K N"}, "a": inputs["a"], "bias": inputs["bias"]}
    table["workloads"] = [row for row in table["workloads"] if row.pop("alternatives", None) is None]
    one = contract.from_table(table, Path("ops/matmul.toml"))
    table["inputs"] = {"a": inputs["a"], "b": {**inputs["b"], "shape": "*B K N"}, "bias": inputs["bias"]}
    other = contract.from_table(table, Path("ops/matmul.toml"))
    assert canonical.contract_digest_of(one) != canonical.contract_digest_of(other)


@pytest.mark.parametrize("name", tops_manifest.op_names())
def test_the_packaged_digests_are_those_of_the_files(name: str) -> None:
    found = digest.digests(name)
    assert found.contract == digest.contract_digest(name) == canonical.contract_digest(name)
    assert found.workloads == digest.workloads_digest(name)
    assert found.cost == digest.cost_digest(name)
    assert all(len(part) == 64 for part in (found.contract, found.listing, found.workloads, found.cost))


def test_an_unknown_op_has_no_digest() -> None:
    for of in (digest.contract_digest, digest.workloads_digest, digest.cost_digest, digest.digests):
        with pytest.raises(KeyError, match="no op 'nope'"):
            of("nope")


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)  # fmt: skip


@given(value=st.dictionaries(st.text(max_size=3), _json, max_size=4))
def test_canonical_json_is_ascii_without_spaces_and_does_not_depend_on_order(value: dict[str, Any]) -> None:
    text = canonical.canonical_json(value)
    assert text == canonical.canonical_json(dict(reversed(value.items())))
    assert text.isascii()
    assert "\n" not in text


def test_canonical_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical.canonical_json({"x": float("nan")})


def test_the_digest_is_sha256_of_the_canonical_json() -> None:
    """Other tools must be able to work it out: `printf '{"a":1}' | sha256sum`."""
    assert canonical.digest({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
