"""Certificates: what was checked, against what, on what, and how far off it was. JSON, one file a key, written whole or not at all."""

import dataclasses
import datetime
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import tops_kernels
import tops_manifest
from tops_manifest import Op
from tops_manifest.model import Pass
from tops_manifest.workloads import Case
from tops_tests import digests, tolerances
from tops_tests.canonical import canonical, sha256
from tops_tests.optest import Measured

SCHEMA = 1
_MAX_BYTES = 1 << 16  # a certificate is a page; anything else in its place is none
_FIELDS: Mapping[str, type] = {
    "schema": int, "op": str, "implementation": str, "pass": str, "row": str, "dtypes": dict, "params": dict,
    "inputs": dict, "scale": int, "platform": str, "device_kind": str, "interpreted": bool, "digests": dict,
    "versions": dict, "errors": dict, "issued": str, "content": str,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """What a certificate is about; `row` and `dtypes` name the row at its own size, however far it was scaled down."""

    op: Op
    implementation: str
    which: Pass
    row: str
    dtypes: Mapping[str, str]
    interpreted: bool

    @property
    def path(self) -> Path:
        platform = jax.default_backend() + ("-interpret" if self.interpreted else "")
        order = [*self.op.free_dtypes, *(var.name for var in self.op.dtypes if var.source is not None)]
        dtypes = dict.fromkeys(self.dtypes[name] for name in order if name in self.dtypes)  # as Case.label has them
        label = "-".join((self.row, *dtypes)).replace("/", "_")
        name = f"{self.implementation}-{self.which}-{label}-{platform}.json"
        return folder() / self.op.name / name


def folder() -> Path:
    return tops_kernels.workspace_dir() / "certificates"


def issue(key: Key, case: Case, errors: Mapping[str, Measured]) -> Path:
    """Writes the certificate of a key for which everything passed."""
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "op": key.op.name,
        "implementation": key.implementation,
        "pass": key.which,
        "row": key.row,
        "dtypes": dict(key.dtypes),
        "params": dict(case.params),
        "inputs": {name: str(spec) for name, spec in case.inputs().items()},
        "scale": case.scale,
        "platform": jax.default_backend(),
        "device_kind": jax.devices()[0].device_kind,
        "interpreted": key.interpreted,
        "digests": digests.digests(key.op, key.implementation),
        "versions": digests.versions(),
        "errors": {name: dataclasses.asdict(error) for name, error in errors.items()},
        "issued": datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z"),
    }
    _write(key.path, {**body, "content": sha256(body)})
    return key.path


def revoke(key: Key) -> bool:
    """Removes the certificate of a key that failed; True where there was one."""
    existed = key.path.exists()
    key.path.unlink(missing_ok=True)
    return existed


def write_stage(ops: Mapping[str, Op]) -> None:
    """stage.json: the test stage's own digests, so that a reader without this package can tell a stale certificate."""
    _write(
        folder() / "stage.json",
        {
            "schema": SCHEMA,
            "oracle": {name: digests.oracle_digest(op) for name, op in ops.items()},
            "tolerance": {name: tolerances.digest(name) for name in ops},
        },
    )


def _write(path: Path, data: object) -> None:
    """Atomically: a reader sees the old file or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(canonical(data) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(path: Path) -> tuple[dict[str, Any] | None, str]:
    """(the certificate, "") where the file holds one by form and content hash; else (None, why not)."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None, f"the file is over {_MAX_BYTES} bytes: no certificate"
        data = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        return None, f"not readable as JSON: {error}"
    if not isinstance(data, dict):
        return None, f"a {type(data).__name__}; expected an object"
    if data.get("schema") != SCHEMA:
        return None, f"schema {data.get('schema')!r}; expected {SCHEMA}"
    missing, unknown = sorted(_FIELDS.keys() - data.keys()), sorted(data.keys() - _FIELDS.keys())
    if missing or unknown:
        return None, f"fields missing: {missing}, unknown: {unknown}"
    wrong = [name for name, kind in _FIELDS.items() if type(data[name]) is not kind]
    if wrong:
        return None, f"{wrong[0]} is a {type(data[wrong[0]]).__name__}; expected {_FIELDS[wrong[0]].__name__}"
    content = data["content"]
    try:
        actual = sha256({name: value for name, value in data.items() if name != "content"})
    except ValueError as error:
        return None, f"not canonical: {error}"
    if actual != content:
        return None, "edited by hand: its content hash does not fit its content"
    return data, ""


def invalid(path: Path) -> str:
    """Why this file is no valid certificate here and now; "" where it is one. Says what to do."""
    data, why = read(path)
    if data is None:
        return why
    if data["op"] not in tops_manifest.op_names():
        return f"of op {data['op']!r}, which the manifest has not"
    op = tops_manifest.op(data["op"])
    key = Key(op, data["implementation"], data["pass"], data["row"], data["dtypes"], data["interpreted"])
    if data["platform"] != jax.default_backend():
        return f"issued on {data['platform']}; this machine runs {jax.default_backend()}"
    if data["device_kind"] != jax.devices()[0].device_kind:
        return f"issued on {data['device_kind']}; this machine has {jax.devices()[0].device_kind}"
    if path.resolve() != key.path.resolve():
        return f"under a name that is not its own ({key.path.name})"
    try:
        now, changed = digests.digests(op, key.implementation), digests.source_mtime(op, key.implementation)
    except (LookupError, ValueError) as error:
        return f"of {key.implementation}, which is no more: {error}"
    again = f"run `tops-tests certify {op.name}`"
    for part, digest in now.items():
        if data["digests"].get(part) != digest:
            return f"stale: {part} is {digest[:8]} now, certified {str(data['digests'].get(part))[:8]}; {again}"
    for package, version in digests.versions().items():
        if data["versions"].get(package) != version:
            return f"issued with {package} {data['versions'].get(package)}, here is {version}; {again}"
    try:
        issued = datetime.datetime.fromisoformat(data["issued"]).timestamp()
    except ValueError:
        return f"issued {data['issued']!r}: no date"
    if issued < changed:
        return f"older than its sources, which changed since {data['issued']}; {again}"
    return _errors_fault(data)


def _errors_fault(data: Mapping[str, Any]) -> str:
    """A certificate whose own errors do not keep its own tolerances vouches for nothing."""
    if not data["errors"]:
        return "no errors measured"
    for name, error in data["errors"].items():
        values = list(error.values()) if isinstance(error, dict) and set(error) == {"measured", "tolerance"} else []
        if len(values) != 2 or not all(type(value) in (int, float) for value in values):
            return f"errors.{name}: expected measured and tolerance"
        if not 0 <= error["measured"] <= error["tolerance"]:
            return f"errors.{name}: measured {error['measured']}, tolerance {error['tolerance']}"
    return ""


def all_paths() -> tuple[Path, ...]:
    """Every file that stands where a certificate would."""
    return tuple(sorted(path for path in folder().glob("*/*.json")))
