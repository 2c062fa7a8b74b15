"""Units out of a bundle into the workspace: those that this installation can run, each checked."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import tops_manifest
from tops_kernels.runtime import toolchain
from tops_kernels.runtime.artifacts import ENDING, ArtifactError, path_of, unpack
from tops_kernels.runtime.bundles import BundleError, read
from tops_kernels.runtime.fetching import fetch, located
from tops_kernels.runtime.sources import source_digest
from tops_kernels.runtime.spec import Spec, difference
from tops_kernels.runtime.storing import warn, write_whole


@dataclasses.dataclass(frozen=True, slots=True)
class Installed:
    """What came of a bundle: units by name, and why those left out were."""

    names: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...]


def install(bundle: str) -> Installed:
    """Installs a bundle: a folder, a tar file, a URL, or the name of one on TOPS_MIRROR.

    The bundle is looked through twice: nothing is installed of one that is not whole.
    Raises: BundleError.
    """
    if not bundle:
        raise BundleError("the bundle's name is empty; expected a folder, a tar file, a URL, or a name on TOPS_MIRROR")
    where = located(bundle)
    if "://" not in where:
        return _install(Path(where), bundle)
    done: Installed = fetch(where, lambda path: _install(path, bundle))
    return done


def _install(path: Path, bundle: str) -> Installed:
    for _ in _units(path, bundle):
        pass
    names, ignored = [], []
    for spec, data in _units(path, bundle):
        why = mismatch(spec)
        if why:
            ignored.append((spec.name, why))
        elif write_whole(path_of(spec), data):
            names.append(spec.name)
        else:
            raise BundleError(f"{path_of(spec)}: cannot be written. Set TOPS_WORKSPACE to a place with room")
    if ignored:
        warn(
            f"{bundle}: {len(ignored)} of {len(ignored) + len(names)} units are ignored: {ignored[0][0]}: {ignored[0][1]}"
        )
    return Installed(tuple(names), tuple(ignored))


def _units(path: Path, bundle: str) -> Iterator[tuple[Spec, bytes]]:
    for name, data in read(path):
        try:
            spec = unpack(data).spec
        except ArtifactError as error:
            raise BundleError(f"{bundle}: {name}: {error}") from None
        if spec.name + ENDING != name:
            raise BundleError(f"{bundle}: {name} holds {spec.name}")
        yield spec, data


def mismatch(spec: Spec) -> str:
    """Why this installation would never load a unit; empty where it would. Flags and options are of a process, and not asked."""
    known = {op.name: op for op in tops_manifest.ops() if op.status == "implemented"}
    if spec.op not in known or spec.implementation not in known[spec.op].kernel_map:
        return f"this version of tops has no {spec.implementation} of {spec.op}"
    here = dataclasses.replace(
        spec,
        version=known[spec.op].version,
        source=source_digest(spec.op, spec.implementation),
        toolchain=toolchain.versions(spec.target, spec.kind),
    )
    return difference(spec, here)
