"""Holding a call against its contract: every wrong call names op, argument, got, expected, and what to do where that helps."""

import dataclasses
import itertools
import tomllib
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tops_manifest
from tops_manifest import ArraySpec, Binding, ContractTypeError, ContractValueError, Op, bind, contract
from tops_manifest.workloads import Case

_F32, _BF16, _I8 = "float32", "bfloat16", "int8"

_TOML = """
schema = 1
[op]
name = "scanner"
family = "scanner"
version = 1
status = "planned"
ref = "none"
doc = "none"
kernel_map = ["xla"]
[dtypes]
X = ["float32", "bfloat16"]
[inputs]
q = { shape = "B T K", dtype = "X" }
m = { shape = "N N", dtype = "int32" }
s = { shape = ["K", "B K"], dtype = "float32", optional = true }
h = { shape = "B V", dtype = "float32", optional = true }
[outputs]
o = { shape = "B T K", dtype = "X", dtype_param = "out_dtype" }
[params]
scale = { type = "float", default = "K ** -0.5" }
half = { type = "int", default = "K // 2" }
chunk = { type = "int", default = 64, choices = [32, 64] }
causal = { type = "bool", default = true }
mode = { type = "str", default = "a" }
out_dtype = { type = "dtype", optional = true }
limit = { type = "float", optional = true }
[contract]
where = [
    { expr = "T % N == 0", hint = "pad T" },
    "V <= 64 and has_h",
    "not causal or T >= 2",
    "K >= 0",
]
[cost]
flops = { vpu = "B*T*K + V" }
"""


def _scanner() -> Op:
    return contract.from_table(tomllib.loads(_TOML), Path("ops/scanner.toml"))


_SCANNER = _scanner()
_ARRAYS = {"q": ArraySpec((2, 8, 16), _F32), "m": ArraySpec((4, 4), "int32")}


def _bind(arrays: dict[str, Any] | None = None, /, **params: object) -> Binding:
    return bind(_SCANNER, {**_ARRAYS, **(arrays or {})}, params)


def _message(op: Op, arrays: dict[str, Any], params: dict[str, Any]) -> str:
    with pytest.raises((ContractValueError, ContractTypeError)) as raised:
        bind(op, arrays, params)
    assert isinstance(raised.value, ValueError | TypeError)
    assert raised.value.op == op.name
    assert str(raised.value).startswith(f"{op.name}: {raised.value.argument} {raised.value.got}; expected ")
    return str(raised.value)


def test_a_right_call_binds_every_letter_and_parameter() -> None:
    binding = _bind({"s": ArraySpec((2, 16), _F32)}, chunk=32)
    assert binding.dims == {"B": 2, "T": 8, "K": 16, "N": 4}
    assert binding.dtypes == {"X": _F32}
    assert dict(binding.params) == {
        "scale": 0.25, "half": 8, "chunk": 32, "causal": True, "mode": "a", "out_dtype": None, "limit": None,
    }  # fmt: skip
    assert binding.present == {"q", "m", "s"}
    assert binding.outputs() == {"o": ArraySpec((2, 8, 16), _F32)}
    assert _bind(out_dtype="bfloat16").outputs() == {"o": ArraySpec((2, 8, 16), _BF16)}


