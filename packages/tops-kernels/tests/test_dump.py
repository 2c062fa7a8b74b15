"""Dumps: what a call was and gave, on disk before and after it; read back only if it is whole, and believed in nothing."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels
from tops_kernels.runtime import dumping, public, reading, tensors
from tops_kernels.runtime.log import Settings, logged
from tops_kernels.runtime.reading import DumpError, read
from tops_kernels.runtime.sink import Sink

_GLA = {
    "q": np.ones((1, 6, 2, 4), np.float32),
    "k": np.ones((1, 6, 1, 4), np.float32),
    "v": np.linspace(-1, 1, 24, dtype=np.float32).reshape(1, 6, 1, 4),
    "g": np.full((1, 6, 1, 4), -0.5, np.float32),
    "cu_seqlens": np.array([0, 2, 6], np.int32),
}


@pytest.fixture
def dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workspace's dumps, empty, with nothing counted yet."""
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "w"))
    monkeypatch.setattr(dumping, "_budget", dumping._Budget())
    return tmp_path / "w" / "dumps"


@pytest.fixture
def dumped(tmp_path: Path) -> Callable[[str], Callable[..., Any]]:
    """The op with a log of level 4 around it."""
    return lambda op: logged(op, public.original(op), Settings(4, Sink(str(tmp_path / "calls"))))


