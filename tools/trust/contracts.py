"""import-linter's contracts of the root pyproject.toml, run on any checkout: the tree's own src folders come first on the path."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.trust.fault import Fault
from tools.trust.stages import BENCH, KERNELS, PACKAGES, TESTS

CONFIG = "pyproject.toml"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def check(root: Path, config: Path | None = None) -> list[Fault]:
    """`config` names another revision's pyproject.toml to judge by; left out, the tree's own."""
    chosen = config or root / CONFIG
    found = list(_weakened(tomllib.loads(chosen.read_text(encoding="utf-8"))))
    paths = [str(root / stage.folder / "src") for stage in PACKAGES]
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    ran = subprocess.run(
        [*command, "--config", str(chosen), "--no-cache"],
        cwd=root, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        said = _ANSI.sub("", ran.stdout + ran.stderr)
        _, broken, report = said.partition("Broken contracts")
        text = "\n    ".join(line for line in (report if broken else said).splitlines() if line.strip(" -"))
        do = "Remove the import, or one step of the chain; the guidance above says where the code belongs. See CONTRIBUTING.md."
        found.append(Fault("", 0, "import-contracts", text or "import-linter failed", do))
    return found


def _weakened(data: dict[str, Any]) -> Iterator[Fault]:
    """The configuration holds at least what the stages say: a contract quietly thinned out is a fault, not a pass."""
    linter = data.get("tool", {}).get("importlinter", {})
    packages = {stage.package for stage in PACKAGES}

    def fault(what: str) -> Fault:
        return Fault(
            CONFIG,
            0,
            "import-contracts",
            f"tool.importlinter: {what}",
            "Mend the contract: CONTRIBUTING.md says what each stage must not see.",
        )

    if set(linter.get("root_packages", ())) != packages:
        yield fault(f"root_packages; expected {sorted(packages)}")
    if linter.get("exclude_type_checking_imports") is not False or linter.get("include_external_packages") is not True:
        yield fault("expected exclude_type_checking_imports = false and include_external_packages = true")
    direct: set[tuple[str, str]] = set()
    chains: set[tuple[str, str]] = set()
    for contract in linter.get("contracts", ()):
        name = contract.get("name")
        if contract.get("type") != "forbidden" or "ignore_imports" in contract or "as_packages" in contract:
            yield fault(f"contract {name!r}: expected type forbidden without ignore_imports and as_packages")
        pairs = {(a, b) for a in contract.get("source_modules", ()) for b in contract.get("forbidden_modules", ())}
        direct |= pairs
        chains |= set() if contract.get("allow_indirect_imports") else pairs
    for stage in PACKAGES:
        sees = {sight.package for sight in stage.sees}
        for other in sorted(packages - sees - {stage.package}):
            if (stage.package, other) not in chains:
                yield fault(f"no contract forbids {stage.package} to import {other}, indirect chains included")
    for hidden in ("tops_manifest.workloads", "tops_manifest.cost"):
        if (KERNELS.package, hidden) not in chains:
            yield fault(f"no contract forbids tops_kernels to import {hidden}, indirect chains included")
    for stage in (TESTS, BENCH):
        if (stage.package, f"{KERNELS.package}.*") not in direct:
            yield fault(f"no contract forbids {stage.package} to import inner modules of tops_kernels")