# (arrays that differ, parameters, what the message says)
_WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"q": None}, {}, "scanner: q is None; expected an array [B, T, K]"),
    ({"z": ArraySpec((1,), _F32)}, {}, "scanner: z is not an input; expected one of q, m, s, h"),
    ({"z": None}, {}, "scanner: z is not an input; expected one of q, m, s, h"),
    ({"q": ArraySpec((2, 8), _F32)}, {}, "scanner: q has shape (2, 8); expected [B, T, K]"),
    ({"q": ArraySpec((), _F32)}, {}, "scanner: q has shape (); expected [B, T, K]"),
    ({"m": ArraySpec((4, 5), "int32")}, {}, "scanner: m has shape (4, 5); expected [N, N] with one N"),
    ({"s": ArraySpec((3, 16), _F32)}, {}, "scanner: s has shape (3, 16); expected [B, K] = (2, 16) from q"),
    ({"s": ArraySpec((17,), _F32)}, {}, "scanner: s has shape (17,); expected [K] = (16,) from q"),
    ({"s": ArraySpec((1, 2, 3), _F32)}, {}, "scanner: s has shape (1, 2, 3); expected [K] = (16,) from q or [B, K] = (2, 16) from q"),
    ({"h": ArraySpec((3, 9), _F32)}, {}, "scanner: h has shape (3, 9); expected [B, V] = (2, 9) from q"),
    ({"q": ArraySpec((2, 8, 16), "float64")}, {}, "scanner: q has dtype float64; expected float32 or bfloat16. Pass q.astype('float32')"),
    ({"m": ArraySpec((4, 4), "int64")}, {}, "scanner: m has dtype int64; expected int32. Pass m.astype('int32')"),
    ({"s": ArraySpec((16,), _BF16)}, {}, "scanner: s has dtype bfloat16; expected float32. Pass s.astype('float32')"),
    ({"m": ArraySpec((3, 3), "int32")}, {}, "has shape (3, 3), so N = 3, T = 8; expected T % N == 0. pad T"),
    ({"m": ArraySpec((0, 0), "int32")}, {}, "so N = 0, T = 8 ('T % N == 0' has no value: "),
    ({"h": ArraySpec((2, 65), _F32)}, {}, "scanner: h has shape (2, 65), so V = 65, has_h = 1; expected V <= 64 and has_h"),
    ({"q": ArraySpec((2, 0, 16), _F32)}, {}, "scanner: causal is True with T = 0; expected not causal or T >= 2"),
    ({"q": ArraySpec((2, 8, 0), _F32)}, {}, "scanner: scale has no default here: 'K ** -0.5' has no value: "),
    ({}, {"scales": 1.0}, "scanner: scales is not a parameter; expected one of scale, half, chunk, causal, mode, out_dtype, limit"),
    ({}, {"scale": "1"}, "scanner: scale is '1'; expected a Python float (it is static: part of what is compiled)"),
    ({}, {"scale": True}, "scanner: scale is True; expected a Python float"),
    ({}, {"scale": 1j}, "scanner: scale is of type complex; expected a Python float"),
    ({}, {"scale": [1.0]}, "scanner: scale is of type list; expected a Python float"),
    ({}, {"scale": Decimal(1)}, "scanner: scale is of type Decimal; expected a Python float"),
    ({}, {"scale": float("nan")}, "scanner: scale is nan; expected a finite number"),
    ({}, {"scale": float("inf")}, "scanner: scale is inf; expected a finite number"),
    ({}, {"scale": 10**400}, "scanner: scale is of type int; expected a finite number"),
    ({}, {"chunk": 48}, "scanner: chunk is 48; expected 32 or 64"),
    ({}, {"chunk": 64.0}, "scanner: chunk is 64.0; expected a Python int"),
    ({}, {"chunk": True}, "scanner: chunk is True; expected a Python int"),
    ({}, {"chunk": None}, "scanner: chunk is None; expected a Python int"),
    ({}, {"chunk": 10**5000}, "scanner: chunk is of type int; expected 32 or 64"),
    ({}, {"causal": 1}, "scanner: causal is 1; expected True or False"),
    ({}, {"causal": None}, "scanner: causal is None; expected True or False"),
    ({}, {"mode": 3}, "scanner: mode is 3; expected a string"),
    ({}, {"mode": None}, "scanner: mode is None; expected a string"),
    ({}, {"out_dtype": "float31"}, "scanner: out_dtype is 'float31'; expected 'bool' or 'int4'"),
    ({}, {"out_dtype": float}, "scanner: out_dtype is of type type; expected None or the name of a dtype, like \"float32\""),
    ({}, {"limit": "x" * 500}, "scanner: limit is 'xxx"),
]  # fmt: skip


