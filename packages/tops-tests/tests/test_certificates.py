"""A certificate holds here and now or says why not: stale, edited, renamed, of another platform, older than its sources."""

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import tops_kernels
import tops_manifest
from tops_manifest.workloads import Case, cases
from tops_tests import certificates, digests, tolerances
from tops_tests.canonical import canonical, sha256
from tops_tests.certificates import Key
from tops_tests.optest import Measured

OP = tops_manifest.op("rms_norm")
CASE: Case = cases("rms_norm")[0]
KEY = Key(OP, "xla", "fwd", CASE.row, CASE.dtypes, False)


@pytest.fixture(autouse=True)
def _workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path))


@pytest.fixture
def issued() -> Path:
    return certificates.issue(KEY, CASE, {"y": Measured(1e-7, 1e-6)})


def _edit(path: Path, change: Callable[[dict[str, Any]], None], *, sign: bool = True) -> None:
    data = json.loads(path.read_text())
    change(data)
    if sign:  # as one who knows the rules would
        data["content"] = sha256({name: value for name, value in data.items() if name != "content"})
    path.write_text(canonical(data))


def test_a_fresh_one_is_valid_and_says_what_was_checked_where(issued: Path) -> None:
    assert certificates.invalid(issued) == ""
    assert certificates.all_paths() == (issued,)
    data, why = certificates.read(issued)
    assert why == ""
    assert data is not None
    assert data["digests"] == digests.digests(OP, "xla")
    assert set(data["digests"]) == {"contract", "kernel", "oracle", "tolerance"}
    assert data["platform"] == jax.default_backend()
    assert {"jax", "jaxlib", "numpy", "python", "tops-kernels", "tops-tests"} <= set(data["versions"])
    assert data["errors"] == {"y": {"measured": 1e-7, "tolerance": 1e-6}}


@pytest.mark.parametrize("part", ["contract", "kernel", "oracle", "tolerance"])
def test_any_digest_that_changed_makes_it_stale_and_says_which(
    issued: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = digests.digests(OP, "xla")
    monkeypatch.setattr(digests, "digests", lambda op, implementation: {**now, part: "f" * 64})
    why = certificates.invalid(issued)
    assert why.startswith(f"stale: {part} is ffffffff now")
    assert "tops-tests certify rms_norm" in why


@pytest.mark.parametrize("package", ["jax", "jaxlib", "numpy", "tops-kernels", "python"])
def test_another_version_makes_it_invalid(issued: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = digests.versions()
    monkeypatch.setattr(digests, "versions", lambda: {**now, package: "99.0"})
    assert certificates.invalid(issued).startswith(f"issued with {package} {now[package]}, here is 99.0")


EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "another platform": (lambda d: d.update(platform="tpu"), "issued on tpu; this machine runs "),
    "another device": (lambda d: d.update(device_kind="TPU v9"), "issued on TPU v9; this machine has "),
    "another row": (lambda d: d.update(row="other"), "under a name that is not its own"),
    "another pass": (lambda d: d.update({"pass": "vjp"}), "under a name that is not its own"),
    "another op": (lambda d: d.update(op="nonsense"), "of op 'nonsense', which the manifest has not"),
    "another implementation": (lambda d: d.update(implementation="gone"), "under a name that is not its own"),
    "an error over its tolerance": (
        lambda d: d["errors"]["y"].update(measured=1.0),
        "errors.y: measured 1.0, tolerance 1e-06",
    ),
    "a negative error": (lambda d: d["errors"]["y"].update(measured=-1.0), "errors.y: measured -1.0"),
    "no errors": (lambda d: d.update(errors={}), "no errors measured"),
    "an error of another form": (lambda d: d.update(errors={"y": 0.0}), "errors.y: expected measured and tolerance"),
    "no date": (lambda d: d.update(issued="yesterday"), "issued 'yesterday': no date"),
    "a schema to come": (lambda d: d.update(schema=2), "schema 2; expected 1"),
    "a field too many": (lambda d: d.update(note="trust me"), "fields missing: [], unknown: ['note']"),
    "a field too few": (lambda d: d.pop("versions"), "fields missing: ['versions'], unknown: []"),
    "a field of another type": (lambda d: d.update(scale="1"), "scale is a str; expected int"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_seen_with_its_hash_mended_and_without(issued: Path, name: str) -> None:
    change, says = EDITS[name]
    original = issued.read_text()
    _edit(issued, change)
    assert says in certificates.invalid(issued)
    issued.write_text(original)
    assert certificates.invalid(issued) == ""
    _edit(issued, change, sign=False)
    assert certificates.invalid(issued) != ""


def test_an_edit_without_a_new_hash_is_told_as_one(issued: Path) -> None:
    _edit(issued, lambda data: data["errors"]["y"].update(measured=1e-8), sign=False)
    assert certificates.invalid(issued) == "edited by hand: its content hash does not fit its content"


def test_one_older_than_its_sources_is_invalid_though_every_digest_fits(issued: Path) -> None:
    long_ago = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC).isoformat()
    _edit(issued, lambda data: data.update(issued=long_ago))
    assert certificates.invalid(issued).startswith("older than its sources, which changed since 2001-01-01")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not readable as JSON"),
        (b"{", "not readable as JSON"),
        (b"\xff\xfe", "not readable as JSON"),
        (b"[1]", "a list; expected an object"),
        (b'{"schema": 1}', "fields missing: "),
        (b"[" * 100_000, "over 65536 bytes"),
        (b"[" * 60_000, "not readable as JSON"),
    ],
)
def test_a_file_that_is_no_certificate_is_told_so_and_never_raises(issued: Path, content: bytes, says: str) -> None:
    issued.write_bytes(content)
    assert says in certificates.invalid(issued)


def test_a_copy_under_another_name_is_no_certificate_of_that_name(issued: Path) -> None:
    other = dataclasses.replace(KEY, which="vjp").path
    other.write_bytes(issued.read_bytes())
    assert "under a name that is not its own" in certificates.invalid(other)
    assert certificates.invalid(issued) == ""


def test_revoking_removes_it_and_says_whether_there_was_one(issued: Path) -> None:
    assert certificates.revoke(KEY)
    assert not issued.exists()
    assert not certificates.revoke(KEY)


def test_a_write_that_fails_leaves_the_old_file_and_no_part_of_the_new(
    issued: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = issued.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        certificates.issue(KEY, CASE, {"y": Measured(0.0, 1e-6)})
    assert issued.read_bytes() == before
    assert list(issued.parent.iterdir()) == [issued]


def test_the_stages_own_digests_stand_in_a_file_that_others_can_read() -> None:
    certificates.write_stage({"rms_norm": OP})
    stage = json.loads((certificates.folder() / "stage.json").read_text())
    assert stage["oracle"] == {"rms_norm": digests.oracle_digest(OP)}
    assert stage["tolerance"] == {"rms_norm": tolerances.digest("rms_norm")}


def test_kernels_and_baselines_have_digests_of_their_own() -> None:
    assert digests.digests(OP, "xla")["kernel"] == tops_kernels.source_digest("rms_norm", "xla")
    assert digests.digests(OP, "xla")["kernel"] != digests.digests(OP, "pallas_tpu")["kernel"]
