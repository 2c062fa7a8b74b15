"""The call log: off it is not there, on it tells each call before it runs, and it never gets in a call's way."""

import inspect
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels
import tops_manifest
from tops_kernels.runtime import public, storing
from tops_kernels.runtime.log import Settings, logged
from tops_kernels.runtime.sink import Sink
from tops_kernels.runtime.variables import VariableError

_OPS = [op.name for op in tops_manifest.ops() if op.status != "planned"]
_X = np.arange(12, dtype=np.float32).reshape(3, 4)

Log = Callable[..., tuple[Callable[..., Any], Callable[[], list[dict[str, Any]]]]]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """log(op, level, in_jit=): the op with a log around it, and what gives the lines written so far."""

    def make(op: str, level: int, in_jit: bool = False) -> Any:
        path = tmp_path / "calls"
        function = logged(op, public.original(op), Settings(level, Sink(str(path)), in_jit))
        return function, lambda: [json.loads(line) for line in path.read_text().splitlines()]

    return make


def _child(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("op", _OPS)
def test_off_the_public_function_is_the_one_that_was_written(op: str) -> None:
    assert getattr(tops_kernels, op) is public.original(op)
    assert vars(tops_kernels)[op] is public.original(op), "an attribute like any other after its first use"


def test_importing_reads_no_environment_and_the_first_use_of_an_op_does() -> None:
    done = _child(
        "import os, tops_kernels\n"
        "assert tops_kernels.support and 'rms_norm' not in vars(tops_kernels)\n"
        "os.environ['TOPS_LOG'] = '0'\n"
        "from tops_kernels import rms_norm\n"
        "import tops_kernels.ops.rms_norm.op as op\n"
        "assert rms_norm is op.rms_norm is tops_kernels.rms_norm\n"
        "assert 'tops_kernels.runtime.log' not in __import__('sys').modules\n"
        "from tops_kernels import *\n"
        "assert gla and set(dir(tops_kernels)) >= set(tops_kernels.__all__)\n"
        "help(tops_kernels)\n",
        TOPS_LOG="nonsense",
    )
    assert done.returncode == 0, done.stderr
    assert "rms_norm(x" in done.stdout, "help tells the functions"


def test_a_level_that_is_none_and_a_name_that_is_none_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPS_LOG", "5")
    with pytest.raises(VariableError, match=r"TOPS_LOG is '5'; expected 0, 1, 2, 3 or 4"):
        public.function("rms_norm")
    with pytest.raises(AttributeError, match="no attribute 'rms_morn'"):
        _ = tops_kernels.rms_morn  # type: ignore[attr-defined]  # the checker must see this, too


@pytest.mark.parametrize("op", _OPS)
def test_a_logged_function_has_the_signature_and_the_words_of_the_original(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPS_LOG", "1")
    found, plain = public.function(op), public.original(op)
    assert found is not plain
    assert inspect.signature(found) == inspect.signature(plain)
    assert (found.__name__, found.__doc__) == (op, plain.__doc__)


def test_a_logged_function_can_be_pickled_by_name() -> None:
    done = _child(
        "import pickle, tops_kernels as t; assert pickle.loads(pickle.dumps(t.matmul)) is t.matmul", TOPS_LOG="1"
    )
    assert done.returncode == 0, done.stderr


def test_level_1_tells_the_name_before_and_after(log: Log) -> None:
    rms_norm, lines = log("rms_norm", 1)
    y = rms_norm(_X)
    np.testing.assert_array_equal(y, tops_kernels.rms_norm(_X))
    first, last = lines()
    assert (first["event"], first["op"], last["event"], last["op"]) == ("call", "rms_norm", "done", "rms_norm")
    assert first["call"] == last["call"]
    assert first["pid"] == os.getpid()
    assert set(first) == {"event", "call", "op", "pid", "thread", "time"}, "no more than that"


def test_level_2_tells_shapes_dtypes_shardings_parameters_configuration_and_devices(log: Log) -> None:
    matmul, lines = log("matmul", 2)
    inputs = {"a": jnp.asarray(_X), "b": jnp.ones((4, 8))}
    config = tops_kernels.configurations("matmul", "pallas_tpu", "fwd", inputs, {}, "v5e")[0]
    with tops_kernels.use_config("matmul", "fwd", config):
        matmul(inputs["a"], inputs["b"], activation="relu", backend="xla")
    first, last = lines()
    assert first["arguments"]["a"]["shape"] == [3, 4]
    assert first["arguments"]["a"]["dtype"] == "float32"
    assert "Sharding" in first["arguments"]["a"]["sharding"]
    assert first["arguments"]["bias"] is None
    assert first["params"] == {"activation": "relu", "out_dtype": None}
    assert (first["backend"], first["interpret"]) == ("xla", False)
    assert first["config"] == {"fwd": repr(config)}
    assert first["devices"][0]["platform"] == "cpu"
    assert last["outputs"]["y"] == {"shape": [3, 8], "dtype": "float32", "sharding": last["outputs"]["y"]["sharding"]}
    assert "statistics" not in first


def test_level_3_tells_statistics_of_the_finite_values_and_counts_the_others(log: Log) -> None:
    rms_norm, lines = log("rms_norm", 3)
    x = np.array([[1, -3, np.nan, np.inf], [-np.inf, 2, 4, np.nan]], np.float32)
    rms_norm(jnp.asarray(x, jnp.bfloat16), np.zeros(4, np.float32))
    first, last = lines()
    assert first["statistics"]["x"] == {"min": -3.0, "max": 4.0, "mean": 1.0, "nan": 2, "inf": 2}
    assert first["statistics"]["scale"] == {"min": 0.0, "max": 0.0, "mean": 0.0, "nan": 0, "inf": 0}
    assert last["statistics"]["y"]["nan"] == 8
    rms_norm(jnp.zeros((0, 4)))
    assert lines()[2]["statistics"]["x"] == {"min": None, "max": None, "mean": None, "nan": 0, "inf": 0}


def test_inside_jit_a_call_is_logged_when_it_is_traced_and_runs_are_not_unless_asked(log: Log) -> None:
    rms_norm, lines = log("rms_norm", 3)
    run = jax.jit(rms_norm)
    for _ in range(3):
        run(_X).block_until_ready()
    assert [(line["event"], line["traced"]) for line in lines()] == [("call", True), ("done", True)]
    assert "statistics" not in lines()[0]
    assert "callback" not in str(jax.make_jaxpr(rms_norm)(_X))
    jax.jit(lambda: rms_norm(_X))()  # a constant: its argument is an array, its result is traced
    assert lines()[-1]["traced"] is True


def test_inside_jit_by_opting_in_each_run_tells_its_statistics(log: Log) -> None:
    rms_norm, lines = log("rms_norm", 3, in_jit=True)
    run = jax.jit(jax.vmap(rms_norm))
    for _ in range(2):
        run(np.stack([_X, _X * np.nan])).block_until_ready()
    jax.effects_barrier()
    runs = [line for line in lines() if line["event"] == "run"]
    assert len(runs) == 4, "two runs of two examples"
    assert {line["statistics"]["x"]["nan"] for line in runs} == {0, 12}
    assert {line["statistics"]["x"]["mean"] for line in runs} == {5.5, None}
    assert [line["event"] for line in lines()].count("ran") == 4


def test_gradients_and_transformations_go_through_a_logged_function(log: Log) -> None:
    for in_jit in (False, True):
        rms_norm, lines = log("rms_norm", 4, in_jit=in_jit)

        def loss(x: jax.Array, f: Callable[..., Any]) -> Any:
            return jax.checkpoint(f)(x).sum()

        want = jax.grad(loss)(jnp.asarray(_X), tops_kernels.rms_norm)
        np.testing.assert_array_equal(jax.jit(jax.grad(loss), static_argnums=1)(jnp.asarray(_X), rms_norm), want)
        np.testing.assert_array_equal(jax.grad(loss)(jnp.asarray(_X), rms_norm), want)
        assert any(line.get("traced") for line in lines())


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_wrong_calls_raise_what_they_raised_and_end_in_a_line(
    level: int, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "w"))
    rms_norm, lines = log("rms_norm", level)
    secret = "hunter2"
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((_X, np.ones(5, np.float32)), {}),
        (([[secret]],), {}),
        ((_X,), {"eps": secret}),
        ((_X,), {"nonsense": 1}),
        ((), {}),
        ((_X,), {"eps": [1.0]}),
        ((object(),), {}),
    ]
    for args, kwargs in wrong:
        with pytest.raises((TypeError, ValueError)) as plain:
            tops_kernels.rms_norm(*args, **kwargs)
        with pytest.raises(type(plain.value)) as found:
            rms_norm(*args, **kwargs)
        assert str(found.value) == str(plain.value)
    assert [line["event"] for line in lines()] == ["call", "failed"] * len(wrong)
    told = lines()[1]
    assert told["error"] == "ContractValueError"
    assert ("scale has shape (5,)" in told.get("message", "")) is (level >= 2)
    assert not (tmp_path / "w").exists(), "what breaks the contract is not dumped"


