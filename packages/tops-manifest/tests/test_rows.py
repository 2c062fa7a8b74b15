"""Workload rows and cost formulas of the packaged ops: what a case is, how it scales down, and what it counts."""

import dataclasses
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tops_manifest
from tops_manifest import ArraySpec, contract, cost, workloads
from tops_manifest.errors import ManifestError

_OPS = tops_manifest.op_names()
_CASES = [case for op in _OPS for case in workloads.cases(op)]
_each = pytest.mark.parametrize("case", _CASES, ids=[f"{case.op.name}-{case.label}" for case in _CASES])


def _case(op: str, row: str) -> workloads.Case:
    return next(case for case in workloads.cases(op) if case.row == row)


@pytest.mark.parametrize("op", _OPS)
def test_every_op_has_four_rows_of_real_models_at_least_and_no_label_twice(op: str) -> None:
    assert len(workloads.rows(op)) >= 4
    assert all(row.doc for row in workloads.rows(op)), "a row says which model it is from"
    labels = [case.label for case in workloads.cases(op)]
    assert len(set(labels)) == len(labels)


@_each
def test_a_case_is_a_call_within_its_contract(case: workloads.Case) -> None:
    binding = case.binding()
    assert list(case.inputs()) == [spec.name for spec in case.op.inputs if spec.name in binding.present]
    assert list(case.outputs()) == [spec.name for spec in case.op.outputs]
    for name, value in case.params.items():
        assert binding.params[name] == value


@_each
def test_costs_are_positive_and_a_backward_pass_is_no_cheaper(case: workloads.Case) -> None:
    for which in case.passes:
        assert sum(case.flops(which).values()) > 0
        assert case.bytes(which) > 0
    if "vjp" in case.passes:
        assert sum(case.flops("vjp").values()) >= sum(case.flops("fwd").values())
        assert case.bytes("vjp") > case.bytes("fwd")


def test_bytes_are_what_goes_in_and_out_once() -> None:
    case = _case("matmul", "llama-3.1-8b-mlp-down-w8a8")
    m, k, n = 2048, 14336, 4096
    assert case.bytes("fwd") == m * k + k * n + 4 * m * n  # int8 in, int32 out
    assert case.flops("fwd") == {"mxu": 2.0 * m * n * k, "vpu": 0.0, "eup": 0.0}
    norm = next(case for case in workloads.cases("rms_norm") if case.label == "llama-3.1-8b-train-4k-bfloat16-float32")
    rows, d = 2 * 4096, 4096
    assert norm.bytes("fwd") == 2 * (2 * rows * d) + 4 * d
    assert (
        norm.bytes("vjp") == 3 * (2 * rows * d) + 2 * 4 * d
    )  # x, the cotangent of y, the gradient of x; scale and its gradient


def test_a_passes_argument_selects_the_cases_that_run_it() -> None:
    forward_only = {case.row for case in workloads.cases("matmul")} - {
        case.row for case in workloads.cases("matmul", "vjp")
    }
    assert "gemma-2-9b-decode-lm-head" in forward_only


def test_four_bit_values_are_packed() -> None:
    assert cost.size_bytes(ArraySpec((3, 5), "int4")) == 8
    assert cost.size_bytes(ArraySpec((), "float64")) == 8
    assert cost.size_bytes(ArraySpec((0, 7), "float32")) == 0


@_each
def test_a_case_that_fits_is_itself(case: workloads.Case) -> None:
    assert case.fit(case.memory()) is case


@given(index=st.integers(0, len(_CASES) - 1), budget=st.integers(20, 34), operations=st.integers(20, 50))
def test_a_scaled_case_is_within_its_bounds_and_within_its_contract(index: int, budget: int, operations: int) -> None:
    case = _CASES[index]
    for which in case.passes:
        try:
            scaled = case.fit(1 << budget, 1 << operations, which)
        except ValueError:
            assert budget < 24 or operations < 24
            continue
        assert scaled.memory(which) <= 1 << budget
        assert sum(scaled.flops(which).values()) <= 1 << operations
        assert scaled.outputs().keys() == case.outputs().keys()
        assert (scaled.label == case.label) is (scaled.scale == 1)
        assert scaled.dtypes == case.dtypes
        kept = [name for name in case.dims if name not in case.op.shard_free]
        shrunk = [name for name in kept if scaled.dims[name] != case.dims[name]]
        free = [size for name in case.op.shard_free for size in workloads._parts(scaled.dims[name])]
        assert not shrunk or max(free, default=1) == 1, "what shards freely shrinks first"
        assert all(min(workloads._parts(scaled.dims[name])) >= 16 for name in shrunk)


