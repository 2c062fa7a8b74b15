"""The README's Python runs and prints what its comments say; its commands are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tops_tests.cli import main

_TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_it_says() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", _TEXT, re.DOTALL)
    comments = (line.rpartition("# ") for line in block.splitlines())
    said = [comment for code, mark, comment in comments if mark and (not code or "print(" in code)]
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == said


def test_every_command_it_names_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    commands = set(re.findall(r"^    tops-tests (\w+)", _TEXT, re.MULTILINE))
    assert commands == {"certify", "verify", "list", "tolerances"}
    for command in commands:
        with pytest.raises(SystemExit) as caught:
            main([command, "--help"])
        assert caught.value.code == 0
        assert "example" in capsys.readouterr().out
