"""The command: certificates for what is right, faults and no certificate for what is not, and the exit status."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest

import tops_kernels
from tops_manifest.workloads import cases
from tops_tests import certificates, certify
from tops_tests.cli import main
from tops_tests.subject import Subject

ROW = "llama-3.1-70b-decode"


@pytest.fixture(autouse=True)
def _one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One row of each op is enough here: what the values are is the conformance suite's business."""
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path))
    real = certify.jobs
    monkeypatch.setattr(certify, "jobs", lambda ops, **_: [job for job in real(ops) if job.case.row == ROW])


def _json(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def _break(monkeypatch: pytest.MonkeyPatch, by: float, implementation: str = "xla") -> None:
    """The implementation's results, off by a factor."""
    real = Subject.call

    def call(self: Subject, case: Any) -> Any:
        run = real(self, case)
        if self.implementation != implementation:
            return run
        return lambda *arrays: tuple((y * by).astype(y.dtype) for y in run(*arrays))

    monkeypatch.setattr(Subject, "call", call)


def test_what_is_right_is_certified_and_verifies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "rms_norm", "--quick", "--json"]) == 0
    outcomes = _json(capsys)["outcomes"]
    assert outcomes
    assert {one["status"] for one in outcomes} == {"certified"}
    assert {one["implementation"] for one in outcomes} >= {"xla", "pallas_tpu"}
    assert all(one["interpreted"] == one["implementation"].startswith("pallas") for one in outcomes)
    assert main(["verify", "--json"]) == 0
    verified = _json(capsys)
    assert len(verified) == len(outcomes)
    assert all(one["valid"] for one in verified)
    assert (certificates.folder() / "stage.json").is_file()


def test_a_fault_withdraws_the_certificate_and_is_exit_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["certify", "rms_norm", "--quick"]) == 0
    before = len(certificates.all_paths())
    capsys.readouterr()
    _break(monkeypatch, 1.5)
    assert main(["certify", "rms_norm", "--quick"]) == 1
    said = capsys.readouterr().out
    assert "FAULT: rms_norm fwd llama-3.1-70b-decode" in said
    assert "its certificate is withdrawn" in said
    assert "y is off by 0.5" in said
    rows = sum(case.row == ROW and "fwd" in case.passes for case in cases("rms_norm"))
    assert len(certificates.all_paths()) == before - rows


def test_whatever_an_implementation_raises_is_its_own_fault_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Subject.call

    def call(self: Subject, case: Any) -> Any:
        if self.implementation == "xla":
            raise RuntimeError("the compiler fell over")
        return real(self, case)

    monkeypatch.setattr(Subject, "call", call)
    assert main(["certify", "rms_norm", "--quick", "--json"]) == 1
    outcomes = _json(capsys)["outcomes"]
    for one in outcomes:
        assert (one["status"] == "FAULT") == (one["implementation"] == "xla")
        if one["fault"]:
            assert "raised RuntimeError: the compiler fell over" in one["fault"]


def test_verify_is_exit_status_1_where_one_does_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    main(["certify", "rms_norm", "--quick"])
    path = certificates.all_paths()[0]
    path.write_text("{}")
    capsys.readouterr()
    assert main(["verify"]) == 1
    said = capsys.readouterr().out
    assert f"INVALID: rms_norm/{path.name}: schema None; expected 1" in said
    assert "1 invalid" in said


def test_verify_without_certificates_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    said = capsys.readouterr()
    assert "0 valid, 0 invalid" in said.out
    assert "run `tops-tests certify`" in said.err


def test_baselines_are_held_to_the_oracle_and_stamped_where_any_are_registered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tops_tests import baselines

    def of(op: Any) -> list[Subject]:
        def right(x: Any, scale: Any = None, *, eps: float = 1e-6, scale_offset: float = 0.0) -> Any:
            return tops_kernels.rms_norm(x, scale, eps=eps, scale_offset=scale_offset)

        return [Subject(op, right, "baseline:right"), Subject(op, lambda x, *_, **__: x, "baseline:wrong")]

    monkeypatch.setattr(baselines, "of", of)
    monkeypatch.setattr(baselines, "source", lambda op: Path(__file__))
    assert main(["certify", "rms_norm", "--quick", "--json"]) == 1
    status = {one["implementation"]: one["status"] for one in _json(capsys)["outcomes"]}
    assert status["baseline:right"] == "certified"
    assert status["baseline:wrong"] == "FAULT"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["certify", "nonsense"], "no implemented op 'nonsense'; known: "),
        (["certify", "--nonsense"], "unrecognized arguments"),
        (["tolerances", "--check", "--lock"], "not allowed with argument"),
        ([], "required: command"),
    ],
)
def test_wrong_use_is_exit_status_2(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_a_platform_that_is_not_here_is_wrong_use(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise RuntimeError("Unknown backend tpu")

    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(jax, "default_backend", none)
    with pytest.raises(SystemExit) as caught:
        main(["certify", "--platform", "tpu"])
    assert caught.value.code == 2
    assert "--platform tpu: jax has none here" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["/proc/nowhere", "{file}"])
def test_a_workspace_that_cannot_be_written_is_one_line_and_exit_status_1(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOPS_WORKSPACE", place.format(file=tmp_path / "file"))
    assert main(["certify", "rms_norm", "--quick"]) == 1
    said = capsys.readouterr().err
    assert "certificates cannot be written" in said
    assert "TOPS_WORKSPACE" in said


def test_list_and_tolerances_speak_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    listed = _json(capsys)
    assert {op["op"] for op in listed["ops"]} >= {"matmul", "rms_norm", "add_rms_norm"}
    assert len(listed["checks"]) >= 20
    assert all(check["doc"] for check in listed["checks"])
    assert main(["tolerances", "--check", "--json"]) == 0
    assert _json(capsys)["faults"] == []
