"""A run: which rows, at what size, what becomes of one that fails, and what a row says of itself."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import tops_manifest
from tops_bench import baselines, benchmark, output, passes, roofline, rows, running
from tops_bench.benchmark import BenchmarkBase, Contender, OpBenchmark
from tops_bench.machine import Machine, machine
from tops_bench.roofline import Ceilings
from tops_bench.timing import Effort
from tops_manifest.workloads import Case, cases
from tops_workloads import Room, Workload

_EFFORT = Effort(rounds=2, sample_seconds=0.001)
_OPS = [op for op in tops_manifest.ops() if op.status == "implemented"]


@pytest.fixture
def ceilings() -> Ceilings:
    return Ceilings(
        machine(), {"float32": 1e11, "bfloat16": 1e11, "int8": 1e11}, {1: 1e15}, "chained loop", "2026-01-01"
    )


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "room", lambda quick: Room(1 << 17, 1e6))


def _run(job: running.Job, ceilings: Ceilings) -> Any:
    return running.run([job], ceilings, effort=_EFFORT, quick=True, method="wall clock")


def test_jobs_are_the_manifests_rows_dtypes_and_passes() -> None:
    wanted = [(op.name, which, case.label) for op in _OPS for case in cases(op.name) for which in case.passes]
    assert [(job.case.op.name, job.which, job.case.label) for job in running.jobs(_OPS, ("fwd", "vjp"))] == wanted
    assert {job.which for job in running.jobs(_OPS, ("vjp",))} == {"vjp"}
    label = cases("matmul")[0].label
    assert {job.case.label for job in running.jobs(_OPS, ("fwd", "vjp"), label)} == {label}
    assert running.jobs(_OPS, ("fwd",), "no such row") == []


@pytest.mark.parametrize("op", [op.name for op in _OPS])
def test_a_row_too_large_is_skipped_with_the_reason_and_a_marked_copy_stands_in(
    op: str, ceilings: Ceilings, tiny: None
) -> None:
    case = cases(op)[0]
    record = _run(running.Job(case, "fwd"), ceilings)
    [skipped] = [row for row in record.rows if row.status == "skipped" and not row.contender]
    assert (skipped.label, skipped.scale) == (case.label, 1)
    assert "too large" in skipped.reason
    measured = [row for row in record.rows if row.status == "measured"]
    assert "xla" in {row.contender for row in measured}
    for row in measured:
        assert row.scale > 1
        assert row.label == f"{case.label}/{row.scale}"
        assert row.reason  # why it is a copy
        assert "scaled down" in output.workload(row)
        assert row.nbytes <= 1 << 17
    [line] = [line for line in output.footnotes(record.rows) if case.label in line]
    assert f"/{measured[0].scale} in its place" in line


def test_a_row_that_no_copy_of_fits_is_skipped_alone(ceilings: Ceilings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "room", lambda quick: Room(16, 1e6))
    record = _run(running.Job(cases("rms_norm")[0], "fwd"), ceilings)
    [row] = record.rows
    assert (row.status, row.contender) == ("skipped", "")
    assert "no scaled row within 16 bytes" in row.reason


def test_an_implementation_that_cannot_run_here_is_skipped_with_the_reason(ceilings: Ceilings, tiny: None) -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("not-supported: the kernel for TPUs runs here")
    record = _run(running.Job(cases("rms_norm")[0], "fwd"), ceilings)
    [row] = [row for row in record.rows if row.contender == "pallas_tpu"]
    assert row.status == "skipped"
    assert row.reason.startswith("not supported: ")


def test_a_contender_that_raises_is_a_failed_row_and_the_others_are_timed(
    ceilings: Ceilings, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(benchmark, "public", lambda op: broken)
    record = _run(running.Job(cases("rms_norm")[0], "vjp"), ceilings)
    timed = [row for row in record.rows if row.contender and not row.contender.startswith("pallas")]
    status = {row.contender: row.status for row in timed}
    assert status == {"xla": "failed", "baseline:jnp": "measured", "baseline:lax": "measured"}
    assert "RuntimeError: no such instruction" in next(row.reason for row in record.rows if row.contender == "xla")


def test_a_measured_row_says_how_and_has_its_work_from_the_manifest(ceilings: Ceilings, tiny: None) -> None:
    job = running.Job(cases("matmul")[1], "vjp")
    for row in _run(job, ceilings).rows:
        if row.status != "measured":
            continue
        fitted = job.case.fit(1 << 17, 1e6, "vjp")
        assert row.method == "wall clock"
        assert len(row.samples) == 2
        assert (dict(row.flops), row.nbytes) == (fitted.flops("vjp"), fitted.bytes("vjp"))
        assert row.flops_rate == pytest.approx(sum(row.flops.values()) / row.median)
        assert row.bytes_rate == pytest.approx(row.nbytes / row.median)
        assert row.bound == "compute"
        assert row.efficiency == pytest.approx(row.flops["mxu"] / 1e11 / row.median)
        assert row.unverified == "no certificate"
        assert len(row.source) == len(row.contract) == 64


def _measured(make_row: Callable[..., Any], **change: Any) -> str:
    return output.verdict(make_row(**change))


def test_the_table_shows_a_ratio_only_where_the_record_has_one(make_row: Callable[..., Any]) -> None:
    from tops_bench.records import Speedup

    speedups = {"jnp": Speedup(1.25, 1.2, 1.3)}
    assert "1.25x jnp [1.20, 1.30]" in _measured(make_row, speedups=speedups)
    assert "certified cccccc" in _measured(make_row, speedups=speedups)
    shown = _measured(make_row, unverified="certificate is stale", certificate="", speedups=speedups)
    assert shown == "UNVERIFIED: certificate is stale"
    assert "x" not in _measured(make_row, contender="baseline:jnp").replace("baseline", "")
    assert _measured(make_row, status="failed", reason="boom") == "failed: boom"


def test_a_row_over_its_ceiling_is_no_feat(make_row: Callable[..., Any]) -> None:
    assert output.share(make_row(efficiency=0.5)) == "50% memory"
    assert output.share(make_row(efficiency=1.2)) == "over ceiling x1.20"
    assert any("measured too low" in line for line in output.footnotes([make_row(efficiency=1.2)]))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (1.5, "1.5 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 us"), (7.8e-9, "7.8 ns"), (2000.0, "2000 s")],
)
def test_times_have_three_digits_and_a_unit(value: float | None, text: str) -> None:
    assert output.seconds(value) == text


# --- roofline


def _case(op: str, label: str) -> Case:
    return next(case for case in cases(op) if case.label == label)


def test_the_least_time_is_the_later_of_compute_and_memory(ceilings: Ceilings) -> None:
    square = _case("matmul", "square-4k-float32")
    line = roofline.roofline(ceilings, square, "fwd", 2.0)
    operations = 2 * 4096**3  # by hand: a multiplication and an addition for each of M N K
    assert line is not None
    assert (line.bound, line.seconds) == ("compute", pytest.approx(operations / 1e11))
    assert line.fraction == pytest.approx(operations / 1e11 / 2.0)
    slow = dataclasses.replace(ceilings, copy={1: 1e6})
    line = roofline.roofline(slow, square, "fwd", 200.0)
    assert line is not None
    nbytes = 3 * 4096 * 4096 * 4  # by hand: a, b and y once each
    assert (line.bound, line.fraction) == ("memory", pytest.approx(nbytes / 1e6 / 200.0))


def test_int8_is_held_against_the_int8_ceiling_and_its_own_bytes(ceilings: Ceilings) -> None:
    case = _case("matmul", "llama-3.1-8b-mlp-down-w8a8-int8-int32")
    only = dataclasses.replace(ceilings, matmul={"int8": 4e11, "int32": 1.0, "float32": 1.0}, copy={1: 1e18})
    line = roofline.roofline(only, case, "fwd", 1.0)
    assert line is not None
    assert line.seconds == pytest.approx(2 * 2048 * 14336 * 4096 / 4e11)
    assert case.bytes("fwd") == 2048 * 14336 + 14336 * 4096 + 4 * 2048 * 4096
    assert roofline.roofline(dataclasses.replace(only, matmul={"float32": 1.0}), case, "fwd", 1.0) is None


def test_elementwise_work_is_bound_by_memory(ceilings: Ceilings) -> None:
    line = roofline.roofline(ceilings, cases("rms_norm")[0], "fwd", 1.0)
    assert line is not None
    assert line.bound == "memory"


def test_a_row_is_held_against_a_copy_of_its_own_size(ceilings: Ceilings) -> None:
    found = dataclasses.replace(ceilings, copy={1000: 50.0, 10_000: 30.0, 100_000: 40.0, 1_000_000: 10.0})
    assert [found.bandwidth(size) for size in (1, 1000, 9999, 10_000, 99_999, 10**6, 10**9)] == [
        50,
        50,
        50,
        40,
        40,
        10,
        10,
    ]


def test_ceilings_are_measured_once_a_machine(monkeypatch: pytest.MonkeyPatch, ceilings: Ceilings) -> None:
    measured: list[Machine] = []

    def measure(here: Machine, *_: Any) -> Ceilings:
        measured.append(here)
        return dataclasses.replace(ceilings, machine=here)

    monkeypatch.setattr(roofline, "measure", measure)
    first = roofline.ceilings()
    assert roofline.ceilings() == first
    assert len(measured) == 1
    roofline.ceilings(again=True)
    assert len(measured) == 2
    path = roofline.path(first.machine.key)
    path.write_text(path.read_text().replace('"cores": ', '"cores": 9'))  # another machine's, under this one's name
    roofline.ceilings()
    assert len(measured) == 3
    for text in ("", "[]", '{"schema": 1}'):
        path.write_text(text)
        assert roofline.ceilings() == first
    assert len(measured) == 6


def test_a_ceiling_can_be_measured() -> None:
    assert roofline.matmul_rate("float32", least_seconds=1e-9, effort=_EFFORT) > 0
    assert roofline.copy_rate(1 << 17, _EFFORT)[0] > 0


def test_the_key_of_a_machine_follows_what_its_speed_hangs_on() -> None:
    here = machine()
    assert here.key == machine().key
    for change in ({"cores": 99}, {"device_kind": "x"}, {"jaxlib": "0"}, {"flags": "-x"}):
        assert dataclasses.replace(here, **change).key != here.key


# --- benchmarks and passes


def test_programs_of_a_benchmark_can_be_lowered_without_any_array() -> None:
    class Abstract:
        """A workload of metadata alone: it cannot draw inputs."""

        def __init__(self, case: Case) -> None:
            self.case, self.params = case, case.params

        def avals(self) -> dict[str, jax.ShapeDtypeStruct]:
            return Workload(self.case).avals()

        def kwargs(self) -> dict[str, Any]:
            return dict(self.params)

    class Lowered(BenchmarkBase[Abstract]):
        def contenders(self) -> tuple[Contender, ...]:
            return tuple(Contender(one.name, one.function, {}, one) for one in baselines.of(self.workload.case.op))

    for which in ("fwd", "vjp"):
        found = Lowered(Abstract(cases("matmul")[0]), which)
        for name, program in found.programs().items():
            assert "dot_general" in jax.jit(program).lower(*found.avals()).as_text(), name


def test_a_benchmark_without_contenders_says_so() -> None:
    with pytest.raises(NotImplementedError, match="names no contenders"):
        BenchmarkBase(Workload(cases("matmul")[0]), "fwd").programs()


@pytest.mark.parametrize("op", [op.name for op in _OPS])
def test_programs_give_what_the_contract_says(op: str) -> None:
    for case in cases(op):
        for which in case.passes:
            found = OpBenchmark(Workload(case), which)
            specs = (
                case.outputs()
                if which == "fwd"
                else {name: case.inputs()[name] for name in passes.differentiable(case)}
            )
            for name, program in found.programs().items():
                shapes = jax.tree.leaves(jax.eval_shape(program, *found.avals()))
                got = [(leaf.shape, str(leaf.dtype)) for leaf in shapes]
                assert got == [(spec.shape, spec.dtype) for spec in specs.values()], (case.label, which, name)


def test_a_gradient_program_gives_gradients() -> None:
    case = next(case for case in cases("rms_norm") if case.label.endswith("float32")).fit(1 << 14, 1e9, "vjp")
    program = passes.program(case, "vjp", lambda x, scale, eps=0.0: x * scale, {})
    x, scale, cotangent = (jnp.asarray(v) for v in ([[2.0, 3.0]], [5.0, 7.0], [[1.0, 10.0]]))
    dx, dscale = program(cotangent, x, scale)
    assert dx.tolist() == [[5.0, 70.0]]
    assert dscale.tolist() == [2.0, 30.0]


# --- baselines


@pytest.mark.parametrize("op", _OPS, ids=lambda op: op.name)
def test_every_op_has_baselines_that_take_its_signature(op: Any) -> None:
    import inspect

    found = baselines.of(op)
    assert [one.name for one in found] in (
        ["jnp", "lax"],
        ["scan"],
        ["jnp"],
    )  # a recurrence and its step have one plain form
    for one in found:
        parameters = inspect.signature(one.function).parameters
        assert list(parameters) == [spec.name for spec in (*op.inputs, *op.params)]
        assert one.source.name == f"{op.family}.py"
        assert len(one.digest()) == 64


def test_baselines_know_nothing_of_the_kernels() -> None:
    for op in _OPS:
        for one in baselines.of(op):
            assert "tops_" not in one.source.read_text().replace("tops_bench", "")


def test_a_family_registered_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint, entry_points

    point = EntryPoint("matmul", "tops_bench.baselines.matmul:BASELINES", baselines.GROUP)
    monkeypatch.setattr(baselines, "entry_points", lambda group: [*entry_points(group=group), point])
    with pytest.raises(LookupError, match="registered 2 times"):
        baselines.of(tops_manifest.op("matmul"))


@pytest.mark.parametrize("value", ["tops_bench.baselines.matmul:matmul_jnp"])
def test_an_entry_point_that_is_no_mapping_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    from importlib.metadata import EntryPoint

    monkeypatch.setattr(baselines, "entry_points", lambda group: [EntryPoint("matmul", value, group)])
    with pytest.raises(LookupError, match="expected a mapping"):
        baselines.of(tops_manifest.op("matmul"))
