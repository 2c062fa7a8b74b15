"""diff: what changed in the contracts, and whether a call that was right before may fail or mean something else now."""

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tops_manifest import contract
from tops_manifest.changes import Change, contract_changes
from tops_manifest.cli import main
from tops_manifest.tree import PACKAGE

_TOML = """
schema = 1
[op]
name = "gla"
family = "gla"
version = 1
status = "implemented"
ref = "none"
doc = "none"
kernel_map = ["xla", "pallas_tpu"]
[dtypes]
X = ["float32", "bfloat16"]
W = ["float32", "bfloat16"]
[inputs]
q = { shape = "B T K", dtype = "X" }
k = { shape = "B T K", dtype = "X" }
w = { shape = ["K", "B K"], dtype = "W", domain = "(-inf, 0]" }
h = { shape = "B K", dtype = "float32", optional = true }
[outputs]
o = { shape = "B T K", dtype = "X" }
s = { shape = "B K", dtype = "float32" }
[params]
scale = { type = "float", default = "K ** -0.5" }
chunk = { type = "int", default = 64 }
mode = { type = "str", default = "a", choices = ["a", "b"] }
limit = { type = "float", optional = true }
out = { type = "dtype", optional = true }
[contract]
where = ["T >= 1", "K <= 256"]
vjp = ["q", "k"]
shard_free = ["B"]
[cost]
flops = { vpu = "B*T*K" }
[cost.vjp]
flops = { vpu = "B*T*K" }
[[workloads]]
name = "row"
dims = { B = 1, T = 1, K = 1 }
pass = ["fwd"]
"""


def _changes(*pairs: tuple[str, str], back: bool = False) -> list[Change]:
    text = _TOML
    for old, new in pairs:
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new, 1)
    before, after = (contract.from_table(tomllib.loads(one), Path("ops/gla.toml")) for one in (_TOML, text))
    return contract_changes(after, before) if back else contract_changes(before, after)


