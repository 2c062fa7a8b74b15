"""Every kind of mistake in a file is a fault that names file, key, value and what was expected, and all come at once."""

import tomllib
from typing import Any

import pytest

from tops_manifest.errors import Fault, ManifestError
from tops_manifest.tree import parse

_GOOD = """
schema = 1
[op]
name = "gla"
family = "linear_attention"
version = 1
status = "implemented"
ref = "arXiv:2312.06635"
doc = "a recurrence"
kernel_map = ["xla", "pallas_tpu"]
[dtypes]
X = ["float32", "bfloat16"]
Y = { of = "X", bfloat16 = "float32" }
[inputs]
q = { shape = "*B T K", dtype = "X" }
g = { shape = ["T K", "*B T K"], dtype = "float32", domain = "(-inf, 0]" }
h = { shape = "*B V", dtype = "Y", optional = true, doc = "a state" }
[outputs]
o = { shape = "*B T K", dtype = "X", dtype_param = "out_dtype" }
s = { shape = "K", dtype = "Y" }
[params]
scale = { type = "float", default = "K ** -0.5" }
mode = { type = "str", default = "a", choices = ["a", "b"] }
causal = { type = "bool", default = true }
chunk = { type = "int", default = 64 }
out_dtype = { type = "dtype", optional = true, choices = ["float32"] }
[contract]
where = ["T >= 1", { expr = "K <= 256", hint = "split the head" }]
vjp = ["q", "g"]
shard_free = ["B"]
[cost]
flops = { mxu = "4*B*T*K", vpu = "B*T*K*has_h" }
bytes = "io"
[cost.vjp]
flops = { mxu = "8*B*T*K" }
bytes = "2*B*T*K"
[[workloads]]
name = "gla-1b3"
dims = { B = [8, 4], T = 4096, K = 256, V = 512 }
X = ["bfloat16"]
params = { mode = "b" }
present = ["h"]
alternatives = { g = 1 }
pass = ["fwd", "vjp"]
"""


def _good() -> dict[str, Any]:
    return tomllib.loads(_GOOD)


def _set(table: dict[str, Any], key: str, value: object) -> None:
    """Sets a dotted key; a value of KeyError removes it."""
    *path, last = key.split(".")
    at: Any = table
    for part in path:
        at = at[int(part) if part.isdigit() else part]
    if value is KeyError:
        del at[last]
    else:
        at[int(last) if last.isdigit() else last] = value


def _faults(table: dict[str, Any]) -> tuple[Fault, ...]:
    try:
        parse(table, "ops/gla.toml", "gla")
    except ManifestError as error:
        return error.faults
    return ()


def test_the_example_is_good() -> None:
    assert _faults(_good()) == ()


