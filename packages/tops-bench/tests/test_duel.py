"""Two environments in turns: the rule on scripted sides, and the protocol with a worker that really runs."""

import io
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tops_bench import duel, environments, running, worker
from tops_bench.timing import Effort
from tops_manifest.workloads import cases

_EFFORT = Effort(rounds=9, sample_seconds=0.001)
_JOBS = running.jobs([cases("rms_norm")[0].op], ["fwd"], "llama-3.1-70b-decode")


class Side:
    """A worker of scripted speed."""

    def __init__(self, seconds: Callable[[], float], **change: Any) -> None:
        self.seconds, self.change = seconds, change
        self.asked: list[str] = []

    def hello(self) -> dict[str, Any]:
        return {
            "implementations": {"rms_norm": self.change.get("implementations", ["xla"])},
            "sources": {"rms_norm": {"xla": self.change.get("source", str(id(self)))}},
            "versions": {"jax": self.change.get("jax", "1")},
        }

    def ask(self, request: Mapping[str, Any], /) -> dict[str, Any]:
        self.asked.append(str(request["do"]))
        if request["do"] == "prepare":
            if "error" in self.change:
                return {"error": self.change["error"]}
            if self.change.get("hoisted") and request["method"] == "chained loop":
                return {"error": "hoisted", "hoisted": True}
            return {"iterations": request["iterations"] or 4, "method": request["method"]}
        return {"seconds": self.seconds()}


def _duel(base: Callable[[], Side], head: Callable[[], Side]) -> tuple[Any, list[tuple[str, Side]]]:
    started: list[tuple[str, Side]] = []

    def start(name: str) -> Side:
        started.append((name, base() if name == "base" else head()))
        return started[-1][1]

    return duel.duel(start, _JOBS, _EFFORT, quick=True), started


def _steady(seconds: float, **change: Any) -> Callable[[], Side]:
    return lambda: Side(lambda: seconds, **change)


def test_equal_sides_are_ok_and_take_turns() -> None:
    [found], started = _duel(_steady(1.0), _steady(1.0))
    assert (found.verdict, found.how) == ("ok", "one run, in turns")
    assert [len(side.asked) for _, side in started] == [10, 10]


def test_a_slower_head_is_confirmed_by_fresh_processes_before_it_is_a_fault() -> None:
    [found], started = _duel(_steady(1.0), _steady(1.2))
    assert found.verdict == "slower"
    assert found.is_fault
    assert [name for name, _ in started] == ["base", "head", "base", "head"]


def test_a_slow_process_of_a_program_that_is_not_slow_is_no_fault() -> None:
    speeds = iter([1.2, 1.0])  # the first head process is unlucky
    [found], _ = _duel(_steady(1.0), lambda: _steady(next(speeds))())
    assert found.verdict == "ok"


@pytest.mark.parametrize(
    ("change", "timed"), [({}, False), ({"source": "other"}, True), ({"jax": "2"}, True), ({"source": None}, True)]
)
def test_what_compiles_to_the_same_program_is_not_timed(change: dict[str, Any], timed: bool) -> None:
    [found], started = _duel(_steady(1.0, source="s"), _steady(9.0, **{"source": "s", **change}))
    assert found.verdict == ("slower" if timed else "ok")
    assert bool(started[0][1].asked) == timed


@pytest.mark.parametrize(
    ("base", "head", "verdict"),
    [
        (_steady(1.0), _steady(1.0, implementations=[]), "gone"),
        (_steady(1.0), _steady(1.0, error="ValueError: no"), "failed"),
        (_steady(1.0, error="ValueError: no"), _steady(1.0), "new"),
        (_steady(1.0), _steady(1.0, hoisted=True), "ok"),
    ],
)
def test_what_a_side_cannot_do_is_told(base: Callable[[], Side], head: Callable[[], Side], verdict: str) -> None:
    [found], _ = _duel(base, head)
    assert found.verdict == verdict


def test_a_case_survives_the_way_to_the_worker() -> None:
    for op in ("matmul", "rms_norm", "add_rms_norm"):
        for case in cases(op):
            assert worker.case_from(json.loads(json.dumps(worker.case_data(case)))) == case


def test_a_worker_answers_what_it_cannot_do() -> None:
    here = worker.Worker()
    assert "nothing is prepared" in here.answer({"do": "sample", "iterations": 1})["error"]
    assert "unknown request 'dance'" in here.answer({"do": "dance"})["error"]
    assert "KeyError" in here.answer({"do": "prepare"})["error"]


def test_a_worker_serves_a_line_for_a_line() -> None:
    case = _JOBS[0].case.fit(1 << 16)
    prepare = {
        "do": "prepare", "case": worker.case_data(case), "pass": "fwd", "implementation": "xla",
        "sample_seconds": 0.001, "method": "wall clock", "iterations": 3,
    }  # fmt: skip
    requests = [{"do": "hello"}, prepare, {"do": "sample", "iterations": 3}]
    answers = io.StringIO()
    worker.serve(io.StringIO("".join(json.dumps(one) + "\n" for one in requests)), answers)
    hello, prepared, sample = map(json.loads, answers.getvalue().splitlines())
    assert hello["protocol"] == worker.PROTOCOL
    assert "xla" in hello["implementations"]["rms_norm"]
    assert prepared == {"iterations": 3, "method": "wall clock"}
    assert sample["seconds"] > 0


def test_a_worker_runs_in_a_process_of_its_own_and_ends_with_its_parent() -> None:
    with environments.Child(environments.Environment("here", Path(sys.executable))) as child:
        assert "xla" in child.hello()["implementations"]["rms_norm"]
    with pytest.raises((environments.WorkerError, ValueError)):
        child.ask({"do": "hello"})


def test_an_environment_without_the_bench_is_told_with_what_it_said(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named tops_bench' >&2\nexit 1\n")
    python.chmod(0o755)
    with (
        environments.Child(environments.Environment("broken", python)) as child,
        pytest.raises(environments.WorkerError, match="broken: its worker ended: No module named tops_bench"),
    ):
        child.hello()


def test_what_a_path_names_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("{}")
    assert environments.find(str(tmp_path / "record.json")) is None
    found = environments.find(sys.executable)
    assert found is not None
    assert found.python == Path(sys.executable)
    checkout = tmp_path / "checkout"
    for name in ("tops-kernels", "tops-manifest"):
        (checkout / "packages" / name / "src").mkdir(parents=True)
    found = environments.find(str(checkout))
    assert found is not None
    assert [path.parent.name for path in found.python_path] == ["tops-kernels", "tops-manifest"]
    (tmp_path / "empty").mkdir()
    for wrong in ("empty", "none"):
        with pytest.raises(environments.WorkerError, match="expected a"):
            environments.find(str(tmp_path / wrong))
