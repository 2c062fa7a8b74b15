"""The README's Python runs and prints what its comments say."""

import re
import subprocess
import sys
from pathlib import Path

import tops_kernels

_TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_examples_print_what_they_say() -> None:
    blocks = re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL)
    assert len(blocks) >= 3
    said = []
    for line in "".join(blocks).splitlines():
        code, mark, comment = line.rpartition("# ")
        if mark and (not code or "print(" in code):
            said.append(comment)
    done = subprocess.run(
        [sys.executable, "-c", "".join(blocks)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == said


def test_every_public_name_is_told_of() -> None:
    told = set(re.findall(r"(?:`|tops_kernels\.)(\w+)", _TEXT))
    assert set(tops_kernels.__all__) - told == {"Support"}  # what `support` returns
