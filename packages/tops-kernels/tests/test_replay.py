"""Replays: a recorded call again, on any backend, compared, and made smaller as long as it fails."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import tops_manifest
from tops_kernels.cli import main
from tops_kernels.commands import replaying
from tops_kernels.runtime import dumping, public, rerun
from tops_kernels.runtime.overrides import current, use_config
from tops_kernels.runtime.reading import Recorded, read
from tops_kernels.runtime.search import configurations
from tops_kernels.runtime.shrink import cut, shrink, sizes

_RNG = np.random.default_rng(0)


def _recorded(op: str, inputs: dict[str, Any], **params: Any) -> Recorded:
    return Recorded(op, inputs, params, None, False, (), None, "started", {})


def _gla(batch: int, length: int, heads: int, packed: bool = False) -> dict[str, Any]:
    inputs = {name: _RNG.standard_normal((batch, length, heads, 8), np.float32) for name in ("q", "k", "v")}
    inputs["g"] = -np.abs(_RNG.standard_normal((batch, length, heads, 8), np.float32))
    if packed:
        inputs["cu_seqlens"] = np.array([0, length // 3, length // 2, length], np.int32)
    return inputs


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """dump(op, inputs, **params): a completed dump of the call."""
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "w"))
    monkeypatch.setattr(dumping, "_budget", dumping._Budget())

    def make(op: str, inputs: dict[str, Any], outputs: dict[str, Any] | None = None, **params: Any) -> Path:
        started = dumping.start(op, inputs, params, None, False)
        assert isinstance(started, dumping.Dump)
        result = public.original(op)(**inputs, **params) if outputs is None else None
        names = [spec.name for spec in tops_manifest.op(op).outputs]
        parts = result if isinstance(result, tuple) else (result,)
        started.complete(outputs or dict(zip(names, parts, strict=True)))
        return started.folder

    return make


def _rows(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in json.loads(capsys.readouterr().out)}


def test_a_replay_gives_what_was_recorded(dump: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = dump("rms_norm", {"x": _RNG.standard_normal((4, 64), np.float32)}, eps=1e-5)
    assert main(["replay", str(folder), "--compare", "--json"]) == 0
    rows = _rows(capsys)
    assert rows["y against the recording"]["details"]["unequal"] == 0
    assert rows["y against xla"]["ok"] is True
    assert main(["replay", folder.name]) == 0, "by its name in the workspace"
    assert "rms_norm(x float32[4, 64], eps=1e-05" in capsys.readouterr().err


def test_a_replay_in_the_interpreter_runs_the_kernel_and_looks_for_races(
    dump: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = dump("rms_norm", {"x": _RNG.standard_normal((4, 64), np.float32)})
    assert main(["replay", str(folder), "--races", "--compare", "--json"]) == 0
    rows = _rows(capsys)
    assert rows["races"]["found"] == "none found"
    assert rows["y against xla"]["ok"] is True


def test_a_difference_is_told_with_count_places_and_size(
    dump: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.ones((4, 64), np.float32)
    wrong = np.ones((4, 64), np.float32)
    wrong[2, 5], wrong[3, 0] = 1.5, np.nan
    folder = dump("rms_norm", {"x": x}, {"y": wrong}, eps=0.0)
    assert main(["replay", str(folder), "--compare", "--json"]) == 1
    found = _rows(capsys)["y against the recording"]["details"]
    assert (found["elements"], found["differing"], found["first"]) == (256, 2, [[2, 5], [3, 0]])
    assert found["largest"] == pytest.approx(0.5)
    assert found["at"] == [2, 5]
    assert main(["replay", str(folder), "--compare"]) == 1
    assert "2 of 256 differ" in capsys.readouterr().out
    assert main(["replay", str(folder), "--compare", "--tolerance", "0.4"]) == 1
    assert "1 of 256 differ" in capsys.readouterr().out, "a NaN is no matter of tolerance"
    assert main(["replay", str(folder)]) == 0, "without --compare it has but to run"


def test_equal_nans_and_infinities_are_no_difference_and_whole_numbers_must_be_equal() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert rerun.compare({"y": odd}, {"y": odd.copy()})[0].differing == 0
    assert rerun.compare({"y": odd}, {"y": -odd})[0].differing == 3
    whole = np.array([1000, 1], np.int32)
    assert rerun.compare({"y": whole}, {"y": whole + np.array([0, 1], np.int32)}, 1.0)[0].differing == 1
    assert rerun.compare({"y": odd[:0]}, {"y": odd[:0]})[0].at is None
    close = np.array([1, 1.01], jnp.bfloat16)
    assert rerun.compare({"y": close}, {"y": np.ones(2, jnp.bfloat16)})[0].differing == 0
    with pytest.raises(ValueError, match="other names, shapes or dtypes"):
        rerun.compare({"y": odd}, {"z": odd})


def test_a_call_that_fails_again_is_exit_1_with_its_error(
    dump: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = dump("rms_norm", {"x": np.ones((2, 8), np.float32)})
    assert main(["replay", str(folder), "--backend", "pallas_tpu"]) == 1
    assert "has no kernel for cpu" in capsys.readouterr().out


def test_wrong_uses_and_dumps_that_are_none_are_exit_2(
    dump: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(dump("gla", _gla(1, 4, 1)))
    cases = [
        (["nowhere"], "neither a folder nor a dump"),
        ([str(tmp_path)], "has no call.json"),
        ([folder, "--backend", "pallas_gpu"], "gla has xla, pallas_tpu"),
        ([folder, "--backend", "xla", "--races"], "run a kernel"),
        ([folder, "--target", "v5e", "--compare"], "goes with none of"),
        ([folder, "-o", "x"], "-o goes with --shrink"),
        ([folder, "--tolerance", "-1"], "--tolerance is -1"),
        ([folder, "--shrink", "-o", str(tmp_path)], "is there already"),
    ]
    for words, message in cases:
        assert main(["replay", *words]) == 2, words
        assert message in capsys.readouterr().err, words


def test_a_target_is_compiled_for_without_being_there(
    dump: Callable[..., Path], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = dump("rms_norm", {"x": np.ones((8, 128), np.float32)})
    assert main(["replay", str(folder), "--target", "cpu", "--here"]) == 0
    assert main(["replay", str(folder), "--target", "sm_90", "--here"]) == 0
    assert "lowered for sm_90" in capfd.readouterr().out
    status = main(["replay", str(folder), "--target", "v5e"])
    told = capfd.readouterr()
    assert (status, "compiled for v5e" in told.out) in ((0, True), (2, False))
    assert status == 0 or "pip install libtpu" in told.err


def test_a_child_that_hangs_is_ended_by_the_limit(
    dump: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = dump("rms_norm", {"x": np.ones((2, 8), np.float32)})
    assert main(["replay", str(folder), "--target", "sm_90", "--limit", "0.01"]) == 1
    assert "did not end within 0.01 s" in capsys.readouterr().err


def test_recorded_configurations_are_used_again(dump: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"a": np.ones((256, 256), np.float32), "b": np.ones((256, 256), np.float32)}
    config = dataclasses.replace(configurations("matmul", "pallas_tpu", "fwd", inputs, {}, "v5e")[0], block_m=128)
    with use_config("matmul", "fwd", config):
        found = read(dump("matmul", inputs))
    assert found.override == (("fwd", config),)
    seen = []

    def matmul(**_: Any) -> Any:
        seen.append(current("matmul"))
        return np.zeros(1)

    monkeypatch.setattr(public, "original", lambda _: matmul)
    rerun.run(found, "pallas_tpu", True)
    assert seen == [found.override]


def test_shrinking_finds_the_smallest_call_that_fails_whatever_dimension_it_hangs_on() -> None:
    whole = _recorded("gla", _gla(4, 100, 8))

    def fails(one: Recorded) -> bool:
        found = sizes(one)
        return found["T", 0] >= 37 and found["H", 0] >= 2 and found["B", 0] >= 1

    best, tried = shrink(whole, fails)
    assert sizes(best) == {("B", 0): 1, ("T", 0): 37, ("HQ", 0): 2, ("K", 0): 1, ("H", 0): 2, ("V", 0): 1}
    assert tried < 100
    assert best.inputs["v"].shape == (1, 37, 2, 1)


def test_shrinking_follows_the_values_that_make_a_call_fail() -> None:
    x = np.zeros((50, 3, 64), np.float32)
    x[41, 1, 17] = np.nan
    best, _ = shrink(_recorded("rms_norm", {"x": x}), lambda one: bool(np.isnan(one.inputs["x"]).any()))
    assert best.inputs["x"].shape == (1, 1, 1)


def test_shrinking_leaves_optional_inputs_out_and_keeps_boundaries_within_their_length() -> None:
    whole = _recorded("gla", _gla(1, 30, 2, packed=True) | {"initial_state": np.ones((3, 2, 8, 8), np.float32)})

    def fails(one: Recorded) -> bool:
        ends = one.inputs.get("cu_seqlens")
        assert ends is None or (ends[0] == 0 and (np.diff(ends) >= 0).all() and ends[-1] <= sizes(one)["T", 0])
        return ends is not None and sizes(one)["T", 0] >= 5

    two = cut(whole, ("N", 0), 2, at_end=True)
    assert two is not None
    assert (two.inputs["cu_seqlens"].shape, two.inputs["initial_state"].shape) == ((3,), (2, 2, 8, 8))
    best, _ = shrink(whole, fails)
    assert best.inputs.keys() == {"q", "k", "v", "g", "cu_seqlens"}
    assert (sizes(best)["N", 0], best.inputs["cu_seqlens"].shape) == (1, (2,))
    assert sizes(best)["T", 0] == 5


def test_a_cut_that_breaks_the_contract_is_none() -> None:
    whole = _recorded("gla", _gla(1, 4, 4))
    assert cut(whole, ("HQ", 0), 3, at_end=True) is None
    assert cut(whole, ("T", 0), 0, at_end=True) is None
    assert cut(whole, ("H", 0), 2, at_end=False) is not None


def test_a_call_that_does_not_fail_is_not_made_smaller(
    dump: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "_child", lambda *_: (0, "", ""))
    assert main(["replay", str(dump("rms_norm", {"x": np.ones((2, 1), np.float32)})), "--shrink"]) == 0
    assert "does not fail with these options" in capsys.readouterr().err


def test_shrink_writes_a_dump_that_still_fails(dump: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = dump("rms_norm", {"x": np.ones((2, 1), np.float32)})
    # On a CPU the kernel of a TPU fails at any size: one cut of the one dimension that can be cut is tried, in a child.
    assert main(["replay", str(folder), "--backend", "pallas_tpu", "--shrink", "--json"]) == 1
    told = capsys.readouterr()
    assert {(row["dimension"], row["was"], row["is"]) for row in json.loads(told.out)} == {("B[0]", 2, 1), ("D", 1, 1)}
    small = read(folder.parent / f"{folder.name}-small")
    assert (small.op, small.state, small.inputs["x"].shape) == ("rms_norm", "started", (1, 1))
