"""The blocklist: what stands on it is not chosen, is refused where insisted on, and somebody looks when its day has passed."""

import contextlib
import datetime
import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tops_kernels
from tops_kernels import cli
from tops_kernels.commands import blocklist as command
from tops_kernels.runtime import blocklist
from tops_kernels.runtime.blocklist import Blocked, parse
from tops_kernels.runtime.chip import tracing_for
from tops_kernels.runtime.tuning import tuner
from tops_kernels.runtime.tuning.case import Case
from tops_kernels.runtime.tuning.row import signature_of
from tops_kernels.runtime.versions import in_range
from tops_manifest import ArraySpec

On = Callable[[str], contextlib.AbstractContextManager[object]]
X = np.ones((48, 128), np.float32)
ROW: dict[str, Any] = {
    "op": "rms_norm",
    "implementation": "pallas_tpu",
    "target": "tpu",
    "versions": {"jax": ">=0.1,<99"},
    "issue": "https://example.org/issues/7: wrong at odd D",
    "expires": "2999-01-01",
    "call": {"pass": "fwd", "inputs": {"x": [[48, 128], "float32"]}, "params": {"eps": 1e-5}},
}


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Any:
    """plant(field=value, ...): one row, ROW with these fields, and nothing traced before."""

    def planted(**fields: Any) -> Blocked:
        rows = parse(json.dumps({"schema": 1, "rows": [{**ROW, **fields}]}).encode())
        monkeypatch.setattr(blocklist, "rows", lambda: rows)
        jax.clear_caches()
        return rows[0]

    yield planted
    jax.clear_caches()


def lowered(platform: str, on: On, **how: Any) -> str:
    with on(platform):
        traced = jax.jit(lambda x: tops_kernels.rms_norm(x, **how)).trace(X)
        return str(traced.lower(lowering_platforms=(platform,)).as_text())


def has_kernel(platform: str, on: On) -> bool:
    return {"tpu": "tpu_custom_call", "cuda": "__gpu$xla.gpu.triton"}[platform] in lowered(platform, on)


