"""Whatever a file holds, reading it gives an op or a ManifestError, never another exception."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tops_manifest import contract
from tops_manifest._reader import parse_toml
from tops_manifest.contract import SECTIONS
from tops_manifest.errors import Fault, ManifestError
from tops_manifest.tree import Entry, parse

_WORDS = ["X", "Y", "K", "*B", "B T K", "float32", "int8", "xla", "fwd", "vjp", "io", "T >= 1", "K ** -0.5", "1 / 0", "(-inf, 0]", "q", "has_q", "",
          "lambda", "é\n", "9" * 400, "(" * 60, "inf", "nan", "mxu", "of", "backend", "N+1", "*B+1", "s", "T"]  # fmt: skip
_KEYS = ["q", "g", "o", "X", "Y", "K", "B", "of", "shape", "dtype", "optional", "domain", "doc", "type", "default", "choices", "where", "vjp", "vmap",
         "shard_free", "expr", "hint", "flops", "bytes", "mxu", "name", "family", "version", "status", "kernel_map", "dims", "pass", "present", "params",
         "alternatives", "dtype_param", "with", "rises", "indexes", "only", "s", "cu_seqlens", "a b", "é", *SECTIONS]  # fmt: skip
_scalars = st.one_of(
    st.sampled_from(_WORDS), st.text(max_size=8), st.booleans(), st.integers(), st.integers(-3, 5), st.floats(), st.dates(),
    st.builds(lambda: 10**5000), st.builds(lambda: 1 << 20000),
)  # fmt: skip
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5)),
    max_leaves=20,
)
_tables = st.dictionaries(st.sampled_from(SECTIONS), _values, max_size=9)
_FILES = [*contract.ops_folder().glob("*.toml"), Path(__file__).parent / "scan.toml"]
_REAL = {path.stem: tomllib.loads(path.read_text()) for path in _FILES}


def _read(table: dict[str, Any], stem: str = "q") -> Entry | None:
    try:
        entry = parse(table, f"ops/{stem}.toml", stem)
        entry.digests()
        return entry
    except ManifestError as error:
        faults = error.faults
    assert faults
    assert all(fault.file and fault.expected and "\n" not in str(fault) for fault in faults)
    return None


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(table=_tables)
def test_any_table_is_read_or_told_what_is_wrong_with_it(table: dict[str, Any]) -> None:
    assert _read(table) is None  # an op by accident would be one in more than all the atoms


@st.composite
def _edited(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A real file with one to three values replaced, removed or added, anywhere in it."""
    name = draw(st.sampled_from(sorted(_REAL)))
    table = copy.deepcopy(_REAL[name])
    for _ in range(draw(st.integers(1, 3))):
        at: Any = table
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(at[key], dict | list) and at[key] and draw(st.booleans()):
                at = at[key]
                continue
            action = draw(st.sampled_from(["replace", "remove", "add"]))
            if action == "replace":
                at[key] = draw(_values)
            elif action == "remove":
                del at[key]
            elif isinstance(at, dict):
                at[draw(st.sampled_from(_KEYS))] = draw(_values)
            else:
                at.append(draw(_values))
            break
    return name, table


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(edited=_edited())
def test_a_real_file_after_any_edit_is_read_or_told_what_is_wrong_with_it(edited: tuple[str, dict[str, Any]]) -> None:
    name, table = edited
    entry = _read(table, name)
    if entry is not None:  # sound, so everything that is derived from it works
        for row in entry.rows:
            for case in row.cases():
                binding = case.binding()
                assert list(binding.outputs()) == [spec.name for spec in entry.op.outputs]
                for which in case.passes:
                    assert all(value >= 0 for value in entry.cost.flops(which, binding).values())
                    assert entry.cost.bytes(which, binding, case.inputs()) >= 0


@settings(max_examples=200, deadline=None)
@given(data=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_toml_or_told_what_is_wrong_with_them(data: bytes) -> None:
    faults: tuple[Fault, ...] = ()
    try:
        parse_toml(data, "ops/x.toml")
    except ManifestError as error:
        faults = error.faults
    assert [fault.key for fault in faults] in ([], ["(file)"])


@pytest.mark.parametrize(
    "data",
    [
        b"a = 1\na = 2",
        b"[op]\n[op]",
        b"\xff\xfe",
        b"x = 1e",
        b"a = " + b"[" * 100_000,
        b"a = " + b"9" * 10_000,
        b"\x00",
        b"= 1",
    ],
    ids=["twice", "table twice", "not utf-8", "cut off", "deep", "huge", "nul", "no key"],
)
def test_bytes_that_are_no_toml_are_a_fault(data: bytes) -> None:
    with pytest.raises(ManifestError, match=r"ops/x.toml: \(file\): got .*; expected (valid TOML|UTF-8 text)"):
        parse_toml(data, "ops/x.toml")


def test_nesting_just_within_the_parsers_limit_is_a_fault_and_no_more() -> None:
    depth = 150
    table = tomllib.loads("schema = " + "[" * depth + "]" * depth)
    with pytest.raises(ManifestError, match="schema"):
        parse(table, "ops/x.toml", "x")
