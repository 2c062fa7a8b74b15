"""Certificates, read as data: whether the test stage vouches for an implementation, here and now, or why it does not.

tops-tests writes them (`tops-tests certify`); nothing of it is imported. Its present digests stand in stage.json beside
the certificates, so that one issued under an older oracle or tolerance can be told.
"""

import dataclasses
import datetime
import functools
import hashlib
import math
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

import tops_kernels
from tops_bench import files
from tops_bench.baselines import Baseline
from tops_manifest.digest import contract_digest
from tops_manifest.model import Pass
from tops_manifest.workloads import Case

SCHEMA = 1
_MAX_BYTES = 1 << 16
_FIELDS: Mapping[str, type] = {
    "schema": int, "op": str, "implementation": str, "pass": str, "row": str, "dtypes": dict, "params": dict,
    "inputs": dict, "scale": int, "platform": str, "device_kind": str, "interpreted": bool, "digests": dict,
    "versions": dict, "errors": dict, "issued": str, "content": str,
}  # fmt: skip
_VERSIONS = ("tops-manifest", "tops-kernels", "jax", "jaxlib", "numpy")


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """Either valid, or not and why. `content` is the certificate's own hash, `scale` how far its row was scaled down."""

    valid: bool
    why_not: str = ""
    content: str = ""
    issued: str = ""
    scale: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What would need a certificate: an implementation ("xla", or a Baseline) of one pass of a row, at its own size."""

    case: Case
    which: Pass
    subject: str | Baseline

    @property
    def implementation(self) -> str:
        return self.subject if isinstance(self.subject, str) else self.subject.implementation

    @property
    def path(self) -> Path:
        case, op = self.case, self.case.op
        order = [*op.free_dtypes, *(var.name for var in op.dtypes if var.source is not None)]
        dtypes = dict.fromkeys(case.dtypes[name] for name in order if name in case.dtypes)
        label = "-".join((case.row, *dtypes)).replace("/", "_")
        name = f"{self.implementation}-{self.which}-{label}-{jax.default_backend()}.json"
        return folder() / op.name / name

    def digest(self) -> str:
        """Of the implementation's sources, as they are now."""
        if isinstance(self.subject, Baseline):
            return self.subject.digest()
        return tops_kernels.source_digest(self.case.op.name, self.subject)

    def changed(self) -> float:
        """When a source was last written."""
        if isinstance(self.subject, Baseline):
            return self.subject.source.stat().st_mtime
        return tops_kernels.source_mtime(self.case.op.name, self.subject)


def folder() -> Path:
    return tops_kernels.workspace_dir() / "certificates"


def certificate(claim: Claim) -> Certificate:
    """Looks a claim's certificate up and holds it against the machine, the sources and the stage's digests."""
    if not claim.path.exists():
        return Certificate(False, "no certificate")
    try:
        data = files.read_object(claim.path, _MAX_BYTES)
    except files.FileError as error:
        return Certificate(False, f"certificate not readable: {error}")
    why_not = (
        _form_fault(data)
        or _claim_fault(data, claim)
        or _machine_fault(data)
        or _stale(data, claim)
        or _version_fault(data)
        or _age_fault(data, claim)
        or _errors_fault(data)
    )
    if why_not:
        return Certificate(False, f"certificate {why_not}")
    return Certificate(True, "", data["content"], data["issued"], data["scale"])


def _form_fault(data: Mapping[str, Any]) -> str:
    if data.get("schema") != SCHEMA:
        return f"has schema {data.get('schema')!r}, expected {SCHEMA}"
    missing, unknown = sorted(_FIELDS.keys() - data.keys()), sorted(data.keys() - _FIELDS.keys())
    if missing or unknown:
        return f"lacks fields {missing}, has unknown {unknown}"
    for name, kind in _FIELDS.items():
        if type(data[name]) is not kind:
            return f"has a {type(data[name]).__name__} as {name}, expected {kind.__name__}"
    try:
        content = files.canonical({name: value for name, value in data.items() if name != "content"})
    except ValueError as error:
        return f"is not canonical: {error}"
    if hashlib.sha256(content).hexdigest() != data["content"]:
        return "was edited by hand: its content hash does not fit its content"
    return ""


def _claim_fault(data: Mapping[str, Any], claim: Claim) -> str:
    case = claim.case
    expected = {
        "op": case.op.name,
        "implementation": claim.implementation,
        "pass": claim.which,
        "row": case.row,
        "dtypes": dict(case.dtypes),
        "params": dict(case.params),
        "interpreted": False,
    }
    for name, value in expected.items():
        if data[name] != value:
            return f"is about {name} {data[name]!r}, this is {value!r}"
    given = {name: (spec.dtype, len(spec.shape)) for name, spec in case.inputs().items()}
    about = {name: (str(text).partition("[")[0], _rank(str(text))) for name, text in data["inputs"].items()}
    return f"is about inputs {data['inputs']}, this has {given}" if about != given else ""


def _rank(text: str) -> int:
    """Of "float32[2,3]"."""
    sizes = text.partition("[")[2].rstrip("]")
    return len(sizes.split(",")) if sizes else 0


def _machine_fault(data: Mapping[str, Any]) -> str:
    if data["platform"] != jax.default_backend():
        return f"was issued on {data['platform']}, this machine runs {jax.default_backend()}"
    kind = jax.devices()[0].device_kind
    return f"was issued on {data['device_kind']}, this machine has {kind}" if data["device_kind"] != kind else ""


def _stale(data: Mapping[str, Any], claim: Claim) -> str:
    op = claim.case.op.name
    try:
        stage = files.read_object(folder() / "stage.json", _MAX_BYTES * 16)
        now = {"contract": contract_digest(op), "kernel": claim.digest()}
        now |= {part: stage[part][op] for part in ("oracle", "tolerance")}
    except files.FileError as error:
        return f"cannot be told from a stale one: {error}"
    except (LookupError, TypeError, ValueError) as error:
        return f"cannot be told from a stale one: no digest: {error}"
    for part, digest in now.items():
        certified = str(data["digests"].get(part))
        if certified != digest:
            return f"is stale: of {part} {certified[:6]}, this is {str(digest)[:6]}"
    return ""


@functools.cache
def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version()}
    for package in _VERSIONS:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def _version_fault(data: Mapping[str, Any]) -> str:
    for package, here in _versions().items():
        if data["versions"].get(package) != here:
            return f"was issued with {package} {data['versions'].get(package)}, here is {here}"
    return ""


def _age_fault(data: Mapping[str, Any], claim: Claim) -> str:
    try:
        issued = datetime.datetime.fromisoformat(data["issued"])
    except ValueError:
        return f"has {data['issued']!r} for a date"
    if issued.tzinfo is None or issued > datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5):
        return f"has {data['issued']!r} for a date: expected one with a time zone, and past"
    return f"is older than its sources (issued {data['issued']})" if issued.timestamp() < claim.changed() else ""


def _errors_fault(data: Mapping[str, Any]) -> str:
    """One whose own errors do not keep its own tolerances vouches for nothing."""
    if not data["errors"]:
        return "has no errors measured"
    for name, error in data["errors"].items():
        if not isinstance(error, dict) or set(error) != {"measured", "tolerance"}:
            return f"has no measured and tolerance for {name}"
        measured, tolerance = error["measured"], error["tolerance"]
        if not all(type(value) in (int, float) and math.isfinite(value) for value in (measured, tolerance)):
            return f"has no numbers for {name}"
        if not 0 <= measured <= tolerance:
            return f"has an error of {measured} for {name}, over its tolerance {tolerance}"
    return ""
