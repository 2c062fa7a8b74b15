"""Which rows there are: workload rows x passes x contenders x targets; and what an answer comes to as a row of figures."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tops_manifest
from tops_bench import baselines
from tops_bench.aot import targets, variants
from tops_bench.aot.pallas import CONFIGURATIONS, REFERENCE_ROWS
from tops_bench.aot.targets import Chip
from tops_bench.worker import case_data
from tops_manifest.model import PASSES, Op, Pass
from tops_manifest.workloads import Case, cases

# XLA computes a float32 product at full precision in six bfloat16 passes.
_PASSES_OF_FLOAT32 = 6
_LANES = 8 * 128


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What a user asked for; empty means all."""

    ops: tuple[str, ...] = ()
    targets: tuple[str, ...] = targets.TPU_TARGETS
    passes: tuple[Pass, ...] = PASSES
    dtypes: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()
    references: bool = True
    quick: bool = False
    vary: variants.Choices = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A row to be compiled."""

    op: str
    which: str
    label: str
    contender: str
    target: str
    case: Case | None
    job: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.op}|{self.which}|{self.label}|{self.contender}"


def plan(selection: Selection) -> list[Planned]:
    """Raises LookupError for an op or workload that the manifest does not have."""
    names = selection.ops or tuple(op.name for op in tops_manifest.ops() if op.status == "implemented")
    rows = [row for name in names if name != "reference" for row in _of_op(tops_manifest.op(name), selection)]
    if selection.references and not selection.quick and (not selection.ops or "reference" in selection.ops):
        rows += _references(selection)
    if not rows:
        raise LookupError("no row is left: look at --pass, --dtype, --workload and --contender")
    return rows


def _of_op(op: Op, selection: Selection) -> Iterator[Planned]:
    for which in selection.passes:
        found = [case for case in cases(op.name, which) if _wanted(case, selection)]
        if selection.quick:
            found = _quick(found)
        for case in (one for row in found for one in variants.of(row, selection.vary)):
            for contender in contenders(op, case, which, quick=selection.quick):
                if selection.contenders and contender not in selection.contenders:
                    continue
                for target in selection.targets:
                    # XLA's own schedules take the longest by far: in a quick run its forward pass stands beside the kernel, on one chip.
                    is_first = which == "fwd" and target == selection.targets[0]
                    is_spared = selection.quick and contender == "xla" and not is_first
                    if _has(contender, target) and not is_spared:
                        job = {
                            "kind": "op",
                            "case": case_data(case),
                            "pass": which,
                            "contender": contender,
                            "target": target,
                        }
                        yield Planned(op.name, which, case.label, contender, target, case, job)


def _wanted(case: Case, selection: Selection) -> bool:
    if selection.dtypes and not set(selection.dtypes) & set(case.dtypes.values()):
        return False
    return not selection.workloads or case.row in selection.workloads


def _quick(found: Sequence[Case]) -> list[Case]:
    """The first bfloat16 row: large enough that its schedule is the steady state's."""
    return [case for case in found if "bfloat16" in case.dtypes.values()][:1] or list(found[:1])


def contenders(op: Op, case: Case, which: Pass, *, quick: bool = False) -> list[str]:
    """Implementations first, then baselines, then jax's own kernels."""
    names = [key for key in op.kernel_map if not op.lacks(key) & set(case.present)]
    if not quick:  # xla is what jnp comes to, within a few per cent
        names += [one.name for one in baselines.of(op)]
    if which == "fwd" and not quick and "int8" not in case.dtypes.values() and not _has_batched_right(case):
        names += [
            f"pallas.ops {kernel} {config}"
            for (name, kernel), configs in CONFIGURATIONS.items()
            if name == op.name
            for config in configs
        ]
    return names


def _has_batched_right(case: Case) -> bool:
    return any(case.alternatives.values())


def _has(contender: str, target: str) -> bool:
    """Whether a contender can be meant for a target at all; whether it compiles is the row's finding."""
    platform = targets.target(target).platform
    if contender == "pallas_gpu":
        return platform == "cuda"
    return platform == "tpu" or (contender != "pallas_tpu" and not contender.startswith("pallas.ops"))


