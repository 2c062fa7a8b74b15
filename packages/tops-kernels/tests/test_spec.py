"""A unit's key: every argument that decides code changes it, and nothing else does."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tops_kernels
from tops_kernels.runtime import sources, toolchain
from tops_kernels.runtime.spec import Aval, Spec, SpecError, configurations_of, difference, from_data, spec

X = np.ones((4, 256), np.float32)
CALL: dict[str, Any] = {"op": "rms_norm", "inputs": {"x": X}, "params": {"eps": 1e-6}, "target": "v5e"}


def made(**changed: Any) -> Spec:
    call = CALL | changed
    return spec(call.pop("op"), call.pop("inputs"), call.pop("params"), **call)


@pytest.fixture
def copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of the package that the digests are taken of, free to be changed."""
    root = tmp_path / "tops_kernels"
    shutil.copytree(Path(tops_kernels.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "_ROOT", root)
    return root


def test_a_call_with_an_input_that_the_kernel_lacks_takes_xla() -> None:
    x = np.ones((1, 8, 1, 16), np.float32)
    inputs = {"q": x, "k": x, "v": x, "g": -x}
    call = {"op": "gla", "params": {}}
    assert made(**call, inputs=inputs).implementation == "pallas_tpu"
    assert made(**call, inputs={**inputs, "gv": -x}).implementation == "xla"
    with pytest.raises(SpecError, match=r"^gla: pallas_tpu has no gv; leave the implementation out, or gv"):
        made(**call, inputs={**inputs, "gv": -x}, implementation="pallas_tpu")


def test_every_argument_changes_the_key() -> None:
    tall = {"x": np.ones((64, 256), np.float32)}
    first, second = tops_kernels.configurations("rms_norm", "pallas_tpu", "fwd", tall, {}, "v5e")[:2]
    specs = [
        made(),
        made(op="add_rms_norm", inputs={"x": X, "residual": X}),
        made(inputs={"x": X[:2]}),
        made(inputs={"x": X[None]}),
        made(inputs={"x": X.astype("bfloat16")}),
        made(inputs={"x": X, "scale": X[0]}),
        made(inputs={"x": X, "scale": X[0].astype("bfloat16")}),
        made(params={"eps": 1e-5}),
        made(params={"scale_offset": 1.0}),
        made(which="vjp"),
        made(implementation="xla"),
        made(target="v6e"),
        made(target="cpu"),
        made(target="tpu", kind="portable"),
        made(config=(("fwd", first),)),
        made(config=(("fwd", second),)),
        made(config=(("vjp", first),)),
    ]
    assert len({one.key for one in specs}) == len({one.name for one in specs}) == len(specs)


def test_no_field_is_left_out_of_the_key() -> None:
    one = made(config=(("fwd", tops_kernels.configurations("rms_norm", "pallas_tpu", "fwd", {"x": X}, {}, "v5e")[0]),))
    others: dict[str, Any] = {
        "arguments": (Aval("y", (4, 256), "float32"),),
        "params": (("eps", 1),),
        "config": (),
        "toolchain": (("jax", "0"),),
        "flags": (("XLA_FLAGS", "--xla_x"),),
        "version": 99,
    }
    for field in dataclasses.fields(Spec):
        other = dataclasses.replace(one, **{field.name: others.get(field.name, "other")})
        assert other.key != one.key, field.name
        assert field.name in difference(one, other) or field.name in ("toolchain", "flags"), field.name


@pytest.mark.parametrize(
    ("kind", "target", "packages"),
    [
        ("native", "v5e", {"jax", "jaxlib", "libtpu"}),
        ("native", "cpu", {"jax", "jaxlib"}),
        ("portable", "tpu", {"jax", "jaxlib"}),
    ],
)
def test_the_versions_of_what_compiles_it_change_the_key(
    kind: str, target: str, packages: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = dict.fromkeys(["jax", "jaxlib", "libtpu", "numpy", "jax-cuda13-plugin"], "1")
    monkeypatch.setattr(toolchain, "version", lambda name: versions.get(name, "absent"))
    before = made(kind=kind, target=target).key
    for name in versions:
        versions[name] = "2"
        assert (made(kind=kind, target=target).key != before) == (name in packages), name
        versions[name] = "1"
    monkeypatch.setattr(toolchain, "cpu", lambda: "another processor")
    assert (made(kind=kind, target=target).key != before) == (target == "cpu")


@pytest.mark.parametrize(
    "context",
    [
        lambda: jax.enable_x64(True),
        lambda: jax.default_matmul_precision("highest"),
        lambda: jax.numpy_dtype_promotion("strict"),
    ],
)
def test_options_of_jax_that_change_code_change_the_key(context: Callable[[], Any]) -> None:
    for kind, target in (("native", "cpu"), ("portable", "cpu")):
        before = made(kind=kind, target=target)
        with context():
            assert made(kind=kind, target=target).key != before.key
        assert made(kind=kind, target=target) == before


def test_whether_tuned_configurations_are_looked_up_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPS_TUNED", "1")
    before = made().key
    monkeypatch.setenv("TOPS_TUNED", "0")
    assert made().key != before


def test_flags_of_the_compiler_change_native_keys_and_what_only_dumps_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    keys = {}
    for kind, target in (("native", "v5e"), ("native", "cpu"), ("portable", "tpu")):
        keys[kind, target] = made(kind=kind, target=target).key
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        assert (made(kind=kind, target=target).key != keys[kind, target]) == (kind == "native")
        for silent in ("--xla_dump_to=/x --xla_force_host_platform_device_count=8", ""):
            monkeypatch.setenv("XLA_FLAGS", silent)
            assert made(kind=kind, target=target).key == keys[kind, target]
        monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_x=1 --xla_jf_dump_to=/x")
        assert (made(kind=kind, target=target).key != keys[kind, target]) == (target == "v5e")
        monkeypatch.delenv("LIBTPU_INIT_ARGS")


def test_nothing_else_changes_it(copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, key = made(), made().key
    for path in sorted(copy.rglob("*.py")):
        os.utime(path, (4e9, 4e9))
    moved = tmp_path / "elsewhere" / "tops_kernels"
    shutil.copytree(copy, moved)
    monkeypatch.setattr(sources, "_ROOT", moved)
    own = set(sources.source_files("rms_norm", "pallas_tpu"))
    others = [path for path in moved.rglob("*.py") if path not in own]
    assert others
    for path in others:
        path.write_text("# a comment, and every line is another one down\n\n" + path.read_text())
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "HOME": "/elsewhere",
        "TZ": "Asia/Tokyo",
        "TOPS_WORKSPACE": "/w",
        "JAX_LOG_COMPILES": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with jax.log_compiles(), jax.debug_nans(True):
        assert made() == before
    assert made().key == key
    assert made(inputs={"x": jax.ShapeDtypeStruct((4, 256), np.float32), "scale": None}, params={}).key == key


def test_a_change_in_its_own_sources_changes_it(copy: Path) -> None:
    before, of_xla = made().key, made(implementation="xla").key
    path = copy / "ops" / "rms_norm" / "_pallas_tpu_fwd.py"
    path.write_text(path.read_text() + "\nX = 1\n")
    assert made().key != before
    assert made(implementation="xla").key == of_xla


def test_it_comes_back_from_json_whole() -> None:
    config = tops_kernels.configurations("rms_norm", "pallas_tpu", "fwd", {"x": X}, {}, "v5e")[-1]
    one = made(config=(("fwd", config),), which="vjp")
    back = from_data(json.loads(json.dumps(dataclasses.asdict(one))))
    assert back == one
    assert back.key == one.key
    assert configurations_of(back) == (("fwd", config),)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"op": "nonsense"}, "op is 'nonsense'; expected one of"),
        ({"which": "bwd"}, "which is 'bwd'; expected one of fwd, vjp"),
        ({"target": "v9"}, "target is 'v9'; expected one of cpu, v4"),
        ({"target": "tpu"}, "expected one of cpu, v4, v5e, v5p, v6e, tpu7x, sm_80, sm_90, sm_100 for kind 'native'"),
        ({"target": "v5e", "kind": "portable"}, "expected one of cpu, tpu, cuda for kind 'portable'"),
        ({"target": "cpu", "implementation": "pallas_tpu"}, "rms_norm: pallas_tpu is code for tpu"),
        ({"inputs": {"x": [1.0]}}, "rms_norm: x is of type list; expected anything with shape and dtype"),
        ({"inputs": {"x": X, "y": X}}, "rms_norm: no input 'y'; expected x, scale"),
        ({"inputs": {"x": X, "scale": X}}, "rms_norm: scale has shape"),
        ({"params": {"eps": float("nan")}}, "eps"),
        ({"config": (("fwd", 3),)}, "configuration is of type int"),
        ({"op": "matmul", "inputs": {"a": X.astype("int8"), "b": X.T.astype("int8")}, "params": {}, "which": "vjp"}, "no given input has a gradient"),
    ],
)  # fmt: skip
def test_what_cannot_be_specified_is_refused_by_name(changed: dict[str, Any], words: str) -> None:
    with pytest.raises((SpecError, ValueError, TypeError), match=words):
        made(**changed)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Spec)])
@pytest.mark.parametrize("value", [None, 3.5, "../x", ["a"], {"a": 1}, [[1, 2, 3, 4]]])
def test_data_of_another_form_is_no_spec(name: str, value: Any) -> None:
    data = json.loads(json.dumps(dataclasses.asdict(made())))
    with pytest.raises(SpecError):
        from_data(data | {name: value})
    del data[name]
    with pytest.raises(SpecError):
        from_data(data)
