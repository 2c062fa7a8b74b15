"""Tuning: what is tried, thrown out, timed and written, and that no child and no other writer can spoil it."""

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels
from tops_kernels import cli
from tops_kernels.ops.matmul import pallas_tpu
from tops_kernels.runtime import tables
from tops_kernels.runtime.chip import TPU_TARGETS
from tops_kernels.runtime.tuning import case as cases
from tops_kernels.runtime.tuning import children, file, row, tuner, worker
from tops_kernels.runtime.tuning.case import Case
from tops_kernels.runtime.tuning.row import signature_of
from tops_kernels.runtime.tuning.timing import Times, interleaved
from tops_kernels.runtime.tuning.tuner import Settings
from tops_manifest import ArraySpec

SQUARE = {"a": ArraySpec((256, 256), "float32"), "b": ArraySpec((256, 256), "float32")}
PACKED = {
    **{name: ArraySpec((1, 96, 4, 32), "bfloat16") for name in "qkv"},
    "g": ArraySpec((1, 96, 4, 32), "float32"),
    "cu_seqlens": ArraySpec((4,), "int32"),
}
SETTINGS = Settings(limit=60.0, candidates=3, rounds=3, children=1)
ROW = {
    "op": "matmul",
    "implementation": "pallas_tpu",
    "inputs": SQUARE,
    "params": {},
    "chip": "v5e",
    "origin": "schedule estimate",
    "toolchain": {"jax": jax.__version__},
}


def case(which: str = "fwd", op: str = "matmul", inputs: Any = SQUARE) -> Case:
    return Case(signature_of(op, inputs, {}), which, "pallas_tpu", True)


def config(block: int = 128) -> Any:
    spaces = tops_kernels.configurations("matmul", "pallas_tpu", "fwd", SQUARE, {}, "v5e")
    return dataclasses.replace(spaces[0], block_m=block)  # type: ignore[type-var]  # a dataclass, to whoever knows


def no_children(jobs: Sequence[Any], chip: str, **how: Any) -> list[dict[str, Any]]:
    return [{"compiled": True} for _ in jobs]


def test_the_whole_path_in_the_interpreter(tmp_path: Path) -> None:
    """A real child; rows of the right kind; and a file that then holds."""
    path = tmp_path / "tuned.json"
    shape: Any = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    (found,) = tops_kernels.tune(
        tops_kernels.rms_norm, shape, eps=1e-5, file=path, interpret=True, candidates=2, rounds=3
    )
    assert (found.op, found.which, found.chip) == ("rms_norm", "fwd", "interpreter")
    assert [one.outcome for one in found.tried] == ["timed", "timed"], found
    rows = tables.read(path)
    assert len(rows) == (found.best is not None)
    for written in rows:
        assert (written.origin, dict(written.toolchain)["jax"]) == ("interpreter", jax.__version__)
    with tops_kernels.tuned(path):
        x = jax.random.normal(jax.random.key(0), (64, 128))
        assert jnp.allclose(tops_kernels.rms_norm(x, interpret=True), tops_kernels.rms_norm(x), atol=1e-5)


def test_a_candidate_that_disagrees_is_thrown_out_before_it_is_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = pallas_tpu.matmul_fwd
    larger = case(inputs={name: ArraySpec((512, 512), "float32") for name in "ab"})
    good, bad, *_ = (one for one in cases.configurations(larger, "interpreter")[1:])
    timed: list[int] = []

    def planted(*arrays: Any, config: Any, **how: Any) -> Any:
        (y,) = right(*arrays, config=config, **how)
        return (y.at[3, 5].add(1e3),) if config == bad else (y,)

    def count(programs: Sequence[Any], *, rounds: int) -> Times:
        timed.append(len(programs))
        return Times(
            tuple(1.0 / (at + 1) for at in range(len(programs))), tuple(1.0 / (at + 1) for at in range(len(programs)))
        )

    monkeypatch.setattr(pallas_tpu, "matmul_fwd", planted)
    monkeypatch.setattr(children, "run", no_children)
    monkeypatch.setattr(tuner, "interleaved", count)
    (found,) = tuner.run([larger], "interpreter", tmp_path / "it.json", SETTINGS)
    wrong = found.tried[2]
    assert wrong.outcome == "disagrees"
    assert "differs from the xla path by" in wrong.reason
    assert wrong.seconds is None
    assert timed == [2, 2]  # all that are left, then the best of them against the heuristic's
    assert found.best is not None
    assert found.best.config == cases.fields(good) != wrong.config
    assert [dict(one.config) for one in tables.read(tmp_path / "it.json")] == [found.best.config]