# (key that is set, its value, key that is named, what is shown of the value, what was expected)
_CASES: list[tuple[str, Any, str, str, str]] = [
    ("schema", 2, "schema", "2", "1"),
    ("schema", True, "schema", "True", "1"),
    ("schema", 1.0, "schema", "1.0", "1"),
    ("schema", KeyError, "schema", "nothing", "1"),
    ("surprise", {}, "surprise", "{}", "no such key"),
    ("op", KeyError, "op", "nothing", "a table"),
    ("op", 3, "op", "3", "a table"),
    ("op.name", "glb", "op.name", "'glb'", "the file's name"),
    ("op.name", KeyError, "op.name", "nothing", "a string"),
    ("op.name", 3, "op.name", "3", "a string"),
    ("op.family", "Linear Attention", "op.family", "'Linear Attention'", "small letters"),
    ("op.family", "../x", "op.family", "'../x'", "small letters"),
    ("op.version", 0, "op.version", "0", "an integer from 1"),
    ("op.version", True, "op.version", "True", "an integer from 1"),
    ("op.version", "1", "op.version", "'1'", "an integer from 1"),
    ("op.version", 1.0, "op.version", "1.0", "an integer from 1"),
    ("op.version", 10**5000, "op.version", "too large to show", "an integer from 1"),
    ("op.status", "done", "op.status", "'done'", "planned or implemented or deprecated"),
    ("op.status", ["planned"], "op.status", "['planned']", "planned or implemented or deprecated"),
    ("op.status", KeyError, "op.status", "nothing", "planned or implemented or deprecated"),
    ("op.kernel_map", [], "op.kernel_map", "[]", "not empty"),
    ("op.kernel_map", ["cuda"], "op.kernel_map", "'cuda'", "xla or pallas_tpu"),
    ("op.kernel_map", ["xla", "xla"], "op.kernel_map", "['xla', 'xla']", "no entry twice"),
    ("op.kernel_map", "xla", "op.kernel_map", "'xla'", "a list of strings"),
    ("op.kernel_map", ["xla", 1], "op.kernel_map", "['xla', 1]", "a list of strings"),
    ("op.author", "me", "op.author", "'me'", "no such key (known: name"),
    ("dtypes", [], "dtypes", "[]", "a table"),
    ("dtypes.X", [], "dtypes.X", "[]", "not empty"),
    ("dtypes.X", ["float31"], "dtypes.X", "'float31'", "float32"),
    ("dtypes.X", "float32", "dtypes.X", "'float32'", "a list of dtypes"),
    ("dtypes.x", ["float32"], "dtypes.x", "['float32']", "a capital first"),
    ("dtypes.Y", {"of": "Z"}, "dtypes.Y.of", "'Z'", "a dtype variable with a list, above"),
    ("dtypes.Y", {"of": ["X"]}, "dtypes.Y.of", "['X']", "a dtype variable with a list, above"),
    (
        "dtypes.Y",
        {"of": "X", "int8": "int32"},
        "dtypes.Y.int8",
        "'int32'",
        "no such key (known: of, float32, bfloat16)",
    ),
    ("dtypes.Y", {"of": "X", "float32": "int33"}, "dtypes.Y.float32", "'int33'", "int32"),
    ("dtypes.K", ["float32"], "dtypes.K", "'K'", "a name that no dimension"),
    ("inputs", KeyError, "inputs", "nothing", "a table"),
    ("inputs", {}, "inputs", "nothing", "at least one input"),
    ("inputs.q", "*B T K", "inputs.q", "'*B T K'", "a table"),
    ("inputs.q.shape", KeyError, "inputs.q.shape", "nothing", 'dimensions as a string, like "B T H K"'),
    ("inputs.q.shape", 3, "inputs.q.shape", "3", "dimensions as a string"),
    ("inputs.q.shape", [], "inputs.q.shape", "[]", "dimensions as a string"),
    ("inputs.q.shape", "*B t K", "inputs.q.shape", "'*B t K'", "not 't'"),
    ("inputs.q.shape", "T *B K", "inputs.q.shape", "'T *B K'", "*B in first place"),
    ("inputs.q.shape", "B T K", "inputs.q.shape", "[B, T, K]", "with * everywhere or nowhere"),
    ("inputs.g.shape", ["T K", "K T"], "inputs.g.shape", "['T K', 'K T']", "shapes that their ranks tell apart"),
    ("inputs.q.dtype", "float31", "inputs.q.dtype", "'float31'", "X or Y or bool"),
    ("inputs.q.dtype", "Y", "inputs.q.dtype", "'Y'", "an input of X above"),
    ("inputs.q.optional", "yes", "inputs.q.optional", "'yes'", "true or false"),
    ("inputs.q.optional", True, "inputs", "['q', 'g', 'h']", "optional inputs after all others"),
    ("inputs.g.domain", "below 0", "inputs.g.domain", "'below 0'", "an interval"),
    ("inputs.g.domain", "(0, 0)", "inputs.g.domain", "'(0, 0)'", "an interval that is not empty"),
    ("inputs.g.domain", "(1.2.3, 5)", "inputs.g.domain", "'(1.2.3, 5)'", "an interval"),
    ("inputs.g.domain", "(nan, 5)", "inputs.g.domain", "'(nan, 5)'", "an interval"),
    ("inputs.g.domain", 0, "inputs.g.domain", "0", "a string"),
    ("inputs.q.rank", 3, "inputs.q.rank", "3", "no such key (known: shape, dtype"),
    ("inputs.two words", {}, 'inputs."two words"', "{}", "a name of letters"),
    ("inputs.lambda", {}, "inputs.lambda", "{}", "no Python keyword"),
    ("outputs", {}, "outputs", "nothing", "at least one output"),
    ("outputs.o.shape", "*B T D", "outputs.o.shape", "'*B T D'", "no input binds D (known: B K T V)"),
    ("outputs.o.shape", "T V", "outputs.o.shape", "'T V'", "V in an input that is always given"),
    ("outputs.o.shape", "B T", "outputs.o.shape", "'B T'", "with * everywhere or nowhere"),
    ("outputs.o.dtype", "Z", "outputs.o.dtype", "'Z'", "X or Y or bool"),
    ("outputs.o.dtype_param", "scale", "outputs.o.dtype_param", "'scale'", "out_dtype"),
    ("outputs.o.optional", True, "outputs.o.optional", "True", "no such key"),
    ("params.scale.type", "number", "params.scale.type", "'number'", "float or int or bool or str or dtype"),
    ("params.scale.type", [], "params.scale.type", "[]", "float or int or bool or str or dtype"),
    ("params.scale.default", "K **", "params.scale.default", "'K **'", "an expression"),
    ("params.scale.default", "N ** 2", "params.scale.default", "'N ** 2'", "known names, not N (known: B K T)"),
    ("params.scale.default", "V ** 2", "params.scale.default", "'V ** 2'", "known names, not V"),
    ("params.scale.default", float("nan"), "params.scale.default", "nan", "a finite number"),
    ("params.scale.default", True, "params.scale.default", "True", "a finite number"),
    ("params.scale.default", KeyError, "params.scale.default", "nothing", "a default (or optional = true"),
    ("params.chunk.default", 1.5, "params.chunk.default", "1.5", "an integer"),
    ("params.chunk.default", 2**70, "params.chunk.default", str(2**70), "an integer"),
    ("params.causal.default", 1, "params.causal.default", "1", "true or false"),
    ("params.mode.default", "c", "params.mode.default", "'c'", "one of choices: ['a', 'b']"),
    ("params.mode.choices", ["a", 1], "params.mode.choices", "['a', 1]", "a list, each a string"),
    ("params.mode.choices", ["a", "a"], "params.mode.choices", "['a', 'a']", "no entry twice"),
    ("params.mode.choices", "ab", "params.mode.choices", "'ab'", "a list, each a string"),
    ("params.out_dtype.choices", ["f32"], "params.out_dtype.choices", "['f32']", "each a dtype"),
    ("params.q", {"type": "int", "default": 1}, "params.q", "'q'", "a name that no input"),
    ("params.backend", {"type": "int", "default": 1}, "params.backend", "'backend'", "a name that no input"),
    ("params.K", {"type": "int", "default": 1}, "params.K", "'K'", "a name that no dimension"),
    ("params.has_h", {"type": "int", "default": 1}, "params.has_h", "'has_h'", "has_<input>"),
    ("contract.where", "T >= 1", "contract.where", "'T >= 1'", "a list of conditions"),
    ("contract.where", ["T >= 1", "D > 0"], "contract.where[1]", "'D > 0'", "known names, not D"),
    ("contract.where", ["f(T)"], "contract.where[0]", "'f(T)'", "is not in the grammar"),
    ("contract.where", [1.5j], "contract.where[0]", "1.5j", "an expression as a string"),
    ("contract.where", [{"hint": "x"}], "contract.where[0].expr", "nothing", "an expression as a string"),
    ("contract.where", [{"expr": "T >", "hint": "x"}], "contract.where[0].expr", "'T >'", "an expression"),
    ("contract.where", [{"expr": "T > 0", "why": "x"}], "contract.where[0].why", "'x'", "no such key"),
    ("contract.vjp", ["o"], "contract.vjp", "'o'", "q or g or h"),
    ("contract.vmap", 1, "contract.vmap", "1", "true or false"),
    ("contract.shard_free", ["D"], "contract.shard_free", "'D'", "B or K or T or V"),
    ("contract.rank", 1, "contract.rank", "1", "no such key"),
    ("cost", KeyError, "cost", "nothing", "a table"),
    ("cost.flops", KeyError, "cost.flops", "nothing", "a table"),
    ("cost.flops", {}, "cost.flops", "nothing", "a formula for at least one of mxu"),
    ("cost.flops.tensor", "1", "cost.flops.tensor", "'1'", "no such key (known: mxu, vpu, eup)"),
    ("cost.flops.mxu", "4*D", "cost.flops.mxu", "'4*D'", "known names, not D"),
    ("cost.flops.mxu", [], "cost.flops.mxu", "[]", "an expression as a string"),
    ("cost.flops.mxu", "1 - T", "cost.flops.mxu", "'1 - T'", "it is below 0"),
    ("cost.flops.mxu", "1 / (T - 4096)", "cost.flops.mxu", "'1 / (T - 4096)'", "a value from 0 for gla-1b3"),
    ("cost.bytes", "lots", "cost.bytes", "'lots'", "known names, not lots"),
    ("cost.vjp", KeyError, "cost.vjp", "nothing", "a table"),
    ("cost.vjp.bytes", "-1", "cost.vjp.bytes", "'-1'", "it is below 0"),
    ("cost.fwd", {}, "cost.fwd", "{}", "no such key"),
    ("workloads", {}, "workloads", "{}", "tables [[workloads]]"),
    ("workloads", [1], "workloads", "[1]", "tables [[workloads]]"),
    ("workloads", KeyError, "workloads", "nothing", "at least one row for an implemented op"),
    ("workloads.0.name", KeyError, "workloads[0].name", "nothing", "a string"),
    ("workloads.0.name", "a/b", "workloads[0].name", "'a/b'", "letters, digits"),
    ("workloads.0.name", "..", "workloads[0].name", "'..'", "letters, digits"),
    ("workloads.0.dims", KeyError, "workloads[0].dims", "nothing", "a table"),
    ("workloads.0.dims.T", 0, "workloads[0].dims.T", "0", "a size from 1"),
    ("workloads.0.dims.T", True, "workloads[0].dims.T", "True", "a size from 1"),
    ("workloads.0.dims.T", [4096], "workloads[0].dims.T", "[4096]", "a size from 1"),
    ("workloads.0.dims.T", 2**80, "workloads[0].dims.T", str(2**80), "a size from 1"),
    ("workloads.0.dims.B", 8, "workloads[0].dims.B", "8", "a list of sizes"),
    ("workloads.0.dims.B", [8, "4"], "workloads[0].dims.B", "[8, '4']", "a list of sizes"),
    ("workloads.0.dims.K", KeyError, "workloads[0].dims.K", "nothing", "a size from 1"),
    ("workloads.0.dims.D", 1, "workloads[0].dims.D", "1", "no such key"),
    ("workloads.0.dims.K", 512, "workloads[0]", "'gla-1b3-bfloat16-float32'", "K <= 256. split the head"),
    ("workloads.0.X", ["int8"], "workloads[0].X", "'int8'", "float32 or bfloat16"),
    ("workloads.0.X", [], "workloads[0].X", "[]", "not empty"),
    ("workloads.0.Y", ["float32"], "workloads[0].Y", "['float32']", "no such key"),
    ("workloads.0.params", {"mode": "c"}, "workloads[0]", "'gla-1b3-bfloat16-float32'", "'a' or 'b'"),
    ("workloads.0.params", {"mode": ["a"]}, "workloads[0].params.mode", "['a']", "a value of type str"),
    ("workloads.0.params", {"speed": 1}, "workloads[0].params.speed", "1", "no such key"),
    ("workloads.0.present", ["q"], "workloads[0].present", "'q'", "h"),
    ("workloads.0.alternatives", {"g": 2}, "workloads[0].alternatives.g", "2", "an integer from 0 to 1"),
    ("workloads.0.alternatives", {"q": 0}, "workloads[0].alternatives.q", "0", "no such key"),
    ("workloads.0.pass", [], "workloads[0].pass", "[]", "not empty"),
    ("workloads.0.pass", ["bwd"], "workloads[0].pass", "'bwd'", "fwd or vjp"),
    ("workloads.0.pass", KeyError, "workloads[0].pass", "nothing", "a list of strings"),
]

