"""Waivers: one file, reasons of a fixed list, a day on which each ends, nothing that names what is not there."""

import datetime
from pathlib import Path

import pytest

from tops_tests import waivers

TODAY = datetime.date(2026, 6, 1)
GOOD = """
[[waiver]]
kind = "xfail"
op = "rms_norm"
check = "vmap_is_a_loop"
implementation = "pallas_tpu"
reason = "upstream-bug"
detail = "jax-ml/jax#1"
expires = 2026-06-30
"""


def _read(folder: Path, text: str) -> tuple[tuple[waivers.Waiver, ...], tuple[str, ...]]:
    path = folder / "waivers.toml"
    path.write_text(text)
    return waivers.read(path)


def _faults(found: tuple[waivers.Waiver, ...], today: datetime.date = TODAY) -> list[str]:
    return waivers.faults(found, {"rms_norm": ["xla", "pallas_tpu"]}, ["vmap_is_a_loop"], today)


def test_a_good_waiver_covers_its_op_check_and_implementation_alone(tmp_path: Path) -> None:
    found, form = _read(tmp_path, GOOD)
    assert form == ()
    assert _faults(found) == []
    assert waivers.find(found, "rms_norm", "vmap_is_a_loop", "pallas_tpu") is found[0]
    assert waivers.find(found, "rms_norm", "vmap_is_a_loop", "xla") is None
    assert waivers.find(found, "rms_norm", "another", "pallas_tpu") is None
    assert waivers.find(found, "matmul", "vmap_is_a_loop", "pallas_tpu") is None
    assert waivers.summary(found) == "waivers: 0 skip, 1 xfail"


def test_without_an_implementation_it_covers_all(tmp_path: Path) -> None:
    found, _ = _read(tmp_path, GOOD.replace('implementation = "pallas_tpu"\n', ""))
    assert waivers.find(found, "rms_norm", "vmap_is_a_loop", "xla") is found[0]


def test_on_its_day_it_holds_and_on_the_next_it_is_a_fault(tmp_path: Path) -> None:
    found, _ = _read(tmp_path, GOOD)
    assert _faults(found, datetime.date(2026, 6, 30)) == []
    (fault,) = _faults(found, datetime.date(2026, 7, 1))
    assert "expired on 2026-06-30" in fault


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('kind = "xfail"', 'kind = "ignore"', "kind: got 'ignore'; expected skip or xfail"),
        ('reason = "upstream-bug"', 'reason = "flaky"', "reason: got 'flaky'; expected one of no-device"),
        ('detail = "jax-ml/jax#1"', 'detail = ""', "detail: got ''; expected a text"),
        ("expires = 2026-06-30", "", "expires: got None; expected a date"),
        ("expires = 2026-06-30", 'expires = "never"', "expires: got 'never'; expected a date"),
        ("expires = 2026-06-30", "expires = 2026-06-30T00:00:00", "expected a date"),
        ('op = "rms_norm"', "op = 3", "op: got 3; expected a text"),
        ('implementation = "pallas_tpu"', "implementation = 3", "implementation: got 3; expected a text"),
        ('kind = "xfail"', 'kind = "xfail"\nstrict = false', "strict: no such key"),
        ("[[waiver]]", "[[waivers]]", "expected [[waiver]] tables alone; got waivers"),
        ("[[waiver]]", "[[waiver", "waivers.toml: "),
    ],
)
def test_a_waiver_of_bad_form_is_a_fault_and_waives_nothing(tmp_path: Path, old: str, new: str, says: str) -> None:
    found, form = _read(tmp_path, GOOD.replace(old, new))
    assert found == ()
    assert any(says in fault for fault in form), form


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('op = "rms_norm"', 'op = "norm"', "no such op (known: rms_norm)"),
        ("vmap_is_a_loop", "vmap", "no such check (known: vmap_is_a_loop)"),
        ('"pallas_tpu"', '"pallas_gpu"', "rms_norm has no implementation 'pallas_gpu'"),
    ],
)
def test_a_waiver_of_nothing_is_a_fault(tmp_path: Path, old: str, new: str, says: str) -> None:
    found, form = _read(tmp_path, GOOD.replace(old, new))
    assert form == ()
    assert any(says in fault for fault in _faults(found)), _faults(found)


def test_the_committed_file_reads() -> None:
    assert waivers.read()[1] == ()