# (old, new, breaking, what is told; and the same backwards)
_CASES: list[tuple[str, str, tuple[bool, str], tuple[bool, str]]] = [
    ("h = { shape", "z = { shape = \"B\", dtype = \"X\", optional = true }\nh = { shape", (True, "inputs: positions: (q, k, w, h) -> (q, k, w, z, h)"), (True, "inputs.z: removed")),
    ("[outputs]", "z = { shape = \"B\", dtype = \"X\", optional = true }\n[outputs]", (False, "inputs.z: added, optional"), (True, "inputs.z: removed")),
    ("w = {", "z = { shape = \"B\", dtype = \"X\" }\nw = {", (True, "inputs.z: added, required"), (True, "inputs.z: removed")),
    ('domain = "(-inf, 0]" }', 'domain = "(-inf, 0]", optional = true }', (False, "inputs.w.optional: false -> true"), (True, "inputs.w.optional: true -> false")),
    ('["K", "B K"]', '["K", "B K", "B T K"]', (False, "inputs.w.shape: also [B, T, K]"), (True, "inputs.w.shape: no longer [B, T, K]")),
    ('k = { shape = "B T K"', 'k = { shape = "T B K"', (True, "inputs.k.shape: no longer [B, T, K]"), (True, "inputs.k.shape: no longer [T, B, K]")),
    ('domain = "(-inf, 0]"', 'domain = "(-inf, 1]"', (False, "inputs.w.domain: (-inf, 0.0] -> (-inf, 1.0]"), (True, "inputs.w.domain: (-inf, 1.0] -> (-inf, 0.0]")),
    ('domain = "(-inf, 0]"', 'domain = "(-inf, 0)"', (True, "inputs.w.domain: (-inf, 0.0] -> (-inf, 0.0)"), (False, "inputs.w.domain: (-inf, 0.0) -> (-inf, 0.0]")),
    (', domain = "(-inf, 0]"', "", (False, "inputs.w.domain: (-inf, 0.0] -> any number"), (True, "inputs.w.domain: any number -> (-inf, 0.0]")),
    ('X = ["float32", "bfloat16"]', 'X = ["float32", "bfloat16", "int8"]', (False, "dtypes: also (q int8, k int8, w bfloat16, h float32)"), (True, "dtypes: no longer (q int8, k int8, w bfloat16, h float32)")),
    ('dtype = "W"', 'dtype = "X"', (True, "dtypes: no longer (q bfloat16, k bfloat16, w float32, h float32)"), (False, "dtypes: also")),
    ('dtype = "float32", optional', 'dtype = "bfloat16", optional', (True, "dtypes: no longer"), (True, "dtypes: no longer")),
    ('o = { shape = "B T K", dtype = "X" }', 'o = { shape = "B T K", dtype = "float32" }', (True, "outputs.o.dtype: bfloat16 -> float32 for (q bfloat16"), (True, "outputs.o.dtype: float32 -> bfloat16")),
    ('o = { shape = "B T K", dtype = "X" }', 'o = { shape = "B T K", dtype = "X", dtype_param = "out" }', (False, "outputs.o.dtype_param: none -> out"), (True, "outputs.o.dtype_param: out -> none")),
    ('s = { shape = "B K"', 's = { shape = "K B"', (True, "outputs.s.shape: [B, K] -> [K, B]"), (True, "outputs.s.shape: [K, B] -> [B, K]")),
    ('s = { shape = "B K", dtype = "float32" }', "", (True, "outputs: (o, s) -> (o)"), (True, "outputs: (o) -> (o, s)")),
    ("chunk = {", "size = { type = \"int\", default = 1 }\nchunk = {", (False, "params.size: added, default 1"), (True, "params.size: removed")),
    ('"K ** -0.5"', '"K ** -1"', (True, "params.scale.default: K ** -0.5 -> K ** -1"), (True, "params.scale.default")),
    ("default = 64", "default = 32", (True, "params.chunk.default: 64 -> 32"), (True, "params.chunk.default: 32 -> 64")),
    ('type = "int", default = 64', 'type = "float", default = 64', (False, "params.chunk.type: int -> float"), (True, "params.chunk.type: float -> int")),
    ('type = "int", default = 64', 'type = "bool", default = true', (True, "params.chunk.type: int -> bool"), (True, "params.chunk.type: bool -> int")),
    ('choices = ["a", "b"]', 'choices = ["a", "b", "c"]', (False, "params.mode.choices: also 'c'"), (True, "params.mode.choices: no longer 'c'")),
    (', choices = ["a", "b"]', "", (False, "params.mode.choices: any value"), (True, "params.mode.choices: only 'a' or 'b'")),
    ("type = \"int\", default = 64", "type = \"int\", default = 64, optional = true", (False, "params.chunk.optional: false -> true"), (True, "params.chunk.optional: true -> false")),
    ('"T >= 1", ', '"T >= 1", "T % 2 == 0", ', (True, "contract.where: now T % 2 == 0"), (False, "contract.where: no longer T % 2 == 0")),
    ("K <= 256", "K <= 512", (False, "contract.where: looser: K <= 256 -> K <= 512"), (True, "contract.where: now K <= 256")),
    ("T >= 1", "T >= 2", (True, "contract.where: now T >= 2"), (False, "contract.where: looser: T >= 2 -> T >= 1")),
    ("K <= 256", "K < 512", (True, "contract.where: now K < 512"), (True, "contract.where: now K <= 256")),
    ('vjp = ["q", "k"]', 'vjp = ["q", "k", "w"]', (False, "contract.vjp: with w"), (True, "contract.vjp: without w")),
    ('shard_free = ["B"]', 'shard_free = ["B", "K"]', (False, "contract.shard_free: with K"), (True, "contract.shard_free: without K")),
    ("vjp = [", "vmap = false\nvjp = [", (True, "contract.vmap: true -> false"), (False, "contract.vmap: false -> true")),
    ('["xla", "pallas_tpu"]', '["xla"]', (True, "op.kernel_map: without pallas_tpu"), (False, "op.kernel_map: with pallas_tpu")),
    ('status = "implemented"', 'status = "deprecated"', (False, "op.status: implemented -> deprecated"), (False, "op.status: deprecated -> implemented")),
    ('status = "implemented"', 'status = "planned"', (True, "op.status: implemented -> planned"), (False, "op.status: planned -> implemented")),
]  # fmt: skip