def test_the_packages_rows_are_well_formed_and_none_is_past_its_day() -> None:
    """An expired row fails here: find out whether it is still needed (`tops-kernels blocklist --verify`), then move its day or take it out."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    assert [str(row) for row in blocklist.rows() if row.expired(today)] == []


def test_a_blocked_kernel_is_not_chosen_and_others_are(plant: Any, on: On) -> None:
    assert has_kernel("tpu", on)
    plant()
    assert not has_kernel("tpu", on)
    assert has_kernel("cuda", on)
    plant(implementation="pallas_gpu", target="cuda")
    assert has_kernel("tpu", on)
    assert not has_kernel("cuda", on)
    plant(op="matmul")
    assert has_kernel("tpu", on)
    plant(versions={"jax": "<0.1"})
    assert has_kernel("tpu", on)


def test_insisting_on_a_blocked_kernel_is_refused_by_the_rows_name(plant: Any, on: On) -> None:
    plant()
    with pytest.raises(
        ValueError, match=r"rms_norm: backend='pallas_tpu' is on the blocklist: .*issues/7.*Use backend"
    ):
        lowered("tpu", on, backend="pallas_tpu")
    assert jnp.allclose(tops_kernels.rms_norm(X, interpret=True), tops_kernels.rms_norm(X), atol=1e-5)
    assert jnp.allclose(tops_kernels.rms_norm(X, backend="xla"), tops_kernels.rms_norm(X))


def test_a_row_of_a_chip_holds_there_and_where_the_chip_is_not_known(plant: Any, on: On) -> None:
    plant(target="v5e")
    assert not has_kernel("tpu", on)  # exported from here, it may go to a v5e
    assert "tpu_custom_call" in lowered("tpu", on, backend="pallas_tpu")  # who insists knows where it goes
    for chip, chosen in (("v5e", False), ("v6e", True)):
        jax.clear_caches()
        with tracing_for(chip):
            assert has_kernel("tpu", on) is chosen, chip
        assert tops_kernels.support("rms_norm", "pallas_tpu", chip).ok is chosen


def test_support_says_it(plant: Any) -> None:
    plant()
    for target in ("tpu", "v4", "tpu7x"):
        answer = tops_kernels.support("rms_norm", "pallas_tpu", target)
        assert not answer
        assert "on the blocklist: rms_norm pallas_tpu on tpu (jax >=0.1,<99" in answer.reason
    assert tops_kernels.support("rms_norm", "xla", "tpu")
    assert tops_kernels.support("add_rms_norm", "pallas_tpu", "tpu")


def test_tune_tries_nothing_that_is_blocked(plant: Any, tmp_path: Any) -> None:
    plant(target="v5e")
    case = Case(signature_of("rms_norm", {"x": ArraySpec((48, 128), "float32")}, {}), "fwd", "pallas_tpu", False)
    settings = tuner.Settings(limit=1.0, candidates=2, rounds=1, children=1)
    (found,) = tuner.run([case], "v5e", tmp_path / "it.json", settings)
    assert found.note.startswith("on the blocklist: rms_norm")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("found", "text", "inside"),
    [
        ("0.10.2", ">=0.10,<0.12", True),
        ("0.9.9", ">=0.10", False),
        ("0.12", ">=0.12.0", True),
        ("0.12.0.1", "<=0.12", False),
        ("0.10.2", "==0.10.2", True),
        ("0.10.2", "!=0.10.2", False),
        ("0.0.42.1", ">0.0.42", True),
        ("1.0rc1", "<1.0", False),
    ],
)
def test_version_ranges_compare_numbers(found: str, text: str, inside: bool) -> None:
    assert in_range(found, text) is inside


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("implementation", "xla", "implementation is 'xla'"),
        ("target", "v99", "target is 'v99'"),
        ("target", "cuda", "expected one of tpu, v4"),
        ("versions", {"jax": "~=0.10"}, "no version range"),
        ("expires", "soon", "soon"),
        ("call", {}, "for --verify"),
        ("issue", "", "issue is ''"),
    ],
)
def test_a_row_that_says_nonsense_is_refused(field: str, value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(json.dumps({"schema": 1, "rows": [{**ROW, field: value}]}).encode())


def test_the_command_lists_and_tells_an_expired_row(plant: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["blocklist"]) == 0
    assert "empty" in capsys.readouterr().err
    plant()
    assert cli.main(["blocklist", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["op"], line["holds here"], line["expires"]) == ("rms_norm", True, "2999-01-01")
    plant(expires="2020-01-01")
    assert cli.main(["blocklist"]) == 1
    assert "EXPIRED" in capsys.readouterr().out


def test_verify_without_the_compiler_names_the_install(
    plant: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant()
    monkeypatch.setattr(command, "version", lambda package: "")
    assert cli.main(["blocklist", "--verify"]) == 1
    assert "uv pip install 'jax[tpu]'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ({"compiled": True}, "NO LONGER FAILS: take the row out"),
        ({"refused": "Mosaic says no"}, "still fails"),
        ({"disagrees": "by 3"}, "still fails"),
        ({"unable": "there is no GPU here"}, "not looked at: there is no GPU here"),
    ],
)
def test_verify_says_what_came_of_compiling_it_again(plant: Any, answer: dict[str, Any], verdict: str) -> None:
    script = f"import sys, json\njob = json.loads(sys.stdin.readline())\nassert job['lift'] and job['target'] == 'v5e'\nprint({json.dumps(answer)!r}, flush=True)"
    assert command.verify(plant(), 30.0, [sys.executable, "-c", script]) == verdict


def test_within_lifted_nothing_is_blocked(plant: Any, on: On) -> None:
    plant()
    with blocklist.lifted():
        assert has_kernel("tpu", on)
