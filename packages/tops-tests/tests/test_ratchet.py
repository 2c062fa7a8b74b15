"""Tolerances: one table, a lock beside it, and a ratchet that lets them tighten and asks for words to loosen."""

import dataclasses
import json
from pathlib import Path

import pytest

import tops_manifest
from tops_tests import ratchet, tolerances
from tops_tests.ratchet import Lock, LockError
from tops_tests.tolerances import TABLE, Key, ToleranceError, tolerance

OLD = Lock("0.1.0", {"op/float32/y/fwd": 1e-6, "op/bfloat16/y/fwd": 4e-3})


def _new(version: str = "0.1.0", **changes: float) -> Lock:
    return Lock(version, {**OLD.tolerances, **{key.replace("__", "/"): value for key, value in changes.items()}})


def _changelog(folder: Path, text: str) -> Path:
    path = folder / "CHANGELOG.md"
    path.write_text(f"# Changelog\n\n## tops-kernels\n\n### 0.2.0\n\n- tolerance\n\n## tops-tests\n\n{text}")
    return path


def test_tightening_and_new_entries_are_free() -> None:
    assert ratchet.faults(_new(op__float32__y__fwd=1e-7), OLD, None) == []
    assert ratchet.faults(_new(op__int32__y__fwd=0.0), OLD, None) == []


@pytest.mark.parametrize("change", ["larger", "gone"])
def test_loosening_needs_a_version_and_a_line_that_says_so(tmp_path: Path, change: str) -> None:
    def loose(version: str) -> Lock:
        if change == "larger":
            return _new(version, op__float32__y__fwd=2e-6)
        return Lock(version, {"op/bfloat16/y/fwd": 4e-3})

    (without,) = ratchet.faults(loose("0.1.0"), OLD, None)
    assert "op/float32/y/fwd: 1e-06 -> " in without
    assert "without a new version" in without
    for text in ("", "### 0.2.0\n\n- Faster.\n", "### 0.1.0\n\n- The tolerance of op.\n"):
        (silent,) = ratchet.faults(loose("0.2.0"), OLD, _changelog(tmp_path, text))
        assert "has no line that speaks of the tolerance" in silent
    assert ratchet.faults(loose("0.2.0"), OLD, None) != []
    said = _changelog(tmp_path, "### 0.2.0\n\n- The tolerance of op in float32 is 2e-6: longer sums.\n")
    assert ratchet.faults(loose("0.2.0"), OLD, said) == []


def test_a_lower_version_does_not_unlock(tmp_path: Path) -> None:
    said = _changelog(tmp_path, "### 0.0.9\n\n- tolerance\n")
    assert ratchet.faults(_new("0.0.9", op__float32__y__fwd=2e-6), OLD, said) != []


def test_versions_compare_as_numbers(tmp_path: Path) -> None:
    said = _changelog(tmp_path, "### 0.10.0\n\n- tolerance\n")
    old = dataclasses.replace(OLD, version="0.9.0")
    assert ratchet.faults(_new("0.10.0", op__float32__y__fwd=2e-6), old, said) == []


def test_the_committed_lock_is_the_table() -> None:
    assert ratchet.check(None) == []


def test_a_table_that_left_its_lock_behind_is_told_which_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    key = next(iter(TABLE))
    monkeypatch.setattr(tolerances, "TABLE", {**TABLE, key: TABLE[key] / 2})
    monkeypatch.setattr(tolerances.as_data, "__defaults__", (tolerances.TABLE, None))
    (fault,) = ratchet.check(None)
    assert str(key) in fault
    assert "tops-tests tolerances --lock" in fault


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "tolerances.lock: "),
        ("[]", "expected an object of `version` and `tolerances`"),
        (json.dumps({"version": "0.1.0", "tolerances": {"a": "b"}}), "a: got 'b'; expected a number in"),
        (json.dumps({"version": "0.1.0", "tolerances": {"a": 1.0}}), "a: got 1.0; expected a number in"),
        (json.dumps({"version": "0.1.0", "tolerances": {"a": True}}), "a: got True"),
        (json.dumps({"version": "0.1.0", "tolerances": {"a": float("nan")}}), "a: got nan"),
        (json.dumps({"version": "new", "tolerances": {}}), "version: got 'new'; expected major.minor.patch"),
    ],
)
def test_a_broken_lock_is_told_with_key_and_value(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "tolerances.lock"
    path.write_text(text)
    with pytest.raises(LockError) as caught:
        ratchet.read(path)
    assert says in str(caught.value)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    ratchet.write(OLD, tmp_path / "lock")
    assert ratchet.read(tmp_path / "lock") == OLD


def test_the_table_has_every_output_and_gradient_and_nothing_else() -> None:
    wanted = set()
    for op in tops_manifest.ops():
        if op.status == "implemented":
            for key in TABLE:
                names = [spec.name for spec in op.outputs] if key.which == "fwd" else [f"d{name}" for name in op.vjp]
                if key.op == op.name and key.output in names:
                    wanted.add(key)
            assert {key.output for key in wanted if key.op == op.name} >= {spec.name for spec in op.outputs}
            assert {key.output for key in wanted if key.op == op.name} >= {f"d{name}" for name in op.vjp}
    assert wanted == set(TABLE)


def test_what_the_table_lacks_is_refused_with_the_key_to_add() -> None:
    with pytest.raises(
        ToleranceError, match="matmul: no tolerance for z in float32, pass fwd: add matmul/float32/z/fwd"
    ):
        tolerance("matmul", "float32", "z", "fwd")
    assert tolerance("a", "b", "c", "fwd", {Key("a", "b", "c", "fwd"): 0.5}) == 0.5


def test_the_digest_is_of_one_ops_rows_alone() -> None:
    assert len({tolerances.digest(op) for op in ("matmul", "rms_norm", "add_rms_norm")}) == 3
