"""A record read is the record written; anything else is refused by file, key and what was expected."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tops_bench import files, records
from tops_bench.records import Record, Row, Speedup

_TEXT = st.text(max_size=8)
_TIME = st.floats(1e-9, 1e9)
_MAYBE = st.none() | _TIME
_ROWS = st.builds(
    Row, op=_TEXT, which=_TEXT, row=_TEXT, label=_TEXT, scale=st.integers(1, 9), dtypes=st.dictionaries(_TEXT, _TEXT),
    params=st.dictionaries(_TEXT, st.none() | st.booleans() | _TEXT | _TIME), inputs=st.dictionaries(_TEXT, _TEXT),
    contender=_TEXT, status=st.sampled_from(["skipped", "failed"]), reason=_TEXT, contract=_TEXT, source=_TEXT,
    method=_TEXT, note=_TEXT, median=_MAYBE, low=_MAYBE, high=_MAYBE, confidence=_MAYBE, iqr=_MAYBE,
    samples=st.lists(_TIME).map(tuple), iterations=st.integers(0, 9), compile_seconds=_MAYBE,
    flops=st.dictionaries(_TEXT, _TIME), nbytes=st.integers(0, 1 << 40), flops_rate=_MAYBE, bytes_rate=_MAYBE,
    bound=_TEXT, efficiency=_MAYBE, certificate=_TEXT, certified_scale=st.integers(0, 9), unverified=_TEXT,
    speedups=st.dictionaries(_TEXT, st.builds(Speedup, _TIME, _TIME, _TIME)),
)  # fmt: skip
_RECORDS = st.builds(
    Record, machine=st.dictionaries(_TEXT, _TEXT), machine_key=_TEXT, versions=st.dictionaries(_TEXT, _TEXT),
    started=_TEXT, quick=st.booleans(), ceilings=st.dictionaries(_TEXT, _TIME),
    rows=st.lists(_ROWS, max_size=3, unique_by=lambda row: row.key).map(tuple),
)  # fmt: skip


@given(_RECORDS)
def test_a_record_survives_the_file(record: Record) -> None:
    text = files.dumps(record.as_data())
    assert records.from_data(json.loads(text), "r") == record
    assert files.dumps(records.from_data(json.loads(text), "r").as_data()) == text


def test_a_record_survives_the_disk(tmp_path: Path, make_record: Callable[..., Record]) -> None:
    path = tmp_path / "deep" / "record.json"
    records.write(path, make_record())
    assert records.read(path) == make_record()
    assert [one.name for one in path.parent.iterdir()] == ["record.json"]  # no half-written file is left


def test_a_number_that_is_none_is_never_written(
    tmp_path: Path, make_record: Callable[..., Record], make_row: Callable[..., Row]
) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        records.write(tmp_path / "r.json", make_record(make_row(efficiency=math.nan)))
    assert not (tmp_path / "r.json").exists()


_FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "schema": (lambda d: d.update(schema=9), "schema 9; expected 1"),
    "a field missing": (lambda d: d.pop("versions"), r"missing \['versions'\]"),
    "a field unknown": (lambda d: d.update(extra=1), r"unknown \['extra'\]"),
    "a row's field missing": (lambda d: d["rows"][0].pop("op"), r"rows\[0\]: missing \['op'\]"),
    "a type": (lambda d: d["rows"][0].update(scale="1"), r"rows\[0\]: scale is a str; expected int"),
    "a bool for a number": (lambda d: d["rows"][0].update(iterations=True), "iterations is a bool; expected int"),
    "a status": (lambda d: d["rows"][0].update(status="fine"), "status 'fine'; expected one of measured"),
    "a sample": (lambda d: d["rows"][0].update(samples=[0.0]), "expected a list of positive numbers"),
    "no sample": (lambda d: d["rows"][0].update(samples=[]), "without samples and median"),
    "a speedup": (lambda d: d["rows"][0].update(speedups={"jnp": {"median": 1.0}}), r"speedups.jnp: missing \['high', 'low'\]"),
    "a row twice": (lambda d: d["rows"].append(d["rows"][0]), "stands there twice"),
    "rows": (lambda d: d.update(rows=[1]), "rows: expected a list of objects"),
}  # fmt: skip


@pytest.mark.parametrize("name", _FAULTS)
def test_what_is_wrong_with_a_record_is_named(tmp_path: Path, make_record: Callable[..., Record], name: str) -> None:
    change, message = _FAULTS[name]
    data = json.loads(files.dumps(make_record().as_data()))
    change(data)
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(files.FileError, match=message) as caught:
        records.read(tmp_path / "r.json")
    assert "r.json" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not strict JSON"),
        ("[]", "a list; expected a JSON object"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": -Infinity}', "Infinity is no JSON number"),
        ('{"a": 1, "a": 2}', "a key is given twice"),
        ("[" * 100_000, "not strict JSON"),
    ],
)
def test_files_are_read_as_strict_json(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(files.FileError, match=message):
        files.read_object(tmp_path / "r.json")


def test_a_missing_or_huge_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(files.FileError, match="No such file"):
        files.read_object(tmp_path / "none.json")
    (tmp_path / "big.json").write_text("[" * 100)
    with pytest.raises(files.FileError, match="100 bytes; expected at most 10"):
        files.read_object(tmp_path / "big.json", 10)


def test_a_file_that_cannot_be_written_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").touch()
    with pytest.raises(files.FileError, match="cannot write"):
        files.write(tmp_path / "folder", "text")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_every_field_of_a_row_has_a_kind_that_is_checked() -> None:
    kinds = {field.type for field in dataclasses.fields(Row)} | {field.type for field in dataclasses.fields(Record)}
    unchecked = {str(kind) for kind in kinds - set(records.KINDS)}
    assert all("Mapping" in kind for kind in unchecked), unchecked
