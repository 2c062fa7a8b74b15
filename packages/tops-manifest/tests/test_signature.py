"""The signature a public op function must have."""

import tomllib
from inspect import Parameter
from pathlib import Path

import pytest

import tops_manifest
from tops_manifest import contract
from tops_manifest.signature import signature


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("matmul", "(a, b, bias=None, *, activation='none', out_dtype=None, backend=None, interpret=False)"),
        ("rms_norm", "(x, scale=None, *, eps=1e-06, scale_offset=0.0, backend=None, interpret=False)"),
        (
            "add_rms_norm",
            "(x, residual, scale=None, *, eps=1e-06, scale_offset=0.0, backend=None, interpret=False)",
        ),
    ],
)
def test_it_is_derived_from_the_contract(name: str, text: str) -> None:
    assert str(signature(tops_manifest.op(name))) == text


@pytest.mark.parametrize("name", tops_manifest.op_names())
def test_inputs_come_by_position_and_all_else_by_keyword(name: str) -> None:
    op = tops_manifest.op(name)
    parameters = signature(op).parameters
    inputs = [spec.name for spec in op.inputs]
    assert [one.name for one in parameters.values() if one.kind is Parameter.POSITIONAL_OR_KEYWORD] == inputs
    assert all(one.kind is Parameter.KEYWORD_ONLY for key, one in parameters.items() if key not in inputs)
    assert list(parameters)[-2:] == ["backend", "interpret"]
    for spec in op.inputs:
        assert parameters[spec.name].default is (None if spec.optional else Parameter.empty)


def test_a_default_that_is_an_expression_shows_as_none() -> None:
    table = tomllib.loads((contract.ops_folder() / "rms_norm.toml").read_text())
    table["params"]["eps"]["default"] = "D ** -8"
    op = contract.from_table(table, Path("ops/rms_norm.toml"))
    assert signature(op).parameters["eps"].default is None