_IDS = [f"{key}-{named}-{index}" for index, (key, _, named, _, _) in enumerate(_CASES)]


@pytest.mark.parametrize(("key", "value", "named", "shown", "expected"), _CASES, ids=_IDS)
def test_a_mistake_is_named(key: str, value: object, named: str, shown: str, expected: str) -> None:
    table = _good()
    _set(table, key, value)
    faults = _faults(table)
    assert any(
        fault.file == "ops/gla.toml" and fault.key == named and shown in fault.value and expected in fault.expected
        for fault in faults
    ), "\n".join(map(str, faults)) or "no fault"
    assert len(set(faults)) == len(faults), "a fault told twice"


def test_two_rows_of_one_name_are_told() -> None:
    table = _good()
    table["workloads"].append(table["workloads"][0])
    assert [(fault.key, fault.value) for fault in _faults(table)] == [("workloads", "'gla-1b3'")]


def test_vjp_costs_of_an_op_that_is_differentiable_in_nothing_are_told() -> None:
    table = _good()
    table["contract"]["vjp"] = []
    assert {fault.key for fault in _faults(table)} == {"cost.vjp", "workloads[0].pass"}


def test_all_faults_of_all_parts_come_at_once() -> None:
    table = _good()
    wrong = {"op.status": "done", "inputs.g.domain": "x", "cost.flops.mxu": "4*D", "workloads.0.dims.T": 0, "schema": 7}
    for key, value in wrong.items():
        _set(table, key, value)
    named = {fault.key for fault in _faults(table)}
    assert named >= {"op.status", "inputs.g.domain", "cost.flops.mxu", "workloads[0].dims.T", "schema"}


def test_a_fault_is_one_line_of_bounded_length_that_says_four_things() -> None:
    table = _good()
    table["op"]["status"] = "x\n" * 10_000
    (fault,) = _faults(table)
    assert "\n" not in str(fault)
    assert len(str(fault)) < 400
    assert str(fault).startswith("ops/gla.toml: op.status: got 'x")
    assert str(fault).endswith("; expected planned or implemented or deprecated")


def test_a_file_name_that_is_no_function_name_is_told() -> None:
    table = _good()
    table["op"]["name"] = "GLA-2"
    with pytest.raises(ManifestError, match=r"op.name: got 'GLA-2'; expected small letters"):
        parse(table, "ops/GLA-2.toml", "GLA-2")
