"""The workflows, .ci/run and pre-commit run the same scripts: none keeps a command of its own that could drift."""

import itertools
import os
import re
import subprocess
import tomllib
from typing import Any

import pytest
import yaml

from tools.project import ROOT, packages

_WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def _load(name: str) -> dict[Any, Any]:
    return dict(yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")))


def _runs(workflow: dict[Any, Any]) -> list[tuple[str, str]]:
    """(job, command) of every `run` step."""
    return [
        (name, step["run"]) for name, job in workflow["jobs"].items() for step in job.get("steps", []) if "run" in step
    ]


def _stages() -> list[str]:
    found = re.search(r'^stages="(.*)"$', (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1].split()


def test_ci_yml_runs_the_stages_of_ci_run_in_its_order_each_by_its_script() -> None:
    workflow = _load("ci.yml")
    assert _runs(workflow) == [(stage, f"tools/ci/{stage}.sh") for stage in _stages()]
    jobs = list(workflow["jobs"].items())
    for (before, _), (name, job) in itertools.pairwise(jobs):
        assert job["needs"] == before, name


def test_ci_yml_runs_on_pull_requests_and_on_main_with_both_lines_of_jax() -> None:
    workflow = _load("ci.yml")
    triggers = workflow[True]  # YAML 1.1 reads `on` as a boolean
    assert "pull_request" in triggers
    assert triggers["push"] == {"branches": ["main"]}
    for job in ("unit", "build"):
        assert workflow["jobs"][job]["strategy"]["matrix"]["python"] == ["3.11", "3.13"]


def test_the_tpu_workflow_runs_by_label_and_weekly() -> None:
    workflow = _load("tpu.yml")
    assert workflow[True]["pull_request"] == {"types": ["labeled"]}
    assert len(workflow[True]["schedule"]) == 1
    assert "needs-tpu-test" in workflow["jobs"]["tpu"]["if"]


@pytest.mark.parametrize("path", _WORKFLOWS, ids=lambda path: path.name)
def test_every_script_a_workflow_calls_is_there_and_runs(path: Any) -> None:
    for job, command in _runs(_load(path.name)):
        for script in re.findall(r"tools/[\w/.-]+\.(?:sh|py)", command):
            assert (ROOT / script).is_file(), (job, script)
            assert script.endswith(".py") or os.access(ROOT / script, os.X_OK), script


@pytest.mark.parametrize("path", _WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_to_a_commit_and_rights_are_read_alone(path: Any) -> None:
    workflow = _load(path.name)
    assert set(workflow["permissions"].values()) == {"read"}
    for name, job in workflow["jobs"].items():
        assert "timeout-minutes" in job or "uses" in job, name
        for step in job.get("steps", []):
            if "uses" in step:
                assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
                if step["uses"].startswith("actions/checkout@"):
                    assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", sorted((ROOT / "tools" / "ci").glob("*.sh")), ids=lambda path: path.name)
def test_every_script_is_sound_bash_and_stops_at_the_first_error(path: Any) -> None:
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    text = path.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text or 'source "$(dirname "$0")/lib.sh"' in text
    assert not re.search(r"\b(?:pip|uvx?) install\b(?!.*\buv\b)", text.replace("uv pip install", "")), path


def test_pre_commit_runs_locked_tools_and_no_version_of_its_own() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    for hook in config["repos"][0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(("uv run --locked ", "tools/ci/")), hook["id"]
        assert not re.search(r"\d+\.\d+", hook["entry"])


def test_the_root_has_tool_configuration_and_dependency_groups_alone() -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(root) == {"tool", "dependency-groups"}
    assert {package.name for package in packages().values()} <= set(root["dependency-groups"]["dev"])


def test_what_a_user_installs_needs_jax_and_numpy_alone() -> None:
    def third(name: str) -> set[str]:
        requirements = {re.split(r"[<>=]", one)[0] for one in packages()[name].requirements}
        return {one for one in requirements if not one.startswith("tops-")}

    assert third("tops-manifest") == set()
    assert third("tops-kernels") == {"jax", "numpy"}
    assert third("tops-workloads") == {"jax", "numpy"}
    for package in packages().values():
        project = tomllib.loads((package.folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project["requires-python"] == ">=3.11"
        assert (package.source / "py.typed").is_file()
        assert (package.source / "__main__.py").is_file() == package.command
