"""The raw instrument: what a function's schedule is on a chip, for a file of your own.

    python -m tops_bench.aot.probe kernel.py:subject --target v5e,v6e

`subject()` returns (function, avals): avals a sequence of jax.ShapeDtypeStruct. A third item {index: array} gives values of flat
inputs that the control flow hangs on (group sizes, page tables).
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from tops_bench.aot import toolchain
from tops_bench.aot.targets import TPU_TARGETS, target

if TYPE_CHECKING:
    from tops_bench.aot.compiling import Compiled


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tops_bench.aot.probe", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("subject", help="FILE:FUNCTION, where FUNCTION() returns (function, avals)")
    parser.add_argument("--target", default="v5e", help=f"comma-separated, of {', '.join(TPU_TARGETS)}")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--keep", type=Path, help="keep the dumps in this folder")
    args = parser.parse_args(argv)
    why = toolchain.missing("tpu")
    if why:
        sys.stderr.write(f"{why}\n")
        return 1
    names = args.target.split(",")
    results = []
    with tempfile.TemporaryDirectory(prefix="tops-aot-") as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        # One process, one dump folder: libtpu reads these as it is loaded, at the first topology.
        os.environ.update(toolchain.environment("tpu", folder))
        jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]  # jax has no types for it; it may have read its variables already
        function, avals, *rest = _load(args.subject)()
        from tops_bench.aot import compiling, files

        for name in names:
            if not args.keep:
                files.remove(folder)
            results.append(compiling.compile_tpu(function, avals, {}, target(name), folder, rest[0] if rest else None))
    if args.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(result) for result in results]) + "\n")
    else:
        for result in results:
            sys.stdout.write(render(result) + "\n")
    return 0


def _load(text: str) -> Any:
    path, _, name = text.rpartition(":")
    spec = importlib.util.spec_from_file_location("subject", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    spec.loader.exec_module(module)
    return getattr(module, name)


def render(result: "Compiled") -> str:
    """A few lines a program, for people."""
    low = "" if result.exact else f" (at least {result.seconds_low * 1e3:.4f})"
    lines = [
        f"{result.target}: {result.seconds * 1e3:.4f} ms{low} schedule estimate, {result.dma_bytes / 2**20:.1f} MiB by DMA, "
        f"HBM temporaries {result.temp_bytes / 2**20:.1f} MiB, code {result.code_bytes / 2**10:.0f} KiB"
    ]
    for part in result.parts:
        figures = part.kernel
        if part.kind != "kernel" or figures is None:
            own = f", own schedule {figures.bundles_run} bundles {figures.seconds * 1e3:.4f} ms" if figures else ""
            lines.append(
                f"  {part.kind:6} {part.name} x{part.times}: {part.seconds * 1e3:.4f} ms, XLA's cycles {part.estimated_cycles}{own}"
            )
            continue
        lines.append(
            f"  kernel {part.name} x{part.times}: {figures.seconds * 1e3:.4f} ms, cycles {figures.cycles:.0f} "
            f"[{figures.cycles_low:.0f}], bundles run {figures.bundles_run}, MXU cycles {figures.mxu_cycles:.0f}, "
            f"DMA {figures.dma_bytes / 2**20:.1f} MiB in {figures.steps} steps, binds {figures.binds}"
        )
        lines.append(
            f"         VMEM {figures.vmem_bytes / 2**20:.2f} MiB, SMEM {figures.smem_bytes} B, vector spills {figures.spills} "
            f"fills {figures.fills}, {figures.bundles} bundles of code"
        )
        lines.append(
            "         slots " + "  ".join(f"{slot} {share:.0%}" for slot, share in figures.utilization.items())
        )
        for loop in figures.loops:
            known = "" if loop.trips_known else " (trips unknown)"
            lines.append(
                f"         loop {loop.first:#x}..{loop.last:#x} depth {loop.depth}: {loop.bundles} bundles x {loop.trips} trips{known}, "
                f"{loop.bundles_run} run = {loop.bundles_run / max(loop.trips, 1):.0f} a trip, spills {loop.spills} fills {loop.fills}"
            )
    return "\n".join(lines + [f"  note: {note}" for note in result.notes])


if __name__ == "__main__":
    raise SystemExit(main())