@pytest.mark.parametrize(("arrays", "params", "text"), _WRONG, ids=[f"{i}" for i in range(len(_WRONG))])
def test_a_wrong_call_says_what_is_wrong(arrays: dict[str, Any], params: dict[str, Any], text: str) -> None:
    message = _message(_SCANNER, {**_ARRAYS, **arrays}, params)
    assert text in message
    assert len(message) < 400


class _Array:
    """What must never be printed: an array on a device, a tracer."""

    dtype = "float32"

    def __repr__(self) -> str:
        raise AssertionError("printed")


@pytest.mark.parametrize("name", ["scale", "chunk", "causal", "mode", "out_dtype", "limit"])
def test_an_array_as_a_parameter_is_named_by_its_type_and_never_printed(name: str) -> None:
    assert f"{name} is of type _Array" in _message(_SCANNER, _ARRAYS, {name: _Array()})


@pytest.mark.parametrize("value", [1, 0.5, Fraction(1, 2), -0.0])
def test_a_float_parameter_takes_any_real_number_and_holds_a_float(value: Any) -> None:
    held = _bind(scale=value).params["scale"]
    assert type(held) is float
    assert held == float(value)


class _Int8(int):
    """As numpy's scalars are: registered as integers, with a type of their own."""


def test_an_int_parameter_holds_a_plain_int() -> None:
    assert type(_bind(chunk=_Int8(32)).params["chunk"]) is int


def test_none_takes_the_default_where_the_default_is_an_expression() -> None:
    assert _bind(scale=None, half=None).params["scale"] == 0.25


def test_conditions_on_shapes_come_before_defaults_that_need_them() -> None:
    """K ** -0.5 has no value for K = 0; the condition on K must be what is told."""
    table = tomllib.loads(_TOML.replace('"K >= 0"', '"K >= 1"'))
    op = contract.from_table(table, Path("ops/scanner.toml"))
    message = _message(op, {**_ARRAYS, "q": ArraySpec((2, 8, 0), _F32)}, {})
    assert message == "scanner: q has shape (2, 8, 0), so K = 0; expected K >= 1"


def test_a_condition_on_an_optional_input_is_asked_only_where_it_is_given() -> None:
    assert _bind().present == {"q", "m"}
    assert _bind({"h": ArraySpec((2, 64), _F32)}).dims["V"] == 64


_MATMUL = tops_manifest.op("matmul")


@pytest.mark.parametrize("batch", [(), (1,), (0,), (3, 2)])
@pytest.mark.parametrize("rhs_batched", [False, True])
@pytest.mark.parametrize("dtype", [_F32, _BF16, _I8])
def test_leading_dimensions_are_any_number_and_the_right_operand_has_all_or_none(
    batch: tuple[int, ...], rhs_batched: bool, dtype: str
) -> None:
    arrays = {"a": ArraySpec((*batch, 5, 7), dtype), "b": ArraySpec((*(batch if rhs_batched else ()), 7, 3), dtype)}
    out = bind(_MATMUL, arrays, {}).outputs()["y"]
    assert out == ArraySpec((*batch, 5, 3), "int32" if dtype == _I8 else dtype)


@pytest.mark.parametrize(
    ("a", "b", "bias", "text"),
    [
        ((7, 2, 3), (6, 3, 4), None, "b has shape (6, 3, 4); expected [*B, K, N] = (7, 3, 4) from a"),
        ((2, 3), (1, 3, 4), None, "b has shape (1, 3, 4); expected [K, N]"),
        ((2, 3), (4, 3), None, "b has shape (4, 3); expected [K, N] = (3, 3) from a"),
        ((3,), (3, 4), None, "a has shape (3,); expected [*B, M, K]"),
        ((2, 3), (3, 4), (3,), "bias has shape (3,); expected [N] = (4,) from b"),
        ((2, 3), (3, 4), (1, 4), "bias has shape (1, 4); expected [N] = (4,) from b"),
    ],
)
def test_a_wrong_matrix_is_named_with_the_shape_it_should_have(
    a: tuple[int, ...], b: tuple[int, ...], bias: tuple[int, ...] | None, text: str
) -> None:
    arrays = {"a": ArraySpec(a, _F32), "b": ArraySpec(b, _F32), "bias": None if bias is None else ArraySpec(bias, _F32)}
    assert text in _message(_MATMUL, arrays, {})


