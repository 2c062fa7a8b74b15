"""A unit's file: what comes out is what went in, or nothing."""

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tops_kernels.runtime import artifacts, storing, toolchain
from tops_kernels.runtime.artifacts import ArtifactError, Unit, pack, unpack
from tops_kernels.runtime.spec import spec


@pytest.fixture
def unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Unit:
    """One whose code is random bytes, and a workspace of its own."""
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setattr(storing, "_warned", set())
    asked = spec("rms_norm", {"x": np.ones((4, 8), np.float32)}, target="cpu")
    return Unit(asked, (((4, 8), "float32"),), True, random.Random(1).randbytes(400))


def mutations(data: bytes, count: int) -> Iterator[bytes]:
    """Bit flips, truncations, insertions, repetitions and other versions of a file."""
    draw = random.Random(0)
    for number in range(count):
        at = draw.randrange(len(data))
        match number % 6:
            case 0 | 1:
                yield data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
            case 2:
                yield data[:at]
            case 3:
                yield data[:at] + draw.randbytes(draw.randrange(1, 9)) + data[at:]
            case 4:
                yield data[:at] + data[at + draw.randrange(1, 99) :]
            case _:
                yield data.replace(b"1", b"2", draw.randrange(1, 4)) + data[:at]


def test_a_unit_comes_back_whole(unit: Unit) -> None:
    assert unpack(pack(unit)) == unit
    assert pack(unit) == pack(unit)
    assert artifacts.find(unit.spec) is None
    assert not Path(artifacts.path_of(unit.spec)).parent.exists()  # asking makes nothing
    assert artifacts.store(unit)
    assert artifacts.find(unit.spec) == unit


def test_none_of_600_damaged_files_is_taken(unit: Unit, caplog: pytest.LogCaptureFixture) -> None:
    artifacts.store(unit)
    path = artifacts.path_of(unit.spec)
    whole = path.read_bytes()
    for damaged in mutations(whole, 600):
        assert damaged != whole
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError):
            unpack(damaged)
        assert artifacts.find(unit.spec) is None
    assert len(caplog.records) == 1
    assert "Ignored" in caplog.text
    artifacts.store(unit)
    assert artifacts.find(unit.spec) == unit


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.replace(b'"single":true', b'"single":null'),
        lambda body: body.replace(b'"bytes":400', b'"bytes":40'),
        lambda body: body.replace(b"rms_norm", b"../../rm"),
        lambda body: body.replace(b'"float32"', b'["float"]'),
        lambda body: b"9999999999\n" + body.partition(b"\n")[2],
        lambda body: b"-1\n" + body.partition(b"\n")[2],
        lambda body: b"",
        lambda body: b"3\n" + b"[" * 3,
        lambda body: b"90000\n" + b"[" * 90000,
    ],
)
def test_what_a_valid_checksum_covers_is_not_believed_either(unit: Unit, change: Callable[[bytes], bytes]) -> None:
    import hashlib

    body = pack(unit).partition(b"\n")[2]
    changed = change(body)
    assert changed != body
    with pytest.raises(ArtifactError):
        unpack(b"tops-unit 1 " + hashlib.sha256(changed).hexdigest().encode() + b"\n" + changed)


def test_a_unit_under_anothers_name_is_not_taken(unit: Unit, caplog: pytest.LogCaptureFixture) -> None:
    other = dataclasses.replace(unit, spec=spec("rms_norm", {"x": np.ones((5, 8), np.float32)}, target="cpu"))
    artifacts.store(unit)
    artifacts.path_of(other.spec).write_bytes(artifacts.path_of(unit.spec).read_bytes())
    assert artifacts.find(other.spec) is None
    assert "it is another unit: arguments" in caplog.text


def test_a_unit_of_another_toolchain_is_a_miss_with_one_warning(
    unit: Unit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    artifacts.store(unit)
    monkeypatch.setattr(toolchain, "version", lambda name: "9.9")
    now = spec("rms_norm", {"x": np.ones((4, 8), np.float32)}, target="cpu")
    assert artifacts.find(now) is None
    assert artifacts.find(now) is None
    assert len(caplog.records) == 1
    assert "is ignored: jax" in caplog.text
    assert "is not '9.9'" in caplog.text


def test_a_link_out_of_the_workspace_and_a_folder_are_no_units(unit: Unit, tmp_path: Path) -> None:
    artifacts.store(unit)
    path = artifacts.path_of(unit.spec)
    path.unlink()
    path.mkdir()
    assert artifacts.find(unit.spec) is None
