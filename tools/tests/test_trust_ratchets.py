import json

import pytest

from tools.trust import ratchets

_TESTS = "packages/tops-tests/pyproject.toml"
_KERNELS = "packages/tops-kernels/pyproject.toml"
_OP = f"{ratchets.OPS}norm.toml"
_CONTRACT = '[op]\nname = "norm"\nversion = {version}\ndoc = "{doc}"\n[inputs]\nx = {{ shape = "N D", dtype = "{dtype}" }}\n[[workloads]]\nname = "{row}"\n'


def _project(version: str, *dependencies: str) -> str:
    return f'[project]\nversion = "{version}"\ndependencies = {json.dumps(dependencies)}\n'


def _tolerances(**values: float) -> str:
    return json.dumps({"version": "0.1.0", "tolerances": values})


def _checks(base: dict[str, str], head: dict[str, str], *stages: str) -> list[str]:
    head = {**base, **head}
    changed = sorted(path for path in head if head[path] != base.get(path))
    return [fault.check for fault in ratchets.check(base.get, head.get, changed, frozenset(stages))]


_BASE = {
    ratchets.TOLERANCES: _tolerances(y=1e-6, dx=1e-5),
    ratchets.CHANGELOG: "# Changelog\n\n## tops-tests\n\n### 0.1.0\n\n- First tolerance.\n",
    ratchets.README: "<!-- command: tests -->\n\n```sh\nuv run pytest\n```\n\n<!-- other -->\n",
    ratchets.UV_LOCK: '[[package]]\nname = "jax"\nversion = "0.10.2"\n[[package]]\nname = "tops-tests"\nversion = "0.1.0"\nsource = { editable = "x" }\n',
    _TESTS: _project("0.1.0"),
    _KERNELS: _project("0.1.0", "jax>=0.10"),
    _OP: _CONTRACT.format(version=1, doc="a", dtype="float32", row="r"),
}
_SPEAKS = "# Changelog\n\n## tops-tests\n\n### 0.2.0\n\n- A tolerance of norm is 1e-5, since ...\n\n## tops-bench\n"


@pytest.mark.parametrize(
    ("numbers", "caught"),
    [
        ({"y": 1e-6, "dx": 1e-5}, []),
        ({"y": 1e-7, "dx": 0.0}, []),
        ({"y": 1e-6, "dx": 1e-5, "new": 0.5}, []),
        ({"y": 1.1e-6, "dx": 1e-5}, ["tolerance-ratchet"]),
        ({"y": 1e-6}, ["tolerance-ratchet"]),
        ({"y": float("nan"), "dx": 1e-5}, ["tolerance-ratchet"]),
        ({"y": True, "dx": 1e-5}, ["tolerance-ratchet"]),
    ],
)
def test_tolerances_tighten_freely_and_loosen_not(numbers, caught):
    assert _checks(_BASE, {ratchets.TOLERANCES: _tolerances(**numbers)}, "tests") == caught


@pytest.mark.parametrize(
    ("version", "changelog", "caught"),
    [
        ("0.2.0", _SPEAKS, []),
        ("0.1.0", _SPEAKS, ["tolerance-ratchet"]),
        ("0.0.9", _SPEAKS, ["tolerance-ratchet"]),
        ("0.2.0", _BASE[ratchets.CHANGELOG], ["tolerance-ratchet"]),
        ("0.2.0", _SPEAKS.replace("tolerance", "number"), ["tolerance-ratchet"]),
        ("0.2.0", _SPEAKS.replace("tops-tests", "tops-kernels"), ["tolerance-ratchet"]),
    ],
)
def test_a_looser_tolerance_needs_a_version_and_a_line(version, changelog, caught):
    head = {ratchets.TOLERANCES: _tolerances(y=0.5, dx=1e-5), _TESTS: _project(version), ratchets.CHANGELOG: changelog}
    assert _checks(_BASE, head, "tests") == caught


def test_a_lock_that_cannot_be_read_counts_as_no_tolerance_at_all():
    assert _checks(_BASE, {ratchets.TOLERANCES: "{"}, "tests") == ["tolerance-ratchet"]


@pytest.mark.parametrize(
    ("change", "caught"),
    [
        ({"doc": "b"}, []),
        ({"row": "s"}, []),
        ({"dtype": "bfloat16"}, ["contract-version"]),
        ({"dtype": "bfloat16", "version": 2}, []),
        ({"dtype": "bfloat16", "version": 0}, ["contract-version"]),
    ],
)
def test_a_contract_changes_with_its_version(change, caught):
    head = _CONTRACT.format(**{"version": 1, "doc": "a", "dtype": "float32", "row": "r", **change})
    assert _checks(_BASE, {_OP: head}, "manifest") == caught


def test_a_contract_that_no_longer_parses_or_is_gone_is_caught():
    assert _checks(_BASE, {_OP: "[op"}, "manifest") == ["contract-version"]


_NEWER = {ratchets.UV_LOCK: _BASE[ratchets.UV_LOCK].replace("0.10.2", "0.11.0")}


def test_locked_versions_move_with_the_tools_or_with_a_declared_dependency():
    assert _checks(_BASE, _NEWER, "kernels") == ["lock-rides"]
    assert _checks(_BASE, _NEWER, "tools") == []
    assert _checks(_BASE, {**_NEWER, _KERNELS: _project("0.1.0", "jax>=0.11")}, "kernels") == []
    assert _checks(_BASE, {**_NEWER, _KERNELS: _project("0.2.0", "jax>=0.10")}, "kernels") == ["lock-rides"]


def test_a_package_may_move_its_own_version_in_the_lock():
    moved = _BASE[ratchets.UV_LOCK].replace("0.1.0", "0.2.0")
    assert _checks(_BASE, {ratchets.UV_LOCK: moved, _TESTS: _project("0.2.0")}, "tests") == []


def test_the_command_that_ci_runs_changes_with_the_tools_alone():
    weaker = {ratchets.README: _BASE[ratchets.README].replace("pytest", "pytest -k nothing")}
    assert _checks(_BASE, weaker, "kernels") == ["readme-commands"]
    assert _checks(_BASE, weaker, "tools") == []
    assert _checks(_BASE, {ratchets.README: "Prose.\n" + _BASE[ratchets.README]}, "kernels") == []
    assert _checks(_BASE, {ratchets.README: "Prose.\n"}, "kernels") == ["readme-commands"]
