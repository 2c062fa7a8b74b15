"""A ratio needs a valid certificate on both sides; each way not to have one is told by name, and gives no ratio."""

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from tops_bench import baselines, certificates, running
from tops_bench.benchmark import Contender
from tops_bench.certificates import Claim
from tops_bench.timing import Timing
from tops_manifest.workloads import Case, cases


def _why(case: Case, subject: Any = "xla", which: Any = "fwd") -> str:
    found = certificates.certificate(Claim(case, which, subject))
    assert found.valid == (not found.why_not)
    assert bool(found.content) == found.valid
    return found.why_not


def test_one_as_the_test_stage_writes_it_is_valid(issuer: Any, case: Case) -> None:
    path = issuer.issue(case)
    found = certificates.certificate(Claim(case, "fwd", "xla"))
    assert found.valid, found.why_not
    assert (found.content, found.scale) == (json.loads(path.read_text())["content"], 8)


def test_a_baseline_is_vouched_for_by_its_module(issuer: Any, case: Case) -> None:
    baseline = baselines.of(case.op)[0]
    issuer.issue(case, baseline.implementation)
    assert _why(case, baseline) == ""


_LATER = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)).isoformat()
_DIGESTS = ("contract", "kernel", "oracle", "tolerance")
_CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another schema": ({"schema": 2}, "schema 2"),
    "another op": ({"op": "matmul"}, "is about op 'matmul'"),
    "another implementation": ({"implementation": "pallas_tpu"}, "is about implementation 'pallas_tpu'"),
    "another pass": ({"pass": "vjp"}, "is about pass 'vjp'"),
    "another row": ({"row": "other"}, "is about row 'other'"),
    "another dtype": ({"dtypes": {"X": "float32", "W": "float32"}}, "is about dtypes"),
    "other parameters": ({"params": {"eps": 1.0}}, "is about params"),
    "other inputs": ({"inputs": {"x": "bfloat16[2,4096,4096]"}}, "is about inputs"),
    "an interpreted run": ({"interpreted": True}, "is about interpreted True"),
    "another platform": ({"platform": "tpu"}, "issued on tpu"),
    "another device": ({"device_kind": "TPU v5e"}, "issued on TPU v5e"),
    "no errors": ({"errors": {}}, "no errors measured"),
    "an error over its tolerance": ({"errors": {"y": {"measured": 2.0, "tolerance": 1.0}}}, "over its tolerance"),
    "a negative error": ({"errors": {"y": {"measured": -1.0, "tolerance": 1.0}}}, "over its tolerance"),
    "an error that is no number": ({"errors": {"y": {"measured": "0", "tolerance": 1.0}}}, "no numbers for y"),
    "an error without tolerance": ({"errors": {"y": {"measured": 0.0}}}, "no measured and tolerance"),
    "a date before its sources": ({"issued": "2001-01-01T00:00:00Z"}, "older than its sources"),
    "a date to come": ({"issued": _LATER}, "and past"),
    "a date without zone": ({"issued": "2001-01-01T00:00:00"}, "time zone"),
    "no date": ({"issued": "yesterday"}, "'yesterday' for a date"),
    "a field of another type": ({"scale": "8"}, "a str as scale"),
    "a field too many": ({"note": "trust me"}, "unknown ['note']"),
}


@pytest.mark.parametrize("name", _CHANGES)
def test_a_certificate_that_vouches_for_something_else_is_invalid(issuer: Any, case: Case, name: str) -> None:
    change, reason = _CHANGES[name]
    issuer.issue(case, **change)
    assert reason in _why(case)


@pytest.mark.parametrize("part", _DIGESTS)
def test_a_stale_digest_is_named_with_both_values(issuer: Any, case: Case, part: str) -> None:
    issuer.issue(case, digests={**issuer.body(case)["digests"], part: "f" * 64})
    assert f"is stale: of {part} ffffff, this is " in _why(case)


@pytest.mark.parametrize("part", ["oracle", "tolerance"])
def test_an_oracle_or_tolerance_that_went_on_makes_certificates_stale(issuer: Any, case: Case, part: str) -> None:
    issuer.issue(case)
    issuer.stage(**{part: {"rms_norm": "e" * 64}})
    assert f"is stale: of {part}" in _why(case)


@pytest.mark.parametrize("package", ["jax", "jaxlib", "numpy", "tops-kernels", "tops-manifest", "python"])
def test_another_version_of_what_it_ran_with_is_named(issuer: Any, case: Case, package: str) -> None:
    issuer.issue(case, versions={**issuer.body(case)["versions"], package: "0.0.1"})
    assert f"was issued with {package} 0.0.1, here is " in _why(case)