def test_what_does_not_compile_is_lost_and_a_heuristic_that_is_best_leaves_no_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "it.json"
    file.merge(
        path,
        [
            row.row_for(
                case().call,
                which="fwd",
                config=config(),
                seconds=1.0,
                heuristic_seconds=2.0,
                with_sources=True,
                implementation="pallas_tpu",
                chip="interpreter",
                origin="interpreter",
                toolchain={},
            )
        ],
        [],
    )
    lost: Any = lambda jobs, chip, **how: [{"compiled": True}, *[{"lost": "no answer in 60 s"}] * (len(jobs) - 1)]  # noqa: E731
    monkeypatch.setattr(children, "run", lost)
    (found,) = tuner.run([case()], "interpreter", path, SETTINGS)
    assert [one.outcome for one in found.tried] == ["timed", *["lost"] * (len(found.tried) - 1)]
    assert found.best is None
    assert tables.read(path) == ()


def test_tuning_needs_a_chip_an_op_and_passes_that_there_are(tmp_path: Path) -> None:
    a = np.zeros((8, 8), np.float32)
    with pytest.raises(ValueError, match="no kernel has code for this machine's cpu"):
        tops_kernels.tune(tops_kernels.matmul, a, a, file=tmp_path / "it")
    with pytest.raises(ValueError, match="fn calls no op"):
        tops_kernels.tune(jnp.dot, a, a, file=tmp_path / "it", interpret=True)
    with pytest.raises(ValueError, match="passes is"):
        tops_kernels.tune(tops_kernels.matmul, a, a, file=tmp_path / "it", passes=("bwd",), interpret=True)
    with pytest.raises(ValueError, match="backend is 'xla'"):
        tops_kernels.tune(tops_kernels.matmul, a, a, file=tmp_path / "it", backend="xla")
    assert list(tmp_path.iterdir()) == []


def test_the_command_tunes_a_call_by_its_shapes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "it.json"
    monkeypatch.setattr(children, "run", no_children)
    call = ["tune", "rms_norm", "x=float32[64,128]", "--param", "eps=1e-5", "--file", str(path), "--json"]
    assert cli.main([*call, "--pass", "fwd", "--candidates", "2", "--interpret"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["outcome"] for line in lines] == ["timed", "timed"]
    assert path.exists()
    assert cli.main(call) == 2
    assert "no kernel has code for this machine's cpu" in capsys.readouterr().err
    for wrong in ("x=float32", "y=float32[1]", "x=float32[64,128],"):
        assert cli.main(["tune", "rms_norm", wrong, "--file", str(path), "--interpret"]) == 2


# Cases.


@pytest.mark.parametrize("which", ["fwd", "vjp"])
def test_a_case_survives_the_way_to_a_child_and_its_values_keep_the_contract(which: str) -> None:
    one = case(which, "gla", PACKED)
    assert cases.from_job(json.loads(json.dumps(one.job()))) == one
    values = cases.drawn(one)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), values) == jax.tree.map(
        lambda x: (x.shape, x.dtype), cases.avals(one)
    )
    g, ends = values[-2], values[-1]
    assert float(jnp.max(g)) <= 0.0
    assert [int(end) for end in ends] == [0, 32, 64, 96]


def test_agreement_is_of_every_number_and_kind() -> None:
    good = jnp.linspace(-1.0, 1.0, 64)
    assert cases.disagreement((good,), (good,)) == ""
    assert cases.disagreement((good * (1 + 1e-5),), (good,)) == ""
    assert "differs" in cases.disagreement((good.at[7].add(0.1),), (good,))
    assert "NaN" in cases.disagreement((good.at[7].set(jnp.nan),), (good,))
    assert "float32(32,)" in cases.disagreement((good[:32],), (good,))
    assert "outputs" in cases.disagreement((good, good), (good,))
    assert "differs" in cases.disagreement((jnp.arange(3),), (jnp.arange(3) + 1,), good)
    coarse = good.astype(jnp.bfloat16)  # what a state of bfloat16 inputs is made of
    assert cases.disagreement((good.at[7].add(0.01),), (good,), coarse) == ""
    assert "differs" in cases.disagreement((good.at[7].add(0.01),), (good,), good)


def test_the_worker_answers_whatever_it_is_asked() -> None:
    job = {**case().job(), "target": "interpreter", "config": {"block_m": 3}}
    assert "search space" in worker.answer(job)["refused"]
    assert "refused" in worker.answer({**job, "op": "none"})
    assert "refused" in worker.answer({})


