"""What a certificate vouches for, as digests; and when its sources last changed."""

import hashlib
from importlib.metadata import version
from pathlib import Path
from platform import python_version

import tops_kernels
import tops_workloads
from tops_manifest import Op
from tops_manifest.digest import contract_digest
from tops_tests import baselines, oracles, tolerances

# What, besides the family's oracle, decides whether a kernel passes.
_JUDGES = ("oracles/__init__.py", "certify.py", "compare.py", "optest.py", "subject.py", "untouched.py")
_PACKAGES = ("tops-manifest", "tops-workloads", "tops-kernels", "tops-tests", "jax", "jaxlib", "numpy")
_HERE = Path(__file__).parent
_DRAWING = Path(tops_workloads.__file__).parent


def digests(op: Op, implementation: str) -> dict[str, str]:
    """contract, kernel, oracle and tolerance, as they are now."""
    is_baseline = implementation.startswith("baseline:")
    return {
        "contract": contract_digest(op.name),
        "kernel": baselines.digest(op) if is_baseline else tops_kernels.source_digest(op.name, implementation),
        "oracle": oracle_digest(op),
        "tolerance": tolerances.digest(op.name),
    }


def oracle_digest(op: Op) -> str:
    """Over the oracle, the code that compares with it, and that which draws the inputs; names relative to their packages."""
    total = hashlib.sha256()
    for path in _judge_files(op):
        data = path.read_bytes()
        total.update(
            f"{path.relative_to(_HERE if path.is_relative_to(_HERE) else _DRAWING).as_posix()} {len(data)}\n".encode()
        )
        total.update(data)
    return total.hexdigest()


def source_mtime(op: Op, implementation: str) -> float:
    """When a source of the kernel or of its judges was last written."""
    if implementation.startswith("baseline:"):
        kernel = baselines.source(op).stat().st_mtime
    else:
        kernel = tops_kernels.source_mtime(op.name, implementation)
    return max(kernel, *(path.stat().st_mtime for path in _judge_files(op)))


def versions() -> dict[str, str]:
    return {name: version(name) for name in _PACKAGES} | {"python": python_version()}


def _judge_files(op: Op) -> tuple[Path, ...]:
    return (oracles.module_path(op), *(_HERE / name for name in _JUDGES), *sorted(_DRAWING.glob("*.py")))
