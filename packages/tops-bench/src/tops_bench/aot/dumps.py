"""Finds what libtpu dumped for each program: bundles, slot utilization, allocations, the scheduled HLO."""

import dataclasses
import re
from pathlib import Path

from tops_bench.aot import bundles, files
from tops_bench.aot.bundles import DumpError, Listing, Utilization

# Only these of the eighty passes: the whole dump of a 4096^3 matmul is 97 MB.
PASSES = "final_bundles|final_hlo-static|pre-finalize-registers-and-allocations"
_WHOLE = "TLP"  # libtpu's name for the top-level program, which calls the others
_ALLOCATION = re.compile(r"#allocation\d+ \[shape = '[^']*', space=(\w+), size = (0x[0-9a-f]+|\d+),(.*)\]")


def flags(folder: Path, *, located: bool = True) -> str:
    """LIBTPU_INIT_ARGS that make libtpu write its schedules to `folder`. They must be set before libtpu is loaded.

    located: with the source line of each op, about half of the text, which only an explanation reads.
    """
    return " ".join(
        (
            f"--xla_jf_dump_to={folder}",
            "--xla_jf_dump_llo_text=true",
            f"--xla_jf_dump_llo_pass_label_regex={PASSES}",
            f"--xla_mosaic_enable_llo_source_annotations={str(located).lower()}",
        )
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Allocations:
    vmem_bytes: int
    smem_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Dump:
    """The final schedule of one program (a kernel or an XLA fusion)."""

    name: str
    listing: Listing
    utilization: Utilization
    allocations: Allocations


def program_names(folder: Path) -> list[str]:
    """Programs that have a schedule in `folder`, the top-level one and libtpu's own left out."""
    found = [split for name in files.names(folder) if (split := files.split_name(name))]
    return sorted({name for name, what in found if what == "final_bundles" and name != _WHOLE and "late-" not in name})


def read(folder: Path, program: str) -> Dump:
    """Raises DumpError naming what is missing or broken."""
    listing = bundles.parse(_text(folder, program, "final_bundles"), program)
    text = _text(folder, program, "final_hlo-static-per-bundle-utilization")
    utilization = bundles.parse_utilization(text, program)
    if len(utilization.rows) != len(listing.bundles):
        raise DumpError(f"{program}: {len(listing.bundles)} bundles but utilization of {len(utilization.rows)}")
    return Dump(
        program, listing, utilization, allocations(_text(folder, program, "pre-finalize-registers-and-allocations"))
    )


def allocations(text: str) -> Allocations:
    """Bytes of VMEM and SMEM that a program allocates for itself (its windows, scratch and spill slots)."""
    sizes = {"vmem": 0, "smem": 0}
    for space, size, rest in _ALLOCATION.findall(text):
        if space in sizes and "fixed_abs" not in rest:
            sizes[space] += int(size, 0)
    return Allocations(sizes["vmem"], sizes["smem"])


def hlo(folder: Path) -> str:
    """The scheduled HLO of the (one) program compiled into this folder."""
    found = [name for name in files.names(folder) if name.endswith(f"-{_WHOLE}-hlo.txt")]
    if not found:
        raise DumpError(_missing(folder, "the scheduled HLO"))
    return files.read(folder / found[-1])


def _text(folder: Path, program: str, what: str) -> str:
    found = [name for name in files.names(folder) if files.split_name(name) == (program, what)]
    if not found:
        raise DumpError(_missing(folder, f"{what} of {program}"))
    return files.read(folder / found[-1])


def _missing(folder: Path, what: str) -> str:
    count = len(files.names(folder))
    return (
        f"no dump of {what} among {count} files. The dump flags of libtpu are undocumented: another version may have dropped "
        "them, or the disk is full. Use the libtpu that docs/aot.md names"
    )
