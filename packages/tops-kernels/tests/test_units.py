"""The protocol around a unit, and real ones: compiled, kept, loaded without tracing, refused where they do not belong."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tops_kernels
import tops_manifest
from tops_kernels.runtime import artifacts, compiling, objects, storing, targets, toolchain, units
from tops_kernels.runtime.artifacts import Unit
from tops_kernels.runtime.compiling import LoadError
from tops_kernels.runtime.spec import Kind, Spec, SpecError, spec
from tops_kernels.runtime.units import CompileForbiddenError, ensure, load, portable

# jax.export's own format needs flatbuffers, which neither jax nor tops-kernels brings: a user who exports installs it.
exports = pytest.mark.skipif(toolchain.version("flatbuffers") == "absent", reason="portable units need flatbuffers")
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
SCALE = np.linspace(1, 2, 8, dtype=np.float32)


@pytest.fixture(autouse=True)
def _workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.delenv("TOPS_COMPILE", raising=False)
    monkeypatch.setattr(storing, "_warned", set())


def asked(kind: Kind = "native", which: str = "fwd") -> Spec:
    return spec("rms_norm", {"x": X, "scale": SCALE}, {"eps": 1e-5}, target="cpu", kind=kind, which=which)


class Compiler:
    """Counts, and makes a unit of nothing."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, wanted: Spec) -> Unit:
        self.count += 1
        return Unit(wanted, (((3, 8), "float32"),), True, b"code")


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on whoever compiles or traces one of our ops fails."""

    def refused(*_: Any) -> Any:
        raise AssertionError("compiled")

    monkeypatch.setattr(compiling, "program", refused)
    monkeypatch.setattr(units, "program", refused)
    monkeypatch.setattr(units, "compile_unit", refused)


def test_what_is_kept_is_not_compiled_again() -> None:
    compiler = Compiler()
    assert ensure(asked(), compiler=compiler) == ensure(asked(), compiler=compiler)
    assert compiler.count == 1
    ensure(asked(which="vjp"), compiler=compiler)
    assert compiler.count == 2
    assert sorted(path.suffix for path in artifacts.path_of(asked()).parent.iterdir()) == [".unit", ".unit"]


def test_a_damaged_unit_is_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    compiler = Compiler()
    ensure(asked(), compiler=compiler)
    path = artifacts.path_of(asked())
    path.write_bytes(path.read_bytes()[:-1])
    ensure(asked(), compiler=compiler)
    assert compiler.count == 2
    assert artifacts.find(asked()) is not None
    assert len(caplog.records) == 1


def test_a_unit_that_appears_while_we_wait_for_the_lock_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Unit | None] = []
    real = artifacts.find

    def find(wanted: Spec) -> Unit | None:
        seen.append(real(wanted))
        if len(seen) == 1:
            artifacts.store(Compiler()(wanted))
        return seen[-1]

    monkeypatch.setattr(artifacts, "find", find)
    compiler = Compiler()
    assert ensure(asked(), compiler=compiler).code == b"code"
    assert compiler.count == 0
    assert len(seen) == 2


@pytest.mark.parametrize("policy", ["forbid", "cache-only"])
def test_where_compiling_is_not_allowed_nothing_is_written_and_what_is_missing_is_named(
    policy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOPS_COMPILE", policy)
    with pytest.raises(CompileForbiddenError, match=f"Missing: {asked().name}. Make it with tops-kernels build"):
        ensure(asked(), compiler=Compiler())
    assert not (tmp_path / "workspace").exists()


@exports
def test_forbid_takes_any_valid_unit_a_portable_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ensure(asked(which="vjp"))
    ensure(portable(asked()))
    monkeypatch.setenv("TOPS_COMPILE", "forbid")
    forget(monkeypatch)
    assert load(asked())(X, SCALE).shape == (3, 8)
    assert len(load(asked(which="vjp"))(X, SCALE, X)) == 2
    with pytest.raises(CompileForbiddenError, match="rms_norm-xla-vjp-cpu-portable"):
        load(asked(kind="portable", which="vjp"))


def test_cache_only_runs_through_jit_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPS_COMPILE", "cache-only")
    monkeypatch.setenv("TOPS_CACHE", "0")
    got = load(asked())(X, SCALE)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(tops_kernels.rms_norm(X, SCALE, eps=1e-5)))
    assert not (tmp_path / "workspace").exists()


@pytest.mark.parametrize("kind", ["native", pytest.param("portable", marks=exports)])
def test_a_loaded_unit_computes_what_the_op_does_and_traces_nothing(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = np.asarray(tops_kernels.rms_norm(X, SCALE, eps=1e-5, backend="xla"))
    _, back = jax.vjp(lambda *inputs: tops_kernels.rms_norm(*inputs, eps=1e-5, backend="xla"), X, SCALE)
    gradients = [np.asarray(one) for one in back(jax.numpy.asarray(X))]
    for which in ("fwd", "vjp"):
        ensure(asked(kind, which))
    forget(monkeypatch)
    np.testing.assert_allclose(np.asarray(load(asked(kind))(X, SCALE)), y, rtol=1e-6)
    for got, want in zip(load(asked(kind, "vjp"))(X, SCALE, X), gradients, strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-6)


def test_every_implemented_op_is_a_program() -> None:
    assert {op.name for op in tops_manifest.ops() if op.status == "implemented"} == set(compiling.public_ops())


def test_an_op_with_several_outputs_gives_a_tuple() -> None:
    run = load(spec("add_rms_norm", {"x": X, "residual": X}, target="cpu"))
    y, h = run(X, X)
    np.testing.assert_array_equal(np.asarray(h), X + X)
    assert y.shape == X.shape


def test_another_signature_or_a_tracer_is_refused_by_name() -> None:
    run = load(asked())
    with pytest.raises(TypeError, match=r"rms_norm: x is float32\[2, 8\]; this unit is for float32\[3, 8\]"):
        run(X[:2], SCALE)
    with pytest.raises(TypeError, match="rms_norm: scale is bfloat16"):
        run(X, SCALE.astype("bfloat16"))
    with pytest.raises(TypeError, match="got 1 arrays; expected 2: x, scale"):
        run(X)
    with pytest.raises(TypeError, match="x is traced; a loaded unit takes arrays, outside jit"):
        jax.jit(run)(X, SCALE)


def test_a_specification_of_another_process_is_refused() -> None:
    other = dataclasses.replace(asked(), toolchain=(("jax", "0"),))
    with pytest.raises(SpecError, match=r"not of this process: .*jax '0' is not"):
        load(other)
    with jax.enable_x64(True):
        wide = asked()
    with pytest.raises(SpecError, match="jax_enable_x64 'True' is not 'False'"):
        ensure(wide)


def test_code_that_the_runtime_refuses_is_made_anew_and_under_forbid_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    artifacts.store(Compiler()(asked()))
    monkeypatch.setenv("TOPS_COMPILE", "forbid")
    with pytest.raises(LoadError, match="the compiler's runtime refuses it"):
        load(asked())
    monkeypatch.setenv("TOPS_COMPILE", "auto")
    assert load(asked())(X, SCALE).shape == (3, 8)
    assert "Ignored" in caplog.text
    monkeypatch.setenv("TOPS_COMPILE", "forbid")
    assert load(asked())(X, SCALE).shape == (3, 8)


def test_a_unit_of_a_chip_that_is_not_here_is_not_run() -> None:
    elsewhere = spec("rms_norm", {"x": X}, target="v5e")
    artifacts.store(Unit(elsewhere, (((3, 8), "float32"),), True, b"code"))
    with pytest.raises(LoadError, match="no v5e here; this process has cpu"):
        compiling.load_unit(artifacts.Unit(elsewhere, (((3, 8), "float32"),), True, b"code"))


def test_without_the_tpus_compiler_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "version", lambda name: "absent")
    with (
        pytest.raises(targets.TargetError, match=r"native code for v5e needs libtpu, .* Run: pip install 'jax\[tpu\]'"),
        targets.lowering("v5e"),
    ):
        pass


@pytest.mark.parametrize("kind", ["native", pytest.param("portable", marks=exports)])
def test_no_path_of_this_machine_is_in_a_unit(kind: Kind) -> None:
    packed = artifacts.pack(compiling.compile_unit(spec("rms_norm", {"x": X}, target="cpu", kind=kind)))
    assert b".py" not in packed
    assert str(Path(tops_kernels.__file__).parent).encode() not in packed


def test_without_flatbuffers_a_portable_unit_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "version", lambda name: "absent")
    with pytest.raises(LoadError, match="Run: pip install flatbuffers"):
        compiling.compile_unit(asked("portable"))


def test_object_files_are_sorted_and_anything_else_is_left_alone() -> None:
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    def executable(*objects: bytes) -> bytes:
        return b"\x02hd" + field(1, field(1, b"module") + b"".join(field(8, one) for one in objects) + field(9, b"end"))

    assert objects.in_order(executable(b"bb", b"a", b"c")) == executable(b"a", b"c", b"bb")
    draw = random.Random(0)
    whole = executable(b"bb", b"a", b"c")
    for _ in range(300):
        noise = bytearray(whole)
        noise[draw.randrange(len(noise))] = draw.randrange(256)
        assert sorted(objects.in_order(bytes(noise))) == sorted(noise)  # moved at most, never lost
    for other in (b"", b"\xff" * 40, b"\x00", whole[:7]):
        assert objects.in_order(other) == other