def _references(selection: Selection) -> Iterator[Planned]:
    for name, label, options in REFERENCE_ROWS:
        for target in selection.targets:
            if targets.target(target).platform == "tpu" and (not selection.contenders or name in selection.contenders):
                job = {"kind": "reference", "contender": name, "options": dict(options), "target": target}
                yield Planned("reference", "fwd", label, name, target, None, job)


@dataclasses.dataclass(frozen=True, slots=True)
class Roofline:
    """The least time the chip could take, from the manifest's cost."""

    seconds: float
    bound: str  # "mxu" | "vpu" | "eup" | "hbm"


def roofline(case: Case, which: Pass, chip: Chip) -> Roofline:
    """Useful work over the chip's rates; a float32 product counts as the six bfloat16 passes it takes."""
    dtypes = set(case.dtypes.values())
    mxu = chip.int8_per_second or chip.bf16_per_second if "int8" in dtypes else chip.bf16_per_second
    first = case.dtypes.get("X", "")
    if first == "float32":
        mxu /= _PASSES_OF_FLOAT32
    lanes = _LANES * chip.clock * chip.cores
    rates = {"mxu": mxu, "vpu": 4 * lanes, "eup": lanes}  # four vector-ALU slots and one transcendental slot a bundle
    times = {unit: flops / rates[unit] for unit, flops in case.flops(which).items() if flops}
    times["hbm"] = case.bytes(which) / chip.hbm_bytes_per_second
    bound = max(times, key=lambda unit: times[unit])
    return Roofline(times[bound], bound)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A compiled row's figures, or why there are none. All times are schedule estimates."""

    op: str
    which: str
    label: str
    contender: str
    target: str
    status: str  # "compiled" | "refused" | "crashed" | "timeout" | "fault"
    reason: str = ""
    figures: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.op}|{self.which}|{self.label}|{self.contender}"

    @property
    def seconds(self) -> float | None:
        value = self.figures.get("seconds")
        return float(value) if isinstance(value, int | float) else None


def row(planned: Planned, answer: Mapping[str, Any]) -> Row:
    """What a child's answer comes to."""
    base = (planned.op, planned.which, planned.label, planned.contender, planned.target)
    for status in ("refused", "crashed", "timeout", "fault"):
        if status in answer:
            return Row(*base, status, str(answer[status]))
    compiled = answer.get("compiled")
    if not isinstance(compiled, dict):
        return Row(*base, "fault", "the compiling process gave no figures")
    figures = summary(compiled)
    if planned.case is not None and "chip" in compiled:
        limit = roofline(planned.case, "vjp" if planned.which == "vjp" else "fwd", Chip(**compiled["chip"]))
        figures |= {"roofline_seconds": limit.seconds, "roofline_bound": limit.bound}
        if figures["seconds"]:
            figures["efficiency"] = limit.seconds / figures["seconds"]
    return Row(*base, "compiled", "", figures | {"detail": compiled})


def summary(compiled: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a whole program: sums over its kernels; binds and slots of the one that takes longest."""
    if "registers" in compiled:  # a GPU's
        return dict(compiled)
    kernels = [(part, part["kernel"]) for part in compiled["parts"] if part["kind"] == "kernel" and part["kernel"]]
    hottest = max(kernels, key=lambda pair: float(pair[0]["seconds"]), default=None)
    cycles = {
        which: sum(part["times"] * kernel[which] for part, kernel in kernels) for which in ("cycles", "cycles_low")
    }
    return {
        "seconds": compiled["seconds"],
        "seconds_low": compiled["seconds_low"],
        "exact": compiled["exact"],
        **{which: round(value) for which, value in cycles.items()},
        "bundles": sum(kernel["bundles"] for _, kernel in kernels),
        "dma_bytes": compiled["dma_bytes"],
        "vmem_bytes": max((kernel["vmem_bytes"] for _, kernel in kernels), default=0),
        "smem_bytes": max((kernel["smem_bytes"] for _, kernel in kernels), default=0),
        "spills": sum(kernel["spills"] for _, kernel in kernels),
        "fills": sum(kernel["fills"] for _, kernel in kernels),
        "temp_bytes": compiled["temp_bytes"],
        "code_bytes": compiled["code_bytes"],
        "binds": hottest[1]["binds"] if hottest else "",
        "slots": {slot: round(share, 4) for slot, share in hottest[1]["utilization"].items()} if hottest else {},
        "xla_seconds": compiled["xla_seconds"],
    }
