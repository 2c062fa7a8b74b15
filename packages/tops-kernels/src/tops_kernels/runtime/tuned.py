"""Tuned configurations: looked up by a call's bucket while a kernel is traced for a chip that is known. Heuristics stand behind.

Two sources: the package's own data, and files that a user names with `tuned(path)`. Nothing else: no folder is searched, nothing is
written, nothing is tuned here.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import tops_manifest
from tops_kernels.runtime import tables
from tops_kernels.runtime.chip import INTERPRETER, chip_name
from tops_kernels.runtime.overrides import Override, chosen, entered
from tops_kernels.runtime.signature import Signature
from tops_kernels.runtime.storing import warn_once
from tops_kernels.runtime.tables import Row, Table, TableError
from tops_kernels.runtime.variables import TUNED
from tops_kernels.runtime.versions import version
from tops_manifest import ArraySpec

TABLE = "tuned"  # what an entry of the overrides is called that holds a table
RECORD = "record"  # and one that holds a Recorder


class Config(Protocol):
    """What a kernel's configuration must say of itself to be tuned."""

    def misfit(self, which: str, inputs: Mapping[str, ArraySpec], params: Mapping[str, Any]) -> str:
        """Why this configuration must not be used for a call on the chip that is traced for; "" where it may."""
        ...


class Recorder:
    """Notes the calls that a function makes, while it is traced within `entered(((op, RECORD, recorder), ...))`."""

    def __init__(self) -> None:
        self.seen: dict[tuple[Signature, str], None] = {}

    def note(self, call: Signature, which: str) -> None:
        self.seen[call, which] = None


def configured(
    op: str,
    call: Signature | None,
    override: Override,
    which: str,
    backend: str | None,
    interpret: object,
    kinds: Mapping[str, type[Config]],
) -> Mapping[str, Any]:
    """Implementation -> its configuration for one pass of a call: asked for, else tuned, else None for the heuristic's.

    Those that the call may run are in it, settled here: a kernel itself is traced when the call is lowered, and by then no block that
    asks for a configuration need be open.

    Args: see `chosen` and `tuned_config`; backend, interpret: the call's own.
    Raises: TypeError for a configuration asked for that is of none of the kinds.
    """
    asked = chosen(op, override, which, kinds)
    if interpret is not False:
        backend = backend or "pallas_tpu"
    wanted = [key for key in kinds if backend in (None, key)]
    return {key: asked[key] or tuned_config(call, override, key, which, interpret, kinds[key]) for key in wanted}


def tuned_config(
    call: Signature | None, override: Override, implementation: str, which: str, interpret: object, kind: type[Config]
) -> Any:
    """The configuration that a table has for this call; None where none has, or what it has does not fit.

    Args:
      call: what is traced; None where that is not known.
      override: as `current(op)` gave it.
      implementation: a kernel_map key. which: "fwd" or "vjp". interpret: the call's own.
      kind: the implementation's configuration.
    """
    if call is None:
        return None
    entries = dict(override)
    recorder, explicit = entries.get(RECORD), entries.get(TABLE)
    if isinstance(recorder, Recorder):
        recorder.note(call, which)
    if not TUNED.value():
        return None
    on = chip_name(implementation) if interpret is False else INTERPRETER
    if not on:
        return None
    key = call.key(implementation, which, on)
    if isinstance(explicit, Table):
        config = _fitting(explicit.find(key), kind, call)
        if config is not None or explicit.alone:
            return config
    return None if on == INTERPRETER else _fitting(package_table(call.op, on).find(key), kind, call)


def _fitting(row: Row | None, kind: type[Config], call: Signature) -> Config | None:
    if row is None:
        return None
    config, why = build(kind, row.config)
    if config is not None:
        why = config.misfit(row.which, dict(call.inputs), dict(call.params))
        if not why:
            return config
    message = (
        f"{row.op}: a tuned configuration for {row.chip} is ignored, and the heuristic's is used: {why}. It was for {row.implementation} "
        f"{row.which}, {row.dtype} {dict(row.dims)}: {dict(row.config)}"
    )
    warn_once(message, message)
    return None


def build(kind: type[Config], fields: tables.Pairs) -> tuple[Config | None, str]:
    """(configuration, "") from fields by name, or (None, why not)."""
    expected = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # all of them are dataclasses
    given = dict(fields)
    unknown = given.keys() - expected.keys()
    missing = {
        name
        for name, field in expected.items()
        if name not in given and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    wrong = {name for name, value in given.items() if name in expected and type(value) is not expected[name].type}
    for what, names in (("unknown", unknown), ("missing", missing), ("of the wrong type", wrong)):
        if names:
            return None, f"{kind.__name__}: {', '.join(sorted(names))} {what}"
    try:
        return kind(**given), ""
    except (ValueError, TypeError) as error:
        return None, str(error)


@functools.lru_cache(maxsize=256)
def package_table(op: str, chip: str) -> Table:
    """The package's own rows of one op for one chip."""
    from importlib import resources  # only who traces a kernel for a known chip needs it

    file = resources.files("tops_kernels").joinpath("tuned", chip, f"{op}.json")
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return Table(())
    try:
        return Table(tables.parse(content, f"tops_kernels/tuned/{chip}/{op}.json"))
    except TableError as error:
        warn_once("package_table", f"this installation is damaged, heuristics are used: {error}")
        return Table(())


@contextlib.contextmanager
def tuned(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Within the block, ops take configurations from a file that `tune` wrote, before the package's own and the heuristics.

    A function that was jitted before is traced again in the block. Rows of another toolchain or of other kernel sources than the ones
    installed are ignored, and the log says how many; a row that does not fit a call is ignored, and the log says so once.

    Args:
      path: the file; None: no table at all, heuristics alone.
    Raises: ValueError for a file that is not there or not such a table, naming the file and the place.
    """
    if path is None:
        with entered(tuple((op, TABLE, Table((), alone=True)) for op in tops_manifest.op_names())):
            yield
        return
    rows = tables.read(Path(path))
    fresh = [row for row in rows if not stale(row)]
    if len(fresh) < len(rows):
        first = next(row for row in rows if stale(row))
        message = f"{path}: {len(rows) - len(fresh)} of {len(rows)} rows are stale and ignored ({first.op}: {stale(first)}). Tune again"
        warn_once(message, message)
    by_op: dict[str, list[Row]] = {}
    for row in fresh:
        by_op.setdefault(row.op, []).append(row)
    with entered(tuple((op, TABLE, Table(found)) for op, found in by_op.items())):
        yield


def stale(row: Row) -> str:
    """Why a row is not about what is installed here; "" where it is. A package that is not installed here is not compared."""
    for name, made_with in row.toolchain:
        here = version(name)
        if here and here != made_with:
            return f"made with {name} {made_with}, and this is {here}"
    if row.kernel != _source(row.op, row.implementation):
        return "made with other kernel sources"
    return ""


def toolchain(chip: str) -> dict[str, str]:
    """Versions that a row for this chip hangs on, of those that are installed."""
    names = ["jax", "jaxlib"]
    if chip.startswith("sm_"):
        names += ["jax-cuda13-plugin", "jax-cuda12-plugin"]
    elif chip != INTERPRETER:
        names += ["libtpu"]
    return {name: found for name in names if (found := version(name))}


@functools.lru_cache(maxsize=64)
def _source(op: str, implementation: str) -> str:
    from tops_kernels.runtime.sources import source_digest  # reads every source: only who brings a file needs it

    try:
        return source_digest(op, implementation)
    except (KeyError, ValueError):
        return "none"  # no such op or implementation here