@pytest.mark.parametrize("back", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("case", _CASES, ids=[case[2][1] for case in _CASES])
def test_a_change_is_told_and_classified(case: tuple[str, str, tuple[bool, str], tuple[bool, str]], back: bool) -> None:
    old, new, there, backwards = case
    breaking, what = backwards if back else there
    found = _changes((old, new), back=back)
    assert any(str(change).startswith(what) and change.breaking is breaking for change in found), [*map(str, found)]
    assert any(change.breaking for change in found) is breaking, [*map(str, found)]


@pytest.mark.parametrize(
    "pairs",
    [
        [('doc = "none"', 'doc = "some"'), ("version = 1", "version = 2")],
        [('"T >= 1", "K <= 256"', '"K<=256", "(T >= 1)"')],
        [('X = ["float32", "bfloat16"]', 'X = ["bfloat16", "float32"]')],
        [("W = [", "V = ["), ('dtype = "W"', 'dtype = "V"')],
    ],
    ids=["words", "spelling", "order", "another letter for a dtype"],
)
def test_what_no_caller_can_see_is_no_change(pairs: list[tuple[str, str]]) -> None:
    assert _changes(*pairs) == []


def test_leading_dimensions_where_there_was_one_break_nobody() -> None:
    wider = [(f'{name} = {{ shape = "B ', f'{name} = {{ shape = "*B ') for name in ("q", "k", "h", "o", "s")]
    wider.append(('["K", "B K"]', '["K", "*B K"]'))
    there, back = _changes(*wider), _changes(*wider, back=True)
    assert there
    assert not any(change.breaking for change in there)
    assert any(change.breaking for change in back)


def test_a_condition_that_the_default_of_a_new_parameter_meets_breaks_nobody() -> None:
    new = ("chunk = {", 'causal = { type = "bool", default = false }\nchunk = {')
    met = _changes(new, ('"T >= 1", ', '"T >= 1", "not causal or T >= 2", '))
    assert not any(change.breaking for change in met)
    unmet = _changes(new, ('"T >= 1", ', '"T >= 1", "causal or T >= 2", '))
    assert any(change.breaking for change in unmet)


def _git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with the packaged files, committed as they are and tagged v1."""
    shutil.copytree(contract.ops_folder(), tmp_path / PACKAGE / "ops")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    _git(tmp_path, "tag", "v1")
    return tmp_path


def _edit(root: Path, *pairs: tuple[str, str], op: str = "rms_norm") -> None:
    path = root / PACKAGE / "ops" / f"{op}.toml"
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def _diff(root: Path, capsys: pytest.CaptureFixture[str], revision: str = "v1") -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = main(["diff", revision, "--json", "--root", str(root)])
    return status, json.loads(capsys.readouterr().out)


def test_no_edit_is_no_difference(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _diff(root, capsys) == (0, {"ops": [], "faults": []})
    assert main(["diff", "v1", "--root", str(root)]) == 0
    assert capsys.readouterr().out == "nothing changed since v1\n"


def test_a_change_under_its_version_is_a_fault_and_with_a_new_version_none(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _edit(root, ('vjp = ["x", "scale"]', 'vjp = ["x"]'))
    status, told = _diff(root, capsys)
    assert status == 1
    (one,) = told["ops"]
    assert (one["op"], one["breaking"], one["unversioned"], one["version"]) == ("rms_norm", True, True, [1, 1])
    assert one["contract"] == [{"key": "contract.vjp", "breaking": True, "what": "without scale"}]
    _edit(root, ("version = 1", "version = 2"))
    assert _diff(root, capsys)[0] == 0
    assert main(["diff", "v1", "--root", str(root)]) == 0
    assert "rms_norm: breaking, version 1 -> 2\n  contract.vjp: without scale (breaking)" in capsys.readouterr().out


def test_another_letter_breaks_nobody_and_needs_a_version_since_the_digest_changed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _edit(root, ("\nW = [", "\nV = ["), ('"W"', '"V"'))
    status, told = _diff(root, capsys)
    assert status == 1
    assert [one["key"] for one in told["ops"][0]["contract"]] == ["contract"]
    assert told["ops"][0]["breaking"] is False
    assert told["ops"][0]["unversioned"] is True


def test_rows_and_costs_are_told_and_break_nobody(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _edit(root, ("B*D*(3 + has_scale)", "B*D*4"), ("D = 8192", "D = 16384"), ("olmo-2-7b-no-scale", "olmo"))
    status, told = _diff(root, capsys)
    assert status == 0
    (one,) = told["ops"]
    assert one["breaking"] is False
    assert one["cost"] == ["fwd: vpu B*D*(3 + has_scale); eup B; bytes io -> vpu B*D*4; eup B; bytes io"]
    assert "olmo: added" in one["workloads"]
    assert "olmo-2-7b-no-scale: removed" in one["workloads"]
    assert any("8192" in text and "16384" in text for text in one["workloads"])


def test_ops_that_came_and_went_are_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ops = root / PACKAGE / "ops"
    (ops / "new_op.toml").write_text(
        (ops / "rms_norm.toml").read_text().replace('name = "rms_norm"', 'name = "new_op"')
    )
    (ops / "matmul.toml").unlink()
    _, told = _diff(root, capsys)
    kinds = {one["op"]: (one["kind"], one["breaking"]) for one in told["ops"]}
    assert kinds == {"matmul": ("removed", True), "new_op": ("added", False)}


@pytest.mark.parametrize("now", [True, False], ids=["now", "then"])
def test_a_file_that_cannot_be_read_is_a_fault_and_hides_no_other(
    root: Path, capsys: pytest.CaptureFixture[str], now: bool
) -> None:
    path = root / PACKAGE / "ops" / "rms_norm.toml"
    good = path.read_bytes()
    path.write_bytes(b"\xff\x00")
    if not now:
        _git(root, "commit", "-q", "-a", "-m", "second")
        _git(root, "tag", "-f", "v1")
        path.write_bytes(good)
    _edit(root, ("2*B*M*N*K", "3*B*M*N*K"), op="matmul")
    status, told = _diff(root, capsys)
    assert status == 1
    (fault,) = told["faults"]
    assert fault["file"] == ("ops/rms_norm.toml" if now else "ops/rms_norm.toml at v1")
    assert [one["op"] for one in told["ops"]] == ["matmul"]


@pytest.mark.parametrize(
    "revision",
    ["", "nope", "--output=x", "-h", "v1 v1", "v1;true", "$(true)", "v1\n", "v1:README", "v1^{tree}", "x" * 300, "é"],
)
def test_what_is_no_revision_is_wrong_use_and_reaches_no_shell(
    root: Path, revision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--root", str(root), "--", revision]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("tops-manifest diff: ")
    assert "Traceback" not in told.err
    if revision not in ("nope", "v1^{tree}"):  # git itself says no to these two
        assert "is no git revision; give a commit, branch or tag" in told.err


@pytest.mark.parametrize("revision", ["v1", "HEAD", "HEAD~0", "HEAD^{commit}", "HEAD@{0}"])
def test_git_s_ways_to_name_a_commit_all_work(root: Path, revision: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _diff(root, capsys, revision)[0] == 0


def test_outside_git_it_is_wrong_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(contract.ops_folder(), tmp_path / PACKAGE / "ops")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert main(["diff", "HEAD", "--root", str(tmp_path)]) == 2
    monkeypatch.setenv("PATH", "")
    assert main(["diff", "HEAD", "--root", str(tmp_path)]) == 2
    assert "git cannot be run" in capsys.readouterr().err


def test_the_revision_is_read_whole_whatever_is_staged_or_checked_out(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _edit(root, ("2*B*M*N*K", "3*B*M*N*K"), op="matmul")
    _git(root, "add", ".")
    assert [one["op"] for one in _diff(root, capsys)[1]["ops"]] == ["matmul"]
    _git(root, "commit", "-q", "-m", "second")
    assert [one["op"] for one in _diff(root, capsys)[1]["ops"]] == ["matmul"]
    assert _diff(root, capsys, "HEAD")[1]["ops"] == []
