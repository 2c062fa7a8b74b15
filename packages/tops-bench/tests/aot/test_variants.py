"""--vary: rows that no file holds."""

import pytest

from tops_bench import cli
from tops_bench.aot import matrix, variants
from tops_bench.aot.matrix import Selection
from tops_bench.worker import case_data, case_from
from tops_manifest.workloads import cases


def planned(*vary, op="gla", row="gla-2k-heads-of-128-train-4k"):
    return matrix.plan(
        Selection(
            ops=(op,),
            targets=("v5e",),
            passes=("fwd",),
            workloads=(row,),
            contenders=("pallas_tpu",),
            vary=variants.parse(vary),
        )
    )


def test_every_combination_is_a_row_with_its_own_name_and_shapes():
    rows = planned("T=128,131072", "X=float32,bfloat16")
    assert len({row.key for row in rows}) == 4
    shapes = {row.case.inputs()["q"].shape[1] for row in rows}
    assert shapes == {128, 131072}
    assert {row.case.inputs()["q"].dtype for row in rows} == {"float32", "bfloat16"}


def test_what_is_not_varied_stays_as_the_row_has_it():
    (row,) = planned("T=100")
    assert row.case.inputs()["k"].shape == (2, 100, 16, 128)
    assert row.case.present == ()


def test_parameters_and_optional_inputs_vary_too():
    (row,) = planned("reverse=true", "initial_state=given")
    assert row.case.params["reverse"] is True
    assert row.case.inputs()["initial_state"].shape == (2, 16, 128, 128)
    (row,) = planned("initial_state=none", row="gla-340m-grouped-prefill-2k")
    assert "initial_state" not in row.case.inputs()


def test_a_varied_row_reaches_the_compiling_child_whole():
    (row,) = planned("T=100", "X=float32")
    again = case_from(case_data(row.case))
    assert (again.label, again.inputs()) == (row.case.label, row.case.inputs())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("T", "NAME=VALUE"),
        ("T=", "NAME=VALUE"),
        ("=4", "NAME=VALUE"),
        ("T=4,,8", "NAME=VALUE"),
        ("T=-1", "whole number"),
        ("T=0", "T"),
        ("X=int8", "one of float32, bfloat16"),
        ("Z=1", "gla has no Z; it has B, T"),
        ("initial_state=yes", "given or none"),
        ("HQ=3", "HQ"),
    ],
)
def test_what_no_row_can_have_is_refused_by_name(text, said, capsys):
    assert cli.main(["aot", "gla", "--target", "v5e", "--vary", text]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["--save", "--check", "--validate"])
def test_varied_rows_are_never_saved_or_checked(mode, capsys):
    assert cli.main(["aot", "gla", "--target", "v5e", "--vary", "T=128", mode]) == 2
    assert "--vary" in capsys.readouterr().err


def test_no_choice_leaves_the_case_alone():
    case = cases("gla")[0]
    assert list(variants.of(case, {})) == [case]


def test_a_name_given_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        variants.parse(["T=1", "T=2"])
