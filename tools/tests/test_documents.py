"""The documents hold: links lead somewhere, the README's Python runs, commands it names exist, no path of one machine is left in."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.project import ROOT, packages, run
from tools.trust.source import Repository

_README = (ROOT / "README.md").read_text(encoding="utf-8")
_DOCUMENTS = sorted(path for path in Repository(ROOT).files if path.endswith(".md"))


def _anchors(text: str) -> set[str]:
    """The headings' anchors, as the hosting site makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_every_link_leads_to_a_tracked_file_and_a_heading_of_it(document: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / document).parent / path).resolve() if path else ROOT / document
        there = target.exists() and target.is_relative_to(ROOT)
        if not there or (anchor and anchor not in _anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert broken == []


def test_a_broken_anchor_would_be_seen() -> None:
    assert _anchors("# How tops-bench measures\n## The TPU kernel's `grid`\n") == {
        "how-tops-bench-measures",
        "the-tpu-kernels-grid",
    }


def test_the_readmes_python_runs_and_prints_what_it_says() -> None:
    blocks = re.findall(r"```python\n(.*?)```", _README, re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        said = [line.rpartition("# ")[2] for line in block.splitlines() if line.startswith("print(")]
        assert said
        done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == said


def test_the_readme_has_two_commands_and_ci_runs_them() -> None:
    marks = re.findall(r"<!-- command: ([\w-]+) -->\n```sh\n(.*?)\n```", _README, re.DOTALL)
    assert [mark for mark, _ in marks] == ["main-job", "tests"]
    for (mark, command), script in zip(marks, ("main-job.sh", "unit.sh"), strict=True):
        assert "\n" not in command
        assert command.startswith("pip install -q uv && uv run ")
        assert f"readme_command {mark}" in (ROOT / "tools" / "ci" / script).read_text(encoding="utf-8")


def test_each_command_of_the_readmes_table_is_one() -> None:
    commands = re.findall(r"^\| \[tops-[\w-]+\].*\| `([^`]+)` \|$", _README, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        name, *arguments = command.split()
        assert packages()[name].command
        with contextlib.redirect_stdout(io.StringIO()):
            done = run(sys.executable, "-m", name.replace("-", "_"), *arguments[:1], "--help")
        assert done.returncode == 0, done.stderr
        assert "example" in done.stdout


def test_each_package_has_a_readme_a_changelog_section_and_a_license() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for package in packages().values():
        readme = (package.folder / "README.md").read_text(encoding="utf-8")
        assert len(readme.splitlines()) > 20, package.name
        section = re.search(rf"^## {package.name}\n(.*?)(?=^## |\Z)", changes, re.DOTALL | re.MULTILINE)
        assert section is not None
        assert f"### {package.version}\n" in section[1]
        assert (package.folder / "LICENSE").exists()


def test_no_path_of_one_machine_and_no_package_index_is_left_in() -> None:
    homes = [rf"/{name}/" for name in ("root", "farm", "Users", r"home/\w+")]
    hosts = [r"pypi\." + "org", r"files\.pythonhosted"]
    found = []
    for path in Repository(ROOT).files:
        if path == "uv.lock" or not (ROOT / path).is_file():
            continue
        text = Path(ROOT / path).read_bytes().decode("utf-8", "replace")
        found += [(path, pattern) for pattern in [*homes, *hosts] if re.search(pattern, text)]
    own = "tools/tests/test_documents.py"
    assert [entry for entry in found if entry[0] != own] == []
