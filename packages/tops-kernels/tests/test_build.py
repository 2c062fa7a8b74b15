"""The command build: from a file of workloads to a bundle that installs, the same bytes each time, on a machine that compiles none."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tops_kernels.cli import main
from tops_kernels.runtime import bulk, memory, storing, targets
from tops_kernels.runtime.plan import PlanError, plan
from tops_kernels.runtime.spec import spec

ARRAY = {"shape": [4, 8], "dtype": "float32"}
CALLS = [
    {"op": "rms_norm", "inputs": {"x": ARRAY, "scale": {"shape": [8], "dtype": "float32"}}, "pass": ["fwd", "vjp"]},
    {
        "op": "matmul",
        "inputs": {"a": ARRAY, "b": {"shape": [8, 4], "dtype": "float32"}},
        "params": {"activation": "relu"},
    },
]

# In a process of its own: installs, then runs a unit where compiling is forbidden and tracing an op would import Pallas.
_USER = """
import sys
import jax, numpy as np
from tops_kernels.runtime.spec import spec
from tops_kernels.runtime.units import load
compiled = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
x, scale = np.ones((4, 8), np.float32), np.full(8, 2, np.float32)
y = load(spec("rms_norm", {"x": x, "scale": scale}, target="cpu"))(x, scale)
assert np.allclose(np.asarray(y), 2), y
assert not [event for event in compiled if "compile" in event or "trace" in event], compiled
assert "jax.experimental.pallas" not in sys.modules
"""


@pytest.fixture(autouse=True)
def _workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setattr(storing, "_warned", set())
    (tmp_path / "calls.json").write_text(json.dumps(CALLS))


def build(tmp_path: Path, out: str, *more: str) -> int:
    return main(
        [
            "build",
            "--targets",
            "cpu",
            "--kinds",
            "native",
            "--workloads",
            str(tmp_path / "calls.json"),
            "-o",
            str(tmp_path / out),
            *more,
        ]
    )


def test_what_is_built_installs_elsewhere_and_runs_there_without_compiling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build(tmp_path, "bundle", "--ops", "rms_norm", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["fault"] for row in rows] == ["", ""]
    assert {path.name for path in (tmp_path / "bundle").iterdir()} == {
        "artifacts.lock",
        *(f"{row['unit']}.unit" for row in rows),
    }
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("TOPS_COMPILE", "forbid")
    assert main(["install", str(tmp_path / "bundle")]) == 0
    done = subprocess.run([sys.executable, "-c", _USER], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Again, in another order, over what is there: the same bytes.
    monkeypatch.setenv("TOPS_COMPILE", "auto")
    before = {path.name: path.read_bytes() for path in (tmp_path / "bundle").iterdir()}
    (tmp_path / "calls.json").write_text(json.dumps([{**CALLS[0], "pass": ["vjp", "fwd"]}]))
    assert build(tmp_path, "bundle", "-j", "1") == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "bundle").iterdir()} == before


def test_a_compiler_that_dies_costs_its_unit_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is one of ours that kills itself for one unit."""
    specs = [spec("rms_norm", {"x": _Array((rows, 8))}, target="cpu") for rows in (1, 2, 3)]
    script = (
        "import os, sys, json\n"
        "for line in sys.stdin:\n"
        "    if json.loads(line)['arguments'][0]['shape'][0] == 2: os.kill(os.getpid(), 9)\n"
        "    print('noise'); print('tops-unit {\"fault\": \"\"}', flush=True)\n"
    )
    real = subprocess.Popen

    def popen(arguments: list[str], **options: Any) -> Any:
        return real([sys.executable, "-c", script], **options)

    monkeypatch.setattr(bulk.subprocess, "Popen", popen)
    ended: list[Any] = []
    faults = bulk.build(specs, tmp_path, processes=1, finished=lambda one, _: ended.append(one))
    assert faults == {specs[1]: f"its compiler died with status {-signal.SIGKILL}"}
    assert len(ended) == 3


class _Array:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype = shape, "float32"


@pytest.mark.parametrize(
    ("room", "cores", "wanted", "count"),
    [(64 << 30, 8, None, 8), (7 << 30, 8, None, 2), (1 << 30, 8, None, 1), (None, 4, None, 4), (1 << 30, 8, 5, 5)],
)
def test_as_many_compilers_as_cores_and_memory_allow(
    room: int | None, cores: int, wanted: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: room)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert memory.compilers(wanted) == count


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 4000000 kB\n")
    assert memory.available() == 4000000 << 10
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.available() == 4000000 << 10
    (tmp_path / "memory.max").write_text("5000\n")
    assert memory.available() == 4000
    assert memory.is_tight()