def test_no_environment_and_no_values_are_in_the_lines(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPS_MIRROR", "https://user:hunter2@example.org")
    monkeypatch.setenv("SECRET", "hunter2")
    rms_norm, lines = log("rms_norm", 3)
    rms_norm(np.array([[12345.5, 1, 1, 1, 1]], np.float32))
    text = json.dumps(lines())
    assert "hunter2" not in text
    rms_norm2, lines = log("rms_norm", 2)
    rms_norm2(np.array([[54321.5, 1, 1, 1, 1]], np.float32))
    assert "54321.5" not in json.dumps(lines()), "statistics begin at level 3"


def test_a_process_that_is_killed_in_a_call_leaves_that_call_as_its_last_line(tmp_path: Path) -> None:
    done = _child(
        "import os, signal, numpy, tops_kernels\n"
        "from tops_kernels.ops.rms_norm import xla\n"
        "def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)\n"
        "tops_kernels.rms_norm(numpy.ones((2, 3), numpy.float32))\n"
        "xla.rms_norm_fwd = die\n"
        "tops_kernels.rms_norm(numpy.ones((2, 7), numpy.float32))\n",
        TOPS_LOG="4",
        TOPS_LOG_FILE=str(tmp_path / "calls.%p"),
        TOPS_WORKSPACE=str(tmp_path / "w"),
    )
    assert done.returncode != 0
    (path,) = tmp_path.glob("calls.*")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.name == f"calls.{lines[0]['pid']}"
    assert [line["event"] for line in lines] == ["call", "done", "call"]
    assert lines[-1]["arguments"]["x"]["shape"] == [2, 7]
    record = json.loads((Path(lines[-1]["dump"]) / "call.json").read_text())
    assert record["state"] == "started"
    assert record["inputs"]["arrays"] == {"x": {"shape": [2, 7], "dtype": "float32"}}


def test_a_log_that_cannot_be_written_is_one_warning_and_calls_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody reads it: opening it must not wait
    (tmp_path / "file").write_text("")
    for place in ("pipe", "file/below", ".", "nul\0"):
        function = logged("rms_norm", public.original("rms_norm"), Settings(2, Sink(str(tmp_path / place))))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert function(_X).shape == (3, 4)
        assert len([one for one in caplog.records if "call log cannot be written" in one.message]) == 1, place


def test_a_log_that_fails_inside_is_one_warning_and_calls_go_on(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(storing, "_warned", set())
    monkeypatch.setattr("tops_kernels.runtime.facts.split", broken)
    rms_norm, _ = log("rms_norm", 3)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            np.testing.assert_array_equal(rms_norm(_X), tops_kernels.rms_norm(_X))
    assert len([one for one in caplog.records if "going on without" in one.message]) == 1


def test_threads_do_not_cut_each_others_lines(log: Log) -> None:
    rms_norm, lines = log("rms_norm", 2)
    rms_norm(_X)
    threads = [threading.Thread(target=lambda: [rms_norm(_X) for _ in range(25)]) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = lines()
    assert len(found) == 2 * (8 * 25 + 1)
    numbers = [line["call"] for line in found]
    assert all(numbers.count(number) == 2 for number in set(numbers))


def test_without_a_file_the_log_is_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    logged("rms_norm", public.original("rms_norm"), Settings(1, Sink("")))(_X)
    assert [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()] == ["call", "done"]