def test_where_query_heads_are_key_heads_both_are_halved_and_never_to_fewer_query_heads() -> None:
    case = next(case for case in _CASES if case.op.name == "simple_gla" and case.dims["HQ"] == case.dims["H"] == 64)
    scaled = case.fit(1 << 24, 1 << 24, "vjp")
    assert scaled.dims["H"] == 32
    assert scaled.dims["HQ"] in (32, 64)


def test_scaling_stops_where_nothing_is_left_to_halve() -> None:
    with pytest.raises(ValueError, match="no scaled row within 1 bytes"):
        _CASES[0].fit(1)


def test_a_scaled_label_says_so() -> None:
    case = _CASES[0]
    assert case.fit(case.memory() - 1).label == f"{case.label}/2"


def test_a_dimension_of_an_optional_input_counts_as_zero_where_it_is_not_given() -> None:
    table = tomllib.loads((contract.ops_folder() / "rms_norm.toml").read_text())
    table["inputs"]["table"] = {"shape": "V D", "dtype": "float32", "optional": True}
    table["cost"]["flops"] = {"vpu": "B*D + V*D"}
    op = contract.from_table(table, Path("ops/rms_norm.toml"))
    formulas = cost.from_table(table, op, Path("ops/rms_norm.toml"))
    x = ArraySpec((2, 8), "float32")
    without = tops_manifest.bind(op, {"x": x}, {})
    assert formulas.flops("fwd", without) == {"vpu": 16.0}
    with_table = tops_manifest.bind(op, {"x": x, "table": ArraySpec((3, 8), "float32")}, {})
    assert formulas.flops("fwd", with_table) == {"vpu": 40.0}


def test_an_unknown_op_has_no_rows_and_no_cost() -> None:
    for of in (workloads.rows, workloads.cases, cost.cost):
        with pytest.raises(KeyError, match="no op 'nope'; known: add_rms_norm"):
            of("nope")


def test_a_pass_an_op_does_not_have_has_no_cost() -> None:
    formulas = dataclasses.replace(cost.cost("rms_norm"), vjp=None)
    with pytest.raises(KeyError, match=r"no \[cost.vjp\]"):
        formulas.of("vjp")


def test_rows_and_costs_can_be_read_alone() -> None:
    path = contract.ops_folder() / "rms_norm.toml"
    table = tomllib.loads(path.read_text())
    op = contract.load(path)
    assert workloads.from_table(table, op, path) == workloads.rows("rms_norm")
    table["workloads"][0]["dims"]["D"] = -1
    with pytest.raises(ManifestError, match=r"workloads\[0\].dims.D: got -1"):
        workloads.from_table(table, op, path)
    table["cost"]["bytes"] = "D +"
    with pytest.raises(ManifestError, match=r"cost.bytes: got 'D \+'"):
        cost.from_table(table, op, path)


def test_two_choices_of_dtypes_under_one_label_are_a_fault() -> None:
    """bfloat16-float32-... must say which variable is which; with three variables it may not."""
    path = contract.ops_folder() / "rms_norm.toml"
    table = tomllib.loads(path.read_text())
    table["dtypes"]["V"] = ["float32", "bfloat16"]
    table["inputs"]["extra"] = {"shape": "D", "dtype": "V", "optional": True}
    table["workloads"] = [{**table["workloads"][0], "X": ["float32"], "W": ["bfloat16"]}]
    op = contract.from_table(table, path)
    with pytest.raises(ManifestError, match="dtypes that tell the row's cases apart"):
        workloads.from_table(table, op, path)


def test_arithmetic_intensity_of_a_large_square_is_what_textbooks_say() -> None:
    case = next(case for case in workloads.cases("matmul") if case.label == "square-4k-float32")
    n = 4096
    assert math.isclose(sum(case.flops("fwd").values()) / case.bytes("fwd"), 2 * n**3 / (3 * n**2 * 4))