def _all(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def test_a_dump_holds_the_call_and_what_it_gave_to_the_bit(
    dumps: Path, dumped: Callable[[str], Callable[..., Any]]
) -> None:
    a = jnp.asarray(np.linspace(-3, 3, 12).reshape(3, 4), jnp.bfloat16)
    inputs = {"a": a, "b": jnp.ones((4, 8), jnp.bfloat16)}
    config = tops_kernels.configurations("matmul", "pallas_tpu", "fwd", inputs, {}, "v5e")[0]
    with tops_kernels.use_config("matmul", "fwd", config):
        y = dumped("matmul")(a, inputs["b"], activation="silu", backend="xla")
    (folder,) = _all(dumps)
    assert sorted(path.name for path in folder.iterdir()) == ["call.json", "inputs.safetensors", "outputs.safetensors"]
    found = read(folder)
    assert (found.op, found.backend, found.interpret, found.state) == ("matmul", "xla", False, "completed")
    assert found.params == {"activation": "silu", "out_dtype": None}
    assert found.override == (("fwd", config),)
    assert found.inputs.keys() == {"a", "b"}
    assert str(found.inputs["a"].dtype) == "bfloat16"
    np.testing.assert_array_equal(found.inputs["a"].view(np.uint16), np.asarray(a).view(np.uint16))
    assert found.outputs is not None
    np.testing.assert_array_equal(found.outputs["y"].view(np.uint16), np.asarray(y).view(np.uint16))


def test_a_dump_tells_versions_devices_and_knobs_and_no_places(
    dumps: Path, dumped: Callable[[str], Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPS_MIRROR", "https://user:hunter2@example.org")
    monkeypatch.setenv("TOPS_TUNED", "0")
    with jax.default_matmul_precision("highest"):
        dumped("rms_norm")(np.ones((2, 3), np.float32), eps=np.float32(1e-5))
    text = (_all(dumps)[0] / "call.json").read_text()
    record = json.loads(text)
    assert "hunter2" not in text
    assert record["knobs"]["TOPS_TUNED"] == "0"
    assert record["knobs"]["jax_default_matmul_precision"] == "highest"
    assert record["versions"]["jax"] == jax.__version__
    assert record["devices"] == [{"platform": "cpu", "kind": "cpu"}]
    assert record["params"]["eps"] == float(np.float32(1e-5))


def test_every_op_with_optional_inputs_and_several_outputs_reads_back(
    dumps: Path, dumped: Callable[[str], Callable[..., Any]]
) -> None:
    o, final = dumped("gla")(**_GLA, reverse=True)
    found = read(_all(dumps)[0])
    assert found.inputs.keys() == _GLA.keys(), "initial_state was not given"
    assert found.params == {"scale": None, "reverse": True, "axis_name": None}
    assert found.outputs is not None
    np.testing.assert_array_equal(found.outputs["o"], o)
    np.testing.assert_array_equal(found.outputs["final_state"], final)


def test_arrays_are_dumped_as_the_op_takes_them(dumps: Path, dumped: Callable[[str], Callable[..., Any]]) -> None:
    dumped("rms_norm")(np.ones((2, 3)), np.float64(2) * np.ones(3))  # float64 is float32 to JAX
    found = read(_all(dumps)[0])
    assert {name: str(one.dtype) for name, one in found.inputs.items()} == {"x": "float32", "scale": "float32"}


def test_a_call_that_raises_is_a_failed_dump(
    dumps: Path, dumped: Callable[[str], Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="has no kernel for cpu"):
        dumped("rms_norm")(np.ones((2, 3), np.float32), backend="pallas_tpu")
    found = read(_all(dumps)[0])
    assert (found.state, found.outputs, found.record["error"]) == ("failed", None, "ValueError")


def test_bounds_and_patterns_choose_what_is_dumped(
    dumps: Path, dumped: Callable[[str], Callable[..., Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        lines = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
        return str([line for line in lines if line["event"] == "call"][-1].get("not_dumped"))

    x = np.ones((8, 64), np.float32)
    rms_norm, add_rms_norm = dumped("rms_norm"), dumped("add_rms_norm")
    monkeypatch.setenv("TOPS_DUMP_INCLUDE", "matmul,*rms_norm")
    monkeypatch.setenv("TOPS_DUMP_EXCLUDE", "add_*")
    add_rms_norm(x, x)
    assert "TOPS_DUMP_INCLUDE" in told()
    rms_norm(x)
    monkeypatch.setenv("TOPS_DUMP_BYTES", "7000")  # inputs and outputs of one call are 4 KiB
    rms_norm(x)
    assert "TOPS_DUMP_BYTES" in told()
    rms_norm(x[:2])
    monkeypatch.setenv("TOPS_DUMP_COUNT", "2")
    rms_norm(x[:1])
    assert told() == "2 calls are dumped: TOPS_DUMP_COUNT"
    assert [read(folder).inputs["x"].shape for folder in _all(dumps)] in ([(8, 64), (2, 64)], [(2, 64), (8, 64)])
    monkeypatch.setenv("TOPS_DUMP_COUNT", "many")
    np.testing.assert_array_equal(rms_norm(x), tops_kernels.rms_norm(x))  # a warning, and the call goes on


def test_a_workspace_that_cannot_be_written_costs_the_dump_and_not_the_call(
    tmp_path: Path, dumped: Callable[[str], Callable[..., Any]], dumps: Path
) -> None:
    (tmp_path / "w").write_text("a file")
    assert dumped("rms_norm")(np.ones((2, 3), np.float32)).shape == (2, 3)


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "int8", "int32", "bool", "float8_e4m3fn", "uint16"]
)
def test_arrays_survive_the_format_in_every_dtype(dtype: str) -> None:
    whole = np.arange(24).reshape(2, 3, 4).astype(jnp.dtype(dtype))
    arrays = {"a": whole, "turned": whole.T, "none": whole[:0], "scalar": whole[0, 0, 0]}
    found = tensors.unpack(tensors.pack(arrays))
    assert list(found) == list(arrays)
    for name, want in arrays.items():
        assert (found[name].dtype, found[name].shape) == (want.dtype, want.shape)
        assert found[name].tobytes() == np.ascontiguousarray(want).tobytes()


def test_the_format_is_safetensors_as_others_write_it() -> None:
    header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"format":"np"}}'
    data = len(header).to_bytes(8, "little") + header + np.array([1, 2], "<f4").tobytes()
    np.testing.assert_array_equal(tensors.unpack(data)["x"], [1, 2])
    assert tensors.pack({"x": np.array([1, 2], np.float32)})[8:].startswith(
        b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    )
    with pytest.raises(tensors.TensorsError, match="int4"):
        tensors.pack({"x": np.zeros(2, jnp.int4)})


@pytest.fixture
def whole(dumps: Path, dumped: Callable[[str], Callable[..., Any]]) -> Path:
    """A completed dump of gla."""
    dumped("gla")(**_GLA)
    return _all(dumps)[0]


def test_a_thousand_mutated_dumps_are_errors_or_what_they_were(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: set[Path] = set()
    plain = reading.read_whole

    def watched(path: Path, most: int) -> bytes | None:
        opened.add(path)
        return plain(path, most)

    monkeypatch.setattr(reading, "read_whole", watched)
    want = read(whole)
    before = _tree(tmp_path)
    refused = []
    for folder, mutation in _mutations(whole, tmp_path / "mutated"):
        try:
            found = read(folder)
        except DumpError as error:
            refused.append(str(error))
            continue
        # What was not refused must be the same call: whitespace in the JSON is all that may differ.
        assert found.record == want.record, mutation
        assert (found.params, found.override) == (want.params, want.override)
        assert _bytes(found.inputs) == _bytes(want.inputs), mutation
        assert _bytes(found.outputs) == _bytes(want.outputs), mutation
    assert len(refused) > 900
    assert all(str(tmp_path / "mutated") in message for message in refused)
    assert {path.parent for path in opened} == {whole, tmp_path / "mutated"}
    shutil.rmtree(tmp_path / "mutated")
    assert _tree(tmp_path) == before, "nothing outside was touched"


def _bytes(arrays: Any) -> dict[str, bytes]:
    return {name: one.tobytes() for name, one in (arrays or {}).items()}


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _mutations(whole: Path, folder: Path) -> Iterator[tuple[Path, str]]:
    """A thousand: bits flipped, files cut short or made longer, in each of the three files in turn."""
    rng = np.random.default_rng(0)
    files = {path.name: path.read_bytes() for path in whole.iterdir()}
    folder.mkdir()
    for i in range(1000):
        for name, data in files.items():
            (folder / name).write_bytes(data)
        name = sorted(files)[i % 3]
        data = bytearray(files[name])
        kind = ("flip", "flip", "cut", "grow")[i // 3 % 4]
        place = int(rng.integers(len(data)))
        if kind == "flip":
            data[place] ^= 1 << int(rng.integers(8))
        elif kind == "cut":
            del data[place:]
        else:
            data[place:place] = rng.bytes(int(rng.integers(1, 9)))
        (folder / name).write_bytes(bytes(data))
        yield folder, f"{kind} {name} at {place}"


_HOSTILE: list[tuple[str, Any]] = [
    ("schema", 2),
    ("schema", True),
    ("schema", None),
    ("op", "../../../etc/passwd"),
    ("op", "nonsense"),
    ("op", ["gla"]),
    ("op", "matmul"),
    ("contract", 99),
    ("contract", "1"),
    ("params", {"scale": "x" * 10_000}),
    ("params", {"nonsense": 1}),
    ("params", [1]),
    ("params", {"scale": 1e400}),
    ("params", {"reverse": {"a": 1}}),
    ("backend", "pallas_gpu"),
    ("backend", "/bin/sh"),
    ("backend", {"xla": 1}),
    ("interpret", []),
    ("state", "done"),
    ("config", [{"pass": "fwd", "implementation": "os", "fields": {}}]),
    ("config", [{"pass": "fwd", "implementation": "pallas_tpu", "fields": {"in_place": False, "block_h": 1 << 80}}]),
    ("config", [{"pass": "fwd", "implementation": "pallas_tpu", "fields": {"nonsense": 1}}]),
    ("config", [{"pass": "fwd", "implementation": "pallas_tpu", "fields": {"in_place": False, "block_h": -1}}]),
    ("config", 5),
    ("inputs", None),
    ("inputs", {"bytes": -1, "sha256": "", "arrays": {}}),
    ("inputs", {"bytes": 1 << 60, "sha256": "", "arrays": {}}),
    ("inputs", {"bytes": 10, "sha256": "", "arrays": {"../../x": {}}, "file": "/etc/passwd"}),
    ("outputs", None),
    ("extra", 1),
]


@pytest.mark.parametrize(("key", "value"), _HOSTILE, ids=lambda value: str(value)[:30])
def test_a_record_that_says_what_none_says_is_refused_though_its_checksum_holds(
    key: str, value: Any, whole: Path
) -> None:
    record = json.loads((whole / "call.json").read_text())
    record[key] = value
    dumping.write_record(whole, record)
    with pytest.raises(DumpError, match=r"the dump .* Make it again with TOPS_LOG=4"):
        read(whole)


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, '{"schema": 1' + "0" * 5000 + "}", "\xff\xfe", "{}"])
def test_a_record_that_is_none_is_refused(text: str, whole: Path) -> None:
    (whole / "call.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DumpError, match=r"call\.json"):
        read(whole)


def test_files_that_are_links_pipes_folders_or_missing_are_refused(whole: Path, tmp_path: Path) -> None:
    for name in ("call.json", "inputs.safetensors", "outputs.safetensors"):
        path, kept = whole / name, tmp_path / "kept"
        path.rename(kept)
        makers: list[Callable[[], object]] = [
            lambda: None,
            lambda path=path, kept=kept: path.symlink_to(kept),  # type: ignore[misc]  # bound now
            lambda path=path: os.mkfifo(path),  # type: ignore[misc]  # likewise
            lambda path=path: path.mkdir(),  # type: ignore[misc]  # likewise
        ]
        for make in makers:
            make()
            with pytest.raises(DumpError, match=name.replace(".", r"\.")):
                read(whole)
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        kept.rename(path)
    assert read(whole).state == "completed"


def test_arrays_are_not_parsed_before_their_checksum_holds(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: bytes) -> Any:
        raise AssertionError("parsed")

    path = whole / "inputs.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    monkeypatch.setattr(tensors, "unpack", never)
    with pytest.raises(DumpError, match=r"inputs\.safetensors that was changed"):
        read(whole)
