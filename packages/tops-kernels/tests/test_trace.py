"""Definitions and workloads: in flashinfer-bench's schema, from manifest and call, and the same bytes each time."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tops_manifest
from tops_kernels.cli import main
from tops_kernels.runtime import definitions, public, traces
from tops_kernels.runtime.log import Settings, logged
from tops_kernels.runtime.sink import Sink
from tops_manifest import ArraySpec

_X = np.ones((3, 5, 16), np.float32)


def _seen(folder: Path) -> None:
    """Calls that a program may make, traced to a folder."""
    settings = Settings(0, Sink(""), trace=folder)

    def op(name: str) -> Any:
        return logged(name, public.original(name), settings)

    op("rms_norm")(_X)
    op("rms_norm")(_X[:2])  # other sizes of the same definition
    op("rms_norm")(_X, np.ones(16, np.float32), eps=1e-5)
    jax.eval_shape(op("matmul"), np.ones((2, 16, 8), np.float32), np.ones((8, 4), np.float32))
    jax.eval_shape(op("matmul"), np.ones((2, 16, 8), np.float32), np.ones((2, 8, 4), np.float32))
    heads = {name: np.ones((1, 6, 2, 4), np.float32) for name in ("q", "k", "v", "g")}
    jax.eval_shape(lambda **given: op("gla")(**given, reverse=True), **heads, cu_seqlens=np.array([0, 2, 6], np.int32))


def _checked(folder: Path) -> tuple[dict[str, Any], list[Any]]:
    """The definitions by name and the workloads, after the rules of the schema (flashinfer-bench 0.1.2, its data/definition.py)."""
    told: dict[str, Any] = {}
    for path in folder.glob("definitions/*/*.json"):
        one = json.loads(path.read_text())
        assert (path.stem, path.parent.name) == (one["name"], one["op_type"])
        assert set(one) == {
            "name", "op_type", "description", "tags", "axes", "inputs", "outputs", "constraints", "reference",
        }  # fmt: skip
        for axis in one["axes"].values():
            assert axis == {"type": "var"} or (axis["type"] == "const" and type(axis["value"]) is int)
        assert not one["inputs"].keys() & one["outputs"].keys()
        for spec in (*one["inputs"].values(), *one["outputs"].values()):
            assert set(spec["shape"]) <= set(one["axes"])
            assert spec["dtype"] in one["name"] or spec["dtype"] in ("float32", "int32")
        assert any(
            isinstance(node, ast.FunctionDef) and node.name == "run" for node in ast.parse(one["reference"]).body
        )
        for text in one["constraints"]:
            names = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
            assert names <= set(one["axes"]), text
        told[one["name"]] = one
    seen = []
    for path in folder.glob("workloads/*/*/*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            definition = told[record["definition"]]
            assert (record["solution"], record["evaluation"]) == (None, None)
            variable = {name for name, axis in definition["axes"].items() if axis["type"] == "var"}
            assert record["workload"]["axes"].keys() == variable
            assert record["workload"]["inputs"] == {name: {"type": "random"} for name in definition["inputs"]}
            assert record["workload"]["uuid"] == path.stem
            seen.append(record)
    return told, seen


def test_each_signature_is_a_definition_and_a_workload(tmp_path: Path) -> None:
    _seen(tmp_path)
    told, seen = _checked(tmp_path)
    assert set(told) == {
        "rms_norm_d16_x3d_float32",
        "rms_norm_d16_x3d_scale_eps-1e-05_float32_float32",
        "matmul_k8_n4_a3d_b2d_float32",
        "matmul_k8_n4_a3d_b3d_float32",
        "gla_hq2_k4_h2_v4_cu_seqlens_reverse-true_float32",
    }
    assert len(seen) == 6, "one call had other sizes of a definition that was there"
    gla = told["gla_hq2_k4_h2_v4_cu_seqlens_reverse-true_float32"]
    assert gla["axes"]["T"] == {"type": "var"}
    assert gla["axes"]["K"] == {"type": "const", "value": 4}
    assert gla["inputs"]["cu_seqlens"]["shape"] == ["len_cu_seqlens"]
    assert gla["outputs"]["final_state"]["shape"] == ["N", "H", "K", "V"]
    assert {"len_cu_seqlens == N + 1", "HQ % H == 0", "1 == 0 or B == 1"} <= set(gla["constraints"])
    sizes = next(one["workload"]["axes"] for one in seen if one["definition"] == gla["name"])
    assert sizes == {"B": 1, "T": 6, "N": 2, "len_cu_seqlens": 3}


def test_tracing_again_and_regenerating_give_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen, again, made = tmp_path / "seen", tmp_path / "again", tmp_path / "made"
    _seen(seen)
    _seen(again)
    assert traces.texts_of(seen) == traces.texts_of(again)
    assert main(["trace", str(made), "--from", str(seen)]) == 0
    assert traces.texts_of(made) == traces.texts_of(seen)
    assert main(["trace", str(seen), "--from", str(seen), "--check"]) == 0
    capsys.readouterr()
    path = next(seen.glob("definitions/gla/*.json"))
    path.write_text(path.read_text().replace("queries;", "keys;"))
    (made / "definitions" / "gla" / path.name).unlink()
    (made / "definitions" / "gla" / "odd.json").write_text("{}")
    assert main(["trace", str(seen), "--from", str(seen), "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [{"file": f"definitions/gla/{path.name}", "is": "changed"}]
    assert main(["trace", str(made), "--from", str(again), "--check", "--json"]) == 1
    assert [row["is"] for row in json.loads(capsys.readouterr().out)] == ["missing", "not made any more"]


def test_every_op_has_definitions_from_its_contract_alone_and_they_regenerate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", str(tmp_path)]) == 0
    told, seen = _checked(tmp_path)
    assert seen == []
    for op in tops_manifest.ops():
        if op.status == "planned":
            continue
        mine = [one for one in told.values() if f"op:{op.name}" in one["tags"]]
        assert {spec["dtype"] for one in mine for spec in one["inputs"].values()} >= set(
            next(iter(op.free_dtypes.values()))
        )
        assert any(set(one["inputs"]) == {spec.name for spec in op.inputs if not spec.optional} for one in mine)
    assert main(["trace", str(tmp_path), "--check"]) == 0
    assert main(["trace", str(tmp_path), "--from", str(tmp_path), "--check"]) == 0
    next(tmp_path.glob("definitions/*/*.json")).unlink()
    assert main(["trace", str(tmp_path), "--check"]) == 1
    assert "missing" in capsys.readouterr().out


def test_what_is_no_trace_is_told_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(tmp_path / "out"), "--from", str(tmp_path / "none")]) == 2
    folder = tmp_path / "definitions" / "gla"
    folder.mkdir(parents=True)
    for text in ("", "[]", "{}", '{"name": "x", "axes": {"T": 1}}', "[" * 100_000):
        (folder / "x.json").write_text(text)
        assert main(["trace", str(tmp_path / "out"), "--from", str(tmp_path)]) == 2
        assert "x.json is no trace of tops" in capsys.readouterr().err
    os.mkfifo(folder / "y.json")
    (folder / "x.json").unlink()
    assert main(["trace", str(tmp_path / "out"), "--from", str(tmp_path)]) == 2
    assert not (tmp_path / "out").exists()


def test_calls_outside_the_contract_and_of_symbolic_sizes_are_left_to_the_call(tmp_path: Path) -> None:
    rms_norm = logged("rms_norm", public.original("rms_norm"), Settings(0, Sink(""), trace=tmp_path))
    with pytest.raises(ValueError, match="scale has shape"):
        rms_norm(_X, np.ones(3, np.float32))
    with pytest.raises(TypeError, match="x is of type list"):
        rms_norm([1.0])
    (length,) = jax.export.symbolic_shape("T")
    x = jax.ShapeDtypeStruct((length, 8), "float32")
    jax.export.export(jax.jit(rms_norm))(x)
    assert not list(tmp_path.iterdir())
    rms_norm(np.ones((2, 16)))  # float64 is float32 to JAX
    assert set(_checked(tmp_path)[0]) == {"rms_norm_d16_x2d_float32"}


def test_a_parameter_that_is_given_as_its_default_is_the_same_definition() -> None:
    arrays = {"x": ArraySpec((2, 8), "float32")}
    plain = definitions.files(definitions.call("rms_norm", arrays, {"eps": 1e-6, "scale_offset": 0}))
    assert plain == definitions.files(definitions.call("rms_norm", arrays, {}))
    assert plain != definitions.files(definitions.call("rms_norm", arrays, {"scale_offset": 1}))


_PROGRAM = """
import json, os, pathlib, jax, numpy, tops_kernels
x, scale = numpy.ones((2, 8), "float32"), numpy.linspace(1, 2, 8, dtype="float32")
want = jax.jit(lambda x, scale: tops_kernels.rms_norm(x, scale, eps=1e-5))(x, scale)
path, = pathlib.Path(os.environ["TOPS_TRACE"]).glob("definitions/*/*.json")
names = {}
exec(json.loads(path.read_text())["reference"], names)
numpy.testing.assert_array_equal(names["run"](x, scale), want)
"""


def test_a_program_is_traced_by_the_environment_alone_and_the_reference_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "TOPS_TRACE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (only,) = _checked(tmp_path)[0].values()
    assert only["name"] == "rms_norm_d8_x2d_scale_eps-1e-05_float32_float32"
    assert 'tops_kernels.rms_norm(x=x, scale=scale, eps=1e-05, backend="xla")' in only["reference"]
