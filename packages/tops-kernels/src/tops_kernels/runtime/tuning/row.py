"""What was found out about a call, as a row of a table."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tops_manifest
from tops_kernels.runtime import tables
from tops_kernels.runtime.signature import Signature, signature
from tops_kernels.runtime.sources import source_digest
from tops_kernels.runtime.tables import Row
from tops_manifest import ArraySpec

MARGIN = 0.98  # of the heuristic's time: what is nearer is no gain worth a row


def signature_of(op: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> Signature:
    """inputs: name -> anything with shape and dtype, or None. Raises what a call of that kind would raise."""
    specs = {
        name: None if spec is None else ArraySpec(tuple(spec.shape), str(spec.dtype)) for name, spec in inputs.items()
    }
    found = signature(tops_manifest.bind(tops_manifest.op(op), specs, params), specs)
    if found is None:
        raise ValueError(f"{op}: sizes are symbolic; expected known ones")
    return found


def row_for(
    call: Signature,
    *,
    implementation: str,
    which: str,
    chip: str,
    config: Any,
    origin: str,
    seconds: float,
    heuristic_seconds: float,
    toolchain: Mapping[str, str],
    with_sources: bool,
    vmem_bytes: int = 0,
) -> Row:
    """A row, held against the format. Raises ValueError."""
    _, _, _, _, dtype, dims = call.key(implementation, which, chip)
    row = Row(
        op=call.op,
        implementation=implementation,
        which=which,
        chip=chip,
        dtype=dtype,
        dims=dims,
        config=tuple(sorted(dataclasses.asdict(config).items())),
        origin=origin,
        seconds=seconds,
        heuristic_seconds=heuristic_seconds,
        toolchain=tuple(sorted(toolchain.items())),
        kernel=source_digest(call.op, implementation) if with_sources else "",
        call=str(call),
        vmem_bytes=vmem_bytes,
    )
    return tables.parse(tables.dumps([row]), "the row")[0]