def test_dtypes_that_go_together_are_told_with_what_they_go_with() -> None:
    mixed = {"a": ArraySpec((2, 3), _BF16), "b": ArraySpec((3, 4), _F32)}
    assert _message(_MATMUL, mixed, {}) == (
        "matmul: b has dtype float32; expected bfloat16, the dtype of a. Pass b.astype('bfloat16')"
    )
    bias = {"a": ArraySpec((2, 3), _I8), "b": ArraySpec((3, 4), _I8), "bias": ArraySpec((4,), _I8)}
    assert _message(_MATMUL, bias, {}) == (
        "matmul: bias has dtype int8; expected int32 where a is int8. Pass bias.astype('int32')"
    )


def test_a_condition_between_a_dtype_and_a_parameter_names_the_parameter_and_what_to_do() -> None:
    arrays = {"a": ArraySpec((2, 3), _I8), "b": ArraySpec((3, 4), _I8)}
    assert _message(_MATMUL, arrays, {"activation": "relu"}) == (
        "matmul: activation is 'relu' with X = 'int8'; expected X != 'int8' or activation == 'none'. "
        "integers have no activation; pass out_dtype='float32' and apply it after"
    )


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=4).map(tuple), min_size=3, max_size=3),
    dtypes=st.lists(st.sampled_from([_F32, _BF16, _I8, "float64", "bool"]), min_size=3, max_size=3),
    given_=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_any_call_binds_or_is_refused_by_name(
    shapes: list[tuple[int, ...]], dtypes: list[str], given_: list[bool]
) -> None:
    arrays = {
        name: ArraySpec(shape, dtype) if is_given else None
        for name, shape, dtype, is_given in zip(("a", "b", "bias"), shapes, dtypes, given_, strict=True)
    }
    argument = None
    try:
        binding = bind(_MATMUL, arrays, {})
    except (ContractValueError, ContractTypeError) as error:
        argument = error.argument
    assert argument in (None, *arrays)
    if argument is None:
        a, b = shapes[0], shapes[1]
        assert binding.outputs()["y"].shape == (*a[:-1], b[-1])
        assert a[-1] == b[-2]
        assert len(b) == 2 or b[:-2] == a[:-2]


def test_every_combination_of_optional_inputs_of_every_op_binds() -> None:
    for op in tops_manifest.ops():
        optional = [spec.name for spec in op.inputs if spec.optional]
        for present in itertools.product([False, True], repeat=len(optional)):
            given = tuple(name for name, is_given in zip(optional, present, strict=True) if is_given)
            dtypes = {var.name: _F32 for var in op.dtypes}
            sizes: dict[str, Any] = {name: () if variadic else 1 for name, variadic in op.variadic.items()}
            arrays = Case(op, "ones", sizes, dtypes, {}, given, {}, ("fwd",)).inputs()
            binding = bind(op, arrays, {})
            assert binding.present == arrays.keys()
            assert list(binding.outputs()) == [spec.name for spec in op.outputs]


def test_a_binding_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        _bind().op = _MATMUL  # type: ignore[misc]  # that is the point


def test_checking_a_call_reads_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is checked each time it is traced: the manifest is read once a process."""
    arrays = {"a": ArraySpec((2, 3), _F32), "b": ArraySpec((3, 4), _F32)}
    bind(_MATMUL, arrays, {})
    opened: list[object] = []
    for name in ("builtins.open", "io.open", "os.open"):
        monkeypatch.setattr(name, lambda *args, **_: opened.append(args))
    bind(_MATMUL, arrays, {})
    assert opened == []
