"""A build from units to a finished bundle."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tops_kernels.runtime import bulk
from tops_kernels.runtime.artifacts import ENDING
from tops_kernels.runtime.bundles import LOCK, BundleError, write_lock, write_tar
from tops_kernels.runtime.spec import Spec


def bundle(
    specs: Sequence[Spec],
    out: Path,
    *,
    processes: int | None = None,
    finished: Callable[[Spec, str], None] = lambda *_: None,
) -> list[dict[str, object]]:
    """Builds units into a bundle.

    Args:
      out: a folder that is new, empty or a bundle, or a file that ends in .tar. The same units give the same bytes.
      processes, finished: as for `bulk.build`.
    Returns: a row a unit: its name, what it is, its fault. Units that failed are not in the bundle.
    Raises: BundleError where `out` holds something else, or cannot be written.
    """
    if out.suffix != ".tar":
        return _into(out, specs, processes, finished)
    with tempfile.TemporaryDirectory(dir=out.absolute().parent, prefix=".tops-build-") as place:
        rows = _into(Path(place), specs, processes, finished)
        write_tar(Path(place), out)
    return rows


def _into(
    folder: Path, specs: Sequence[Spec], processes: int | None, finished: Callable[[Spec, str], None]
) -> list[dict[str, object]]:
    wanted = {one.name + ENDING for one in specs}
    try:
        folder.mkdir(exist_ok=True)
        for name in os.listdir(folder):
            if name != LOCK and not name.endswith(ENDING):
                raise BundleError(f"{folder}: holds {name}; expected a new or empty folder, or a bundle's")
        (folder / LOCK).unlink(missing_ok=True)  # until the new one is written, this is no bundle
        for name in os.listdir(folder):
            (folder / name).unlink()
    except OSError as error:
        raise BundleError(f"{folder}: {error.strerror or error}") from None
    faults = bulk.build(specs, folder, processes=processes, finished=finished)
    failed = {one.name + ENDING for one in faults}
    write_lock(folder, wanted - failed)
    return [{"unit": one.name, "what": str(one), "fault": faults.get(one, "")} for one in specs]