def test_chips_share_their_platforms_portable_code_and_nothing_is_planned_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "version", lambda name: "1")
    specs, remarks = plan(tmp_path / "calls.json", ["matmul"], ["v5e", "v6e", "cpu", "tpu"], ["native", "portable"])
    assert [(one.target, one.kind, one.implementation) for one in specs] == [
        ("v5e", "native", "pallas_tpu"),
        ("tpu", "portable", "pallas_tpu"),
        ("v6e", "native", "pallas_tpu"),
        ("cpu", "native", "xla"),
        ("cpu", "portable", "xla"),
    ]
    assert remarks == ["tpu is a platform: portable code alone; name a chip for native code"]


def test_a_chip_without_its_compiler_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(targets, "version", lambda name: "absent")
    arguments = ["build", "--targets", "v5e", "--workloads", str(tmp_path / "calls.json"), "-o", str(tmp_path / "b")]
    assert main(arguments) == 2
    assert "needs libtpu, the TPU's compiler (no TPU needed). Run: pip install 'jax[tpu]'" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"),
        ("{}", "a dict; expected a list of workloads"),
        ("[" * 100000, "no JSON"),
        ("[]", "nothing to build"),
        ("[1]", "workload 1: expected an object with op, inputs"),
        ('[{"op": "x", "inputs": {}}]', "workload 1: op is 'x'; expected one of add_rms_norm"),
        ('[{"op": "rms_norm", "inputs": {}, "more": 1}]', "expected an object with op, inputs and, if need be, params and pass"),
        ('[{"op": "rms_norm", "inputs": {"x": [4, 8]}}]', "expected {name"),
        ('[{"op": "rms_norm", "inputs": {"x": {"shape": [-1], "dtype": "float32"}}}]', "expected {name"),
        ('[{"op": "rms_norm", "inputs": {"x": {"shape": [4], "dtype": "float99"}}}]', "rms_norm: x has dtype float99"),
        ('[{"op": "rms_norm", "inputs": {"y": {"shape": [4], "dtype": "float32"}}}]', "no input 'y'"),
        ('[{"op": "rms_norm", "inputs": {"x": {"shape": [4], "dtype": "float32"}}, "pass": "bwd"}]', "expected fwd, vjp or a list"),
        ('[{"op": "rms_norm", "inputs": {"x": {"shape": [4], "dtype": "float32"}}, "params": {"eps": -1}}]', "eps"),
        ('[{"op": "rms_norm", "inputs": {"x": {"shape": [4], "dtype": "float32"}}, "params": []}]', "params is a list"),
    ],
)  # fmt: skip
def test_a_file_of_workloads_that_is_none_is_refused_by_place(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(PlanError, match=words):
        plan(tmp_path / "bad.json", None, ["cpu"], ["native"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ops", "nonsense"], "--ops: no op 'nonsense'"),
        (["--ops", "gla"], "no workload of gla"),
        (["--targets", "v9"], "--targets: got 'v9'; expected some of cpu, cuda, sm_100"),
        (["--kinds", "magic"], "--kinds: got 'magic'; expected some of native, portable"),
        (["-j", "0"], "-j: got 0; expected 1 or more"),
        (["-o", "/nowhere/b"], "-o: /nowhere is no folder that can be written"),
        (["--workloads", "/nowhere/x.json"], "--workloads: /nowhere/x.json is no file that can be read"),
    ],
)
def test_wrong_use_is_exit_2_and_says_what_was_expected(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(tmp_path, "b", *arguments) == 2
    assert words in capsys.readouterr().err


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    assert build(tmp_path, "home") == 1
    assert "holds thesis.tex; expected a new or empty folder, or a bundle's" in capsys.readouterr().err
    assert (tmp_path / "home" / "thesis.tex").read_text() == "mine"


def test_progress_is_said_after_a_while_and_not_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tops_kernels.runtime import progress

    said = threading.Event()
    monkeypatch.setattr(progress, "FIRST", 0.01)
    monkeypatch.setattr(progress, "_NEXT", 0.01)
    with progress.progress("compiling rms_norm for v5e") as remark:
        remark("process 3 has it since 2 s")
        said.wait(0.2)
    assert "compiling rms_norm for v5e (0 s: process 3 has it since 2 s)\n" in capsys.readouterr().err
    monkeypatch.setattr(progress, "FIRST", 100.0)
    with progress.progress("compiling"):
        pass
    assert capsys.readouterr().err == ""


def test_the_worker_answers_for_each_line_and_takes_none_for_a_unit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tops_kernels.runtime.unit_worker"],
        input="nonsense\n{}\n",
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TOPS_UNITS_FOLDER": str(tmp_path)},
    )
    answers = [json.loads(line.removeprefix("tops-unit ")) for line in done.stdout.splitlines() if line]
    assert ["JSONDecodeError" in answers[0]["fault"], "SpecError" in answers[1]["fault"], len(answers)] == [
        True,
        True,
        2,
    ]
