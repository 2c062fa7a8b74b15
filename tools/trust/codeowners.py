"""CODEOWNERS is derived from the stages, so that the two cannot disagree."""

from collections.abc import Iterator

from tools.trust.fault import Fault
from tools.trust.source import Repository
from tools.trust.stages import STAGES

PATH = ".github/CODEOWNERS"
_HEAD = """\
# Written by `uv run python -m tools.trust codeowners --write` from tools/trust/stages.py; a check fails when the two differ.
# The last line that matches a path decides.
"""


def text() -> str:
    """The whole file."""
    rows = [(f"/{path}", stage.owner) for stage in STAGES for path in stage.paths]
    width = max(len(path) for path, _ in rows)
    return _HEAD + "".join(f"{path.ljust(width)}  {owner}\n" for path, owner in rows)


def check(repository: Repository) -> Iterator[Fault]:
    found = repository.text(PATH) if PATH in repository.files else ""
    if found == text():
        return
    lines = set(text().splitlines()) ^ set(found.splitlines())
    yield Fault(
        PATH, 0, "codeowners", f"differs from the stages: {min(lines, default='order of lines')}",
        "Owners stand in tools/trust/stages.py: change that, then run `uv run python -m tools.trust codeowners --write`. "
        "That is a change of the tools, alone.",
    )  # fmt: skip
