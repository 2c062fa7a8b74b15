"""The Python of the ops' documents runs and prints what its comments say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENTS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", ["simple_gla.md"])
def test_the_example_prints_what_it_says(name: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCUMENTS / name).read_text(encoding="utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", "".join(blocks)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == {"True"}
