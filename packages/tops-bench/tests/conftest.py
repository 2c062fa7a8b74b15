"""A workspace of each test's own, certificates as the test stage writes them, and small records."""

import dataclasses
import datetime
import hashlib
import json
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import pytest

import tops_kernels
from tops_bench import baselines
from tops_bench.records import Record, Row
from tops_manifest.digest import contract_digest
from tops_manifest.workloads import Case, cases


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ceilings and certificates are looked for: nothing of the user's is read or written."""
    monkeypatch.setenv("TOPS_WORKSPACE", str(tmp_path / "workspace"))
    return tops_kernels.workspace_dir()


def seal(body: dict[str, Any]) -> dict[str, Any]:
    """With its content hash, as schema 1 defines it."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return {**body, "content": hashlib.sha256(text.encode()).hexdigest()}


@pytest.fixture
def case() -> Case:
    return cases("rms_norm")[0]


@dataclasses.dataclass(frozen=True)
class Issuer:
    """Writes certificates of rms_norm, and the test stage's digests beside them."""

    root: Path

    def stage(self, **change: Any) -> None:
        body = {"schema": 1, "oracle": {"rms_norm": "0" * 64}, "tolerance": {"rms_norm": "1" * 64}}
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "stage.json").write_text(json.dumps({**body, **change}))

    def body(self, case: Case, implementation: str = "xla", which: str = "fwd") -> dict[str, Any]:
        """All but the content hash of one that is valid."""
        if implementation.startswith("baseline:"):
            kernel = next(one.digest() for one in baselines.of(case.op) if one.implementation == implementation)
        else:
            kernel = tops_kernels.source_digest(case.op.name, implementation)
        packages = ("tops-manifest", "tops-kernels", "jax", "jaxlib", "numpy")
        return {
            "schema": 1,
            "op": case.op.name,
            "implementation": implementation,
            "pass": which,
            "row": case.row,
            "dtypes": dict(case.dtypes),
            "params": dict(case.params),
            "inputs": {name: str(spec) for name, spec in case.inputs().items()},
            "scale": 8,
            "platform": jax.default_backend(),
            "device_kind": jax.devices()[0].device_kind,
            "interpreted": False,
            "digests": {
                "contract": contract_digest(case.op.name),
                "kernel": kernel,
                "oracle": "0" * 64,
                "tolerance": "1" * 64,
            },
            "versions": {
                **{name: version(name) for name in packages},
                "tops-tests": "0.1.0",
                "python": platform.python_version(),
            },
            "errors": {"y": {"measured": 1e-7, "tolerance": 1e-6}},
            "issued": datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z"),
        }

    def path(self, case: Case, implementation: str = "xla", which: str = "fwd") -> Path:
        label = "-".join([case.row, *dict.fromkeys(case.dtypes.values())])
        return self.root / case.op.name / f"{implementation}-{which}-{label}-{jax.default_backend()}.json"

    def issue(self, case: Case, implementation: str = "xla", which: str = "fwd", /, **change: Any) -> Path:
        path = self.path(case, implementation, which)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(seal({**self.body(case, implementation, which), **change})))
        return path


@pytest.fixture
def issuer(workspace: Path) -> Issuer:
    found = Issuer(workspace / "certificates")
    found.stage()
    return found


@pytest.fixture
def make_row() -> Callable[..., Row]:
    """A measured row; what is given replaces what stands here."""

    def make(**change: Any) -> Row:
        samples = tuple(change.pop("samples", (1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0)))
        middle = sorted(samples)[len(samples) // 2] if samples else None
        start = Row(
            op="rms_norm",
            which="fwd",
            row="r",
            label="r-float32",
            scale=1,
            dtypes={"X": "float32"},
            params={},
            inputs={"x": "float32[8,128]"},
            contender="xla",
            status="measured",
            method="chained loop",
            median=middle,
            low=min(samples, default=None),
            high=max(samples, default=None),
            confidence=0.98,
            iqr=0.1,
            samples=samples,
            iterations=3,
            compile_seconds=0.1,
            flops={"vpu": 4096.0},
            nbytes=8192,
            flops_rate=4096.0,
            bytes_rate=8192.0,
            bound="memory",
            efficiency=0.5,
            certificate="c" * 64,
        )
        return dataclasses.replace(start, **change)

    return make


@pytest.fixture
def make_record(make_row: Callable[..., Row]) -> Callable[..., Record]:
    def make(*rows: Row, **change: Any) -> Record:
        start = Record(
            machine={"platform": "cpu", "device_kind": "cpu", "host": "h", "cores": 2},
            machine_key="k",
            versions={"jax": "0"},
            started="2026-01-01T00:00:00+00:00",
            quick=False,
            ceilings={"matmul": {"float32": 1e11}, "copy": {"65536": 3e10, "1048576": 1e10}},
            rows=rows or (make_row(),),
        )
        return dataclasses.replace(start, **change)

    return make