# Children.


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_child_that_hangs_is_killed_at_its_limit_with_what_it_started(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time, os\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}} {{grandchild.pid}} ')\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script]
    answers = children.run([{}, {}], "v5e", limit=6.0, count=2, command=command)
    assert ["no answer in" in answer["lost"] for answer in answers] == [True, True]
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 4
    until = time.monotonic() + 10
    while not all(map(_gone, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert all(map(_gone, pids))


def test_a_child_that_dies_is_one_candidate_lost_and_the_next_gets_a_fresh_one() -> None:
    script = (
        "import sys, os, json\n"
        "for line in sys.stdin:\n"
        "    job = json.loads(line)\n"
        "    if job.get('die'): print('boom', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)\n"
        "    if job.get('babble'): print('no JSON', flush=True); continue\n"
        "    print(json.dumps({'compiled': True}), flush=True)\n"
    )
    jobs = [{}, {"die": 1}, {}, {"babble": 1}, {}]
    answers = children.run(jobs, "v5e", limit=30, count=1, command=[sys.executable, "-c", script])
    assert [answer.get("compiled", False) for answer in answers] == [True, False, True, False, True]
    assert answers[1]["lost"] == f"the compiling process ended ({-signal.SIGKILL}): boom"


def test_a_child_that_cannot_be_started_is_a_candidate_lost() -> None:
    (answer,) = children.run([{}], "v5e", limit=5, count=1, command=["/does/not/exist"])
    assert "no process could be started" in answer["lost"]


def test_children_for_a_tpu_leave_the_one_at_hand_alone() -> None:
    for chip in TPU_TARGETS:
        assert children.environment(chip)["JAX_PLATFORMS"] == "cpu"
        assert chip in worker.TOPOLOGIES
    assert children.environment("sm_90") == {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


# Timing.


def test_programs_take_turns_and_each_round_is_compared_by_itself() -> None:
    clock = {"now": 0.0, "drift": 1.0}
    order: list[int] = []

    def program(which: int, cost: float) -> int:
        order.append(which)
        clock["drift"] *= 1.01  # the machine gets slower and slower
        clock["now"] += cost * clock["drift"]
        return 0

    programs = [functools.partial(program, which, cost) for which, cost in enumerate((1.0, 0.5, 2.0))]
    times = interleaved(programs, rounds=6, clock=lambda: clock["now"])
    assert order[-18:] == [0, 1, 2, 1, 2, 0, 2, 0, 1] * 2
    assert times.ratios == pytest.approx((1.0, 0.5, 2.0), rel=0.04)
    assert len(times.medians) == 3


# Files.


def test_a_row_is_put_over_an_older_one_and_taken_out_where_it_gains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "it.json"
    put = functools.partial(tops_kernels.record_tuned, path, **ROW)
    assert put(which="fwd", config=config(), seconds=1.0, heuristic_seconds=2.0)
    assert put(which="vjp", config=config(), seconds=1.0, heuristic_seconds=2.0)
    assert put(which="fwd", config=config(256), seconds=0.5, heuristic_seconds=2.0)
    assert {row.which: row.seconds for row in tables.read(path)} == {"fwd": 0.5, "vjp": 1.0}
    assert not put(which="fwd", config=config(), seconds=1.97, heuristic_seconds=2.0)
    assert [row.which for row in tables.read(path)] == ["vjp"]
    assert os.listdir(path.parent) == ["it.json"]


def test_a_file_that_is_something_else_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text('{"mine": 1}')
    with pytest.raises(ValueError, match=r"notes.json: not a table"):
        tops_kernels.record_tuned(path, which="fwd", config=config(), seconds=1.0, heuristic_seconds=2.0, **ROW)
    assert path.read_text() == '{"mine": 1}'
    with pytest.raises(ValueError, match="the row"):
        tops_kernels.record_tuned(
            tmp_path / "it", which="sideways", config=config(), seconds=1.0, heuristic_seconds=2.0, **ROW
        )


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "it.json"
    put = functools.partial(tops_kernels.record_tuned, path, which="fwd", heuristic_seconds=2.0, **ROW)
    put(config=config(), seconds=1.0)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        put(config=config(256), seconds=0.5)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["it.json"]


_WRITER = """
import dataclasses, sys, types
from pathlib import Path
bare = types.ModuleType("tops_kernels")  # the package without its __init__: eight imports of jax would take longer than all tests here
bare.__path__ = [sys.argv[3]]
sys.modules["tops_kernels"] = bare
from tops_kernels.runtime import tables
from tops_kernels.runtime.tuning import file
path, who = Path(sys.argv[1]), int(sys.argv[2])
(row,) = tables.read(path.with_name("seed"))
sys.stdin.readline()
for at in range(10):
    file.merge(path, [dataclasses.replace(row, dims=(("M", 1 << at), ("N", 1 << who)))], [])
"""


def test_eight_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    seed = {**ROW, "config": config(), "seconds": 1.0, "heuristic_seconds": 2.0, "which": "fwd"}
    tops_kernels.record_tuned(tmp_path / "seed", **seed)  # type: ignore[arg-type]  # the names are right
    path = tmp_path / "it.json"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), str(who), str(Path(tops_kernels.__file__).parent)],
            stdin=subprocess.PIPE,
        )
        for who in range(8)
    ]
    for one in writers:  # all have started before any writes
        assert one.stdin is not None
        one.stdin.write(b"\n")
        one.stdin.flush()
    assert [one.wait(timeout=120) for one in writers] == [0] * 8
    for one in writers:
        assert one.stdin is not None
        one.stdin.close()
    assert {row.dims for row in tables.read(path)} == {
        (("M", 1 << at), ("N", 1 << who)) for at in range(10) for who in range(8)
    }
    assert sorted(os.listdir(tmp_path)) == ["it.json", "seed"]