def test_one_edited_by_hand_is_invalid(issuer: Any, case: Case) -> None:
    path = issuer.issue(case)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "errors": {"y": {"measured": 0.0, "tolerance": 1e-6}}}))
    assert "edited by hand" in _why(case)


@pytest.mark.parametrize("text", ["", "{", "[]", "NaN", '{"schema": 1, "schema": 1}', "{}", "\xff", " " * (1 << 17)])
def test_a_file_that_is_no_certificate_is_told_as_such(issuer: Any, case: Case, text: str) -> None:
    issuer.issue(case).write_bytes(text.encode("latin-1"))
    assert _why(case).startswith("certificate ")


def test_none_is_told_as_none(issuer: Any, case: Case) -> None:
    assert _why(case) == "no certificate"
    issuer.issue(case)
    assert _why(case, which="vjp") == "no certificate"
    assert _why(cases("rms_norm")[1]) == "no certificate"


def test_without_the_stage_digests_nothing_is_valid(issuer: Any, case: Case) -> None:
    issuer.issue(case)
    issuer.stage(oracle={})
    assert "no digest" in _why(case)
    (issuer.root / "stage.json").unlink()
    assert "cannot be told from a stale one" in _why(case)


def test_a_baseline_file_written_after_its_certificate_invalidates_it(issuer: Any, case: Case, tmp_path: Path) -> None:
    source = tmp_path / "family.py"
    source.write_text("x = 1\n")
    baseline = baselines.Baseline("jnp", lambda x: x, source)
    issuer.issue(case, "baseline:jnp", digests={**issuer.body(case)["digests"], "kernel": baseline.digest()})
    os.utime(source, (1e9, 1e9))
    assert _why(case, baseline) == ""
    os.utime(source, (4e9, 4e9))  # same content, touched later: what was certified cannot be told
    assert "older than its sources" in _why(case, baseline)
    source.write_text("x = 2\n")
    assert "is stale: of kernel" in _why(case, baseline)


@pytest.fixture
def verified(case: Case, make_row: Callable[..., Any]) -> Callable[[], Any]:
    """The row of the xla implementation, twice as fast as both baselines, as the certificates of the moment allow it."""

    def build() -> Any:
        mine = Contender("xla", lambda x: x, {}, "xla")
        others = [Contender(one.implementation, one.function, {}, one) for one in baselines.of(case.op)]
        timings = {mine: Timing((1.0, 1.1, 0.9), 3, "chained loop", 0.1)}
        timings |= {one: Timing((2.0, 2.2, 1.8), 3, "chained loop", 0.1) for one in others}
        vouched = {one.name: certificates.certificate(Claim(case, "fwd", one.subject)) for one in timings}
        job = running.Job(case, "fwd")
        return [running.verified(make_row(), job, one, timings, vouched) for one in timings]

    return build


def test_a_ratio_is_given_only_between_two_certified_sides(issuer: Any, case: Case, verified: Any) -> None:
    kernel, first, second = verified()
    assert [one.speedups for one in (kernel, first, second)] == [{}, {}, {}]
    assert kernel.unverified == first.unverified == "no certificate"
    issuer.issue(case)
    assert verified()[0].speedups == {}  # certified, and nothing certified to divide by
    issuer.issue(case, "baseline:jnp")
    kernel, first, second = verified()
    assert {name: one.median for name, one in kernel.speedups.items()} == {"jnp": pytest.approx(2.0)}
    assert (first.unverified, second.unverified) == ("", "no certificate")
    assert not first.speedups
    issuer.path(case).unlink()
    assert verified()[0].speedups == {}


@pytest.mark.parametrize("name", _CHANGES)
def test_whatever_is_wrong_with_either_side_no_ratio_comes_out(
    issuer: Any, case: Case, verified: Any, name: str
) -> None:
    change, reason = _CHANGES[name]
    issuer.issue(case, "baseline:jnp")
    issuer.issue(case, **change)
    assert verified()[0].speedups == {}
    assert reason in verified()[0].unverified
    issuer.issue(case)
    issuer.issue(case, "baseline:jnp", **change)
    assert verified()[0].speedups == {}


def test_certificates_of_a_platform_are_looked_for_under_its_name(case: Case) -> None:
    name = Claim(case, "vjp", "xla").path.name
    assert name == f"xla-vjp-{case.row}-bfloat16-float32-{jax.default_backend()}.json"
