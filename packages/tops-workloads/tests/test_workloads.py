"""Workloads: rows of the manifest with shapes, parameters and values."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest

import tops_manifest
from tops_manifest.workloads import Case, cases
from tops_workloads import (
    BenchmarkWorkload,
    InputGeneratingWorkload,
    ShapeDtypeWorkload,
    Workload,
    cpu_room,
    parametrization,
    rows,
    workloads,
)
from tops_workloads.workload import _fold

_OPS = tops_manifest.op_names()
_SMALL_BYTES = 1 << 16


def _small(case: Case) -> Workload:
    """The row with every size cut to at most 8: shapes keep their form, and drawing is fast."""
    dims = {name: size[:1] and (2,) if isinstance(size, tuple) else 8 for name, size in case.dims.items()}
    return Workload(dataclasses.replace(case, dims=dims))


def _kind(case: Case) -> tuple[object, ...]:
    """Rows of one kind draw alike once they are small; one of them is enough."""
    return case.op.name, *case.dtypes.items(), case.present, *case.alternatives.items(), *case.params.items()


_SMALL = [_small(case) for case in {_kind(case): case for op in _OPS for case in cases(op)}.values()]
_each = pytest.mark.parametrize("workload", _SMALL, ids=repr)


@pytest.mark.parametrize("op", _OPS)
def test_every_row_at_every_dtype_is_a_workload(op: str) -> None:
    found = workloads(op)
    assert [workload.case for workload in found] == list(cases(op))
    assert {workload.case.row for workload in workloads(op, "vjp")} <= {workload.case.row for workload in found}
    assert all("vjp" in workload.case.passes for workload in workloads(op, "vjp"))


def test_an_op_the_manifest_does_not_have_is_named() -> None:
    with pytest.raises(KeyError, match="no op 'matmull'"):
        workloads("matmull")


@pytest.mark.parametrize("op", _OPS)
def test_pytest_ids_are_the_labels_and_no_two_are_the_same(op: str) -> None:
    values, ids = parametrization(op)
    assert ids == [workload.case.label for workload in values]
    assert len(set(ids)) == len(ids) > 0


@_each
def test_inputs_have_the_shapes_and_dtypes_that_are_promised(workload: Workload) -> None:
    avals = workload.avals()
    inputs = workload.gen_inputs(jax.random.key(0))
    assert list(inputs) == list(avals) == list(workload.case.inputs())
    for name, array in inputs.items():
        assert (array.shape, array.dtype) == (avals[name].shape, avals[name].dtype)
        if (
            workload.case.op.input(name).rises is None and workload.case.op.input(name).indexes is None
        ):  # 0 is a position
            assert np.all(np.asarray(array).astype(np.float64) != 0)


@_each
def test_the_same_key_gives_the_same_values_and_another_key_others(workload: Workload) -> None:
    first, again, other = (workload.gen_inputs(jax.random.key(seed)) for seed in (5, 5, 6))
    for name, array in first.items():
        np.testing.assert_array_equal(np.asarray(array), np.asarray(again[name]))
        assert not np.array_equal(np.asarray(array), np.asarray(other[name]))


@_each
def test_two_inputs_of_one_call_are_not_the_same_draw(workload: Workload) -> None:
    arrays = [np.asarray(array).astype(np.float64) for array in workload.gen_inputs(jax.random.key(0)).values()]
    for index, one in enumerate(arrays):
        assert not any(one.shape == two.shape and np.array_equal(one, two) for two in arrays[:index])


def test_the_values_of_an_input_do_not_depend_on_which_others_are_given() -> None:
    case = next(workload.case for workload in _SMALL if "scale" in workload.case.present)
    with_scale = Workload(case).gen_inputs(jax.random.key(1))
    without = Workload(dataclasses.replace(case, present=())).gen_inputs(jax.random.key(1))
    assert set(with_scale) - set(without) == {"scale"}
    for name, array in without.items():
        np.testing.assert_array_equal(np.asarray(array), np.asarray(with_scale[name]))


def test_values_are_the_same_in_another_process() -> None:
    """Python's hash of a string differs from process to process; keys must not come from it."""
    program = (
        "import jax, numpy as np; from tops_workloads.workload import _fold;"
        "print(jax.random.key_data(_fold(jax.random.key(0), 'x')).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.strip() == str(jax.random.key_data(_fold(jax.random.key(0), "x")).tolist())


def test_the_values_of_a_key_are_the_ones_they_were() -> None:
    """Records and certificates name a seed: a new distribution is a new version of this package, not an accident."""
    inputs = next(_small(case) for case in cases("matmul") if case.row == "square-4k").gen_inputs(jax.random.key(0))
    assert np.asarray(inputs["a"])[0, :3].tolist() == pytest.approx([-1.4599031, 2.2188759, -0.7876681], rel=1e-5)
    assert np.asarray(inputs["b"])[0, :3].tolist() == pytest.approx([0.9524239, 0.0044276, 1.1346918], rel=1e-5)


def test_raw_keys_draw_as_typed_ones_do() -> None:
    typed = _SMALL[0].gen_inputs(jax.random.key(2))
    raw = _SMALL[0].gen_inputs(jax.random.PRNGKey(2))
    for name, array in typed.items():
        np.testing.assert_array_equal(np.asarray(array), np.asarray(raw[name]))


@_each
def test_parameters_are_the_row_s_and_a_copy(workload: Workload) -> None:
    given = workload.kwargs()
    assert given == dict(workload.params) == dict(workload.case.params)
    given["stranger"] = 1
    assert "stranger" not in workload.kwargs()


def test_a_workload_has_both_capabilities_and_each_protocol_asks_no_more_than_it_says() -> None:
    assert isinstance(_SMALL[0], BenchmarkWorkload)

    class ValuesAlone:
        def gen_inputs(self, key: jax.Array) -> dict[str, jax.Array]:
            return {}

    assert isinstance(ValuesAlone(), InputGeneratingWorkload)
    assert not isinstance(ValuesAlone(), ShapeDtypeWorkload)
    assert not isinstance(ValuesAlone(), BenchmarkWorkload)


def test_a_workload_has_no_opinion_on_results_or_cost() -> None:
    """References, tolerances and checks are the test stage's; operations and bytes the manifest's."""
    public = {name for name in dir(Workload) if not name.startswith("_")}
    assert public == {"avals", "case", "gen_inputs", "kwargs", "params"}


@pytest.mark.parametrize("op", _OPS)
def test_a_scaled_row_is_a_workload_too(op: str) -> None:
    workload = Workload(cases(op)[0].fit(max_bytes=1 << 20))
    assert workload.case.scale > 1
    assert sum(aval.size * aval.dtype.itemsize for aval in workload.avals().values()) <= 1 << 20


def test_avals_draw_nothing() -> None:
    """Metadata of the largest row takes no memory: a stage that compiles ahead of time has no arrays."""
    largest = max((w for op in _OPS for w in workloads(op)), key=lambda w: w.case.memory())
    assert all(isinstance(aval, jax.ShapeDtypeStruct) for aval in largest.avals().values())


def test_workloads_of_one_case_are_equal_and_have_one_hash() -> None:
    one, two = (workloads(_OPS[0])[0] for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != workloads(_OPS[0])[1]
    assert repr(one) == f"Workload({_OPS[0]}, {one.case.label})"


@pytest.mark.parametrize("op", _OPS)
def test_a_quick_run_takes_an_ops_first_row_at_all_its_dtypes(op: str) -> None:
    full, quick = rows(op, quick=False), rows(op, quick=True)
    assert full == cases(op)
    names = list(dict.fromkeys(case.row for case in full))
    assert list(dict.fromkeys(case.row for case in quick)) == names[:1]
    assert quick == tuple(case for case in full if case.row in names[:1])


def test_the_room_of_a_quick_run_is_smaller_and_an_interpreters_smaller_still() -> None:
    quick, full, slow = cpu_room(quick=True), cpu_room(quick=False), cpu_room(quick=True, interpreted=True)
    assert quick.size < full.size
    assert slow.work < quick.work < full.work
    fitted = quick.fit(cases("matmul")[0], "fwd")
    assert fitted.memory("fwd") <= quick.size
