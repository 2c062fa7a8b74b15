"""Compiles one program for a chip that is not here. Runs in a child process, whose environment toolchain.py has set."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, SingleDeviceSharding, use_abstract_mesh

from tops_bench.aot import dumps, estimate, hlo, overlap, prefetch
from tops_bench.aot.avals import aval
from tops_bench.aot.bundles import DumpError
from tops_bench.aot.pallas import chip_info
from tops_bench.aot.targets import Chip, Target, chip_from_info

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One program of the compiled whole. seconds: from its schedule; from XLA's estimate where XLA made it and the schedule
    cannot be followed exactly."""

    name: str
    kind: str  # "kernel" | "xla" | "copy"
    times: int
    seconds: float  # of all its runs
    seconds_low: float
    estimated_cycles: int | None  # XLA's, one run
    kernel: estimate.KernelFigures | None  # its schedule, where one was dumped and followed
    note: str = ""
    exposed: float = 0.0  # of a copy: seconds that are waited for it, as nothing that runs beside it takes as long


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """What one compile gave. seconds: of the whole program, estimated from its schedule; bytes: moved to and from HBM."""

    target: str
    chip: Chip
    seconds: float
    seconds_low: float
    xla_seconds: float  # the same with XLA's own estimated_cycles for what XLA made: see docs/aot.md on its faults
    dma_bytes: int
    code_bytes: int
    temp_bytes: int
    argument_bytes: int
    output_bytes: int
    parts: tuple[Part, ...]
    notes: tuple[str, ...]
    exact: bool

    @property
    def kernels(self) -> tuple[estimate.KernelFigures, ...]:
        return tuple(part.kernel for part in self.parts if part.kind == "kernel" and part.kernel is not None)


def _device(target: Target) -> Any:
    return topologies.get_topology_desc(platform="tpu", topology_name=target.topology).devices[0]


def compile_tpu(
    function: Function,
    avals: Sequence[Any],
    keywords: Mapping[str, Any],
    target: Target,
    folder: Path,
    known: Mapping[int, np.ndarray] | None = None,
    donated: tuple[int, ...] = (),
) -> Compiled:
    """`avals`: pytrees of ShapeDtypeStruct, positional; `known`: values of flat inputs that control flow may hang on, by index; `donated`:
    positions of those that the program may overwrite.
    Raises what tracing, lowering or the compiler raises, or DumpError."""
    device = _device(target)
    here = SingleDeviceSharding(device)
    placed = jax.tree.map(lambda one: aval(one.shape, one.dtype, sharding=here), tuple(avals))
    # The abstract mesh tells lowering the generation: kernels with SMEM operands ask for it. The output's sharding keeps a
    # program whose outputs hang on no input (the gradient of a sum) from being compiled for the host.
    with use_abstract_mesh(Mesh(np.array([device]), ("x",)).abstract_mesh):
        numbers = chip_from_info(device.device_kind, chip_info())
        traced = jax.jit(function, out_shardings=here, donate_argnums=donated).trace(*placed, **keywords)
        compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    prefetched = prefetch.operands(traced.jaxpr, known or {})
    memory = compiled.memory_analysis()
    parts, notes = _parts(_scheduled_hlo(compiled, folder), folder, target, numbers, prefetched)
    moved = sum(_own_bytes(part) for part in parts)
    moved += sum(_copy_bytes(part, numbers) for part in parts if part.kind == "copy")
    floor = moved / numbers.hbm_bytes_per_second
    waited = sum(part.exposed for part in parts)
    busy, busy_low = (
        waited + sum(getattr(part, which) for part in parts if part.kind != "copy")
        for which in ("seconds", "seconds_low")
    )
    return Compiled(
        target=target.name,
        chip=numbers,
        xla_seconds=sum(_by_xla(part, numbers) for part in parts if part.kind != "copy"),
        seconds=max(busy, floor),
        seconds_low=min(busy_low, max(busy, floor)),
        dma_bytes=moved,
        code_bytes=memory.generated_code_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        parts=tuple(parts),
        notes=tuple(notes),
        exact=all(part.kernel is None or part.kernel.exact for part in parts if part.kind == "kernel"),
    )


def _by_xla(part: Part, chip: Chip) -> float:
    if part.kind == "xla" and part.estimated_cycles is not None:
        return part.estimated_cycles * part.times / chip.clock
    return part.seconds


def _own_bytes(part: Part) -> int:
    return part.kernel.dma_bytes * part.times if part.kernel is not None else 0


def _copy_bytes(part: Part, chip: Chip) -> int:
    return round(part.seconds * chip.hbm_bytes_per_second)


def _scheduled_hlo(compiled: Any, folder: Path) -> str:
    """With XLA's own estimates where the executable can be printed (for tpu7x, jax 0.10 may fail to), else as dumped, without."""
    try:
        return str(compiled.as_text())
    except Exception:  # whatever a runtime that is no runtime raises: the compile was good
        return dumps.hlo(folder)


def _parts(
    text: str, folder: Path, target: Target, chip: Chip, prefetched: list[tuple[str, prefetch.Words]]
) -> tuple[list[Part], list[str]]:
    dumped = set(dumps.program_names(folder))
    parts, notes = [], []
    clock = overlap.Clock()
    instructions = hlo.instructions(text)
    twins = {one.signature: one.name for one in instructions if one.name in dumped and not one.is_kernel}
    for instruction in instructions:
        dump = instruction.name if instruction.name in dumped else twins.get(instruction.signature)
        if instruction.opcode == "copy-start":
            seconds = instruction.bytes_moved * instruction.times / chip.hbm_bytes_per_second
            clock.start(instruction.name, seconds)
            parts.append(Part(instruction.name, "copy", instruction.times, seconds, seconds, None, None))
        elif instruction.opcode == "copy-done":
            clock.wait(instruction.started)
        elif instruction.is_kernel or dump is not None or instruction.estimated_cycles is not None:
            words = prefetch.of_instruction(instruction, prefetched) if instruction.is_kernel else {}
            parts.append(_part(instruction, folder, target, chip, words, dump))
            clock.run(parts[-1].seconds, _own_bytes(parts[-1]) / chip.hbm_bytes_per_second)
    for part in parts:
        if part.note:
            notes.append(f"{part.name}: {part.note}")
    waits = clock.waits
    return [
        dataclasses.replace(part, exposed=waits.get(part.name, 0.0)) if part.kind == "copy" else part for part in parts
    ], notes


def _part(
    instruction: hlo.Instruction, folder: Path, target: Target, chip: Chip, words: prefetch.Words, dump: str | None
) -> Part:
    """`dump`: the program's name among the dumps, or that of its twin; None: there is none."""
    figures, note = None, ""
    if dump is not None:
        try:
            figures = estimate.kernel(dumps.read(folder, dump), target, chip, words)
        except DumpError as error:
            if instruction.is_kernel:
                raise
            note = str(error)
    elif instruction.is_kernel:
        raise DumpError(f"{instruction.name}: compiled, but libtpu dumped no schedule of it")
    times = instruction.times
    kind = "kernel" if instruction.is_kernel else "xla"
    if figures is not None and (kind == "kernel" or figures.exact or instruction.estimated_cycles is None):
        seconds, low = figures.seconds, figures.seconds_low
    elif instruction.estimated_cycles is not None:
        seconds = low = instruction.estimated_cycles / chip.clock
    else:
        seconds = low = 0.0
        note = note or "neither a schedule nor an estimate: counted as nothing"
    return Part(
        instruction.name, kind, times, seconds * times, low * times, instruction.estimated_cycles, figures, note
    )
