"""Every way around a boundary that we could think of, tried on a copy of the repository: each must be caught, by the check that
is meant to catch it, with advice for somebody who meant well."""

from pathlib import Path

import pytest

from tools.tests.bypass import attempts_code, attempts_history, attempts_layout
from tools.tests.bypass.tree import Attempt, Tree, copy_of
from tools.trust import contracts, gate, purity, static
from tools.trust.fault import Fault
from tools.trust.revision import Git
from tools.trust.source import Repository

ROOT = Path(__file__).resolve().parents[3]
_CODE = (
    *attempts_code.IMPORTS,
    *attempts_code.DYNAMIC,
    *attempts_code.REACHES,
    *attempts_code.FILES,
    *attempts_code.PATCHES,
    *attempts_code.CONTENT,
)


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Tree:
    return copy_of(ROOT, tmp_path_factory.mktemp("copy"))


@pytest.fixture
def tree(copied):
    yield copied
    copied.restore()


@pytest.fixture(scope="module")
def cache() -> static.Cache:
    """What a file's reading found; an attempt changes one file of some two hundred."""
    return {}


@pytest.fixture(scope="module")
def faults_before(copied, cache) -> set[Fault]:
    """None, once the tree is clean; a test of its own says so. No attempt may pass for caught by another's fault."""
    return set(static.check(Repository(copied.root), cache=cache))


def _each(attempts):
    return pytest.mark.parametrize("attempt", attempts, ids=lambda attempt: attempt.name.replace(" ", "-"))


def _assert_caught(attempt: Attempt, faults: list[Fault]) -> None:
    named = [fault for fault in faults if fault.check == attempt.check]
    assert named, f"{attempt.name}: not caught by {attempt.check}, which saw {[str(fault) for fault in faults]}"
    assert any(attempt.advice in str(fault) for fault in named), [str(fault) for fault in named]


def test_an_unchanged_copy_passes_every_check(tree, cache):
    assert [str(fault) for fault in static.check(Repository(tree.root), cache=cache)] == []
    assert [str(fault) for fault in contracts.check(tree.root)] == []


@_each((*_CODE, *attempts_layout.LAYOUT))
def test_reading_the_tree_catches(attempt, tree, cache, faults_before):
    attempt.edit(tree)
    found = set(static.check(Repository(tree.root), cache=cache))
    _assert_caught(attempt, sorted(found - faults_before))


@_each(attempts_history.CHAINS)
def test_the_import_contracts_catch(attempt, tree):
    attempt.edit(tree)
    _assert_caught(attempt, contracts.check(tree.root))


@_each(attempts_history.IMPURE)
def test_importing_the_kernels_catches(attempt, tree):
    attempt.edit(tree)
    _assert_caught(attempt, purity.check(tree.root))


@_each(attempts_history.CHANGES)
def test_the_stage_gate_catches(attempt, tree, cache, faults_before):
    attempt.edit(tree)
    head = tree.commit()
    found = set(gate.judge(Git(tree.root), "clean", head, cache).faults)
    _assert_caught(attempt, sorted(found - faults_before))


def test_a_name_of_an_attempt_says_which_it_is():
    attempts = [
        *_CODE,
        *attempts_layout.LAYOUT,
        *attempts_history.CHAINS,
        *attempts_history.IMPURE,
        *attempts_history.CHANGES,
    ]
    assert len({attempt.name for attempt in attempts}) == len(attempts) >= 40
