"""tops-bench aot --validate: how good the estimates are, against four things that are not this estimator.

a: XLA's own estimated_cycles of its fusions. b: cycle counts published for small matmuls. c: times a peer measured on real
TPUs. d: scaling, and the MXU's ideal count. e: times a peer measured of what XLA compiled: this estimate and XLA's, side by side.
"""

import dataclasses
import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

import tops_manifest
from tops_bench import output
from tops_bench.aot import fusions, matrix, peer, running, toolchain
from tops_bench.aot.matrix import Planned
from tops_bench.aot.running import Settings
from tops_bench.aot.targets import Chip, target
from tops_bench.worker import case_data
from tops_manifest.model import Pass
from tops_manifest.workloads import Case, cases

# rows of the left operand -> (cycles on a chip, bundles), bf16 [rows, 128] @ [128, 128]: a published course, see docs/aot.md
PUBLISHED: Mapping[int, tuple[int, int]] = {16: (176, 45), 128: (211, 78), 1024: (435, 252)}
_ROWS_A_KERNEL = 20
_LINEAR = 0.03
_LARGEST_VMEM = 128 << 20  # bytes: of v5e and v6e


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """An estimate and what it is held against, in the same unit."""

    group: str
    label: str
    estimate: float
    truth: float

    @property
    def ratio(self) -> float:
        return self.estimate / self.truth


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """Of rows that had no part in the constant. constant: the other half's median ratio."""

    rows: int
    constant: float
    raw_median: float
    median: float
    low: float  # 10th and 90th percentile
    high: float
    rank: float  # Spearman's


def run(parts: str, targets: Sequence[str], settings: Settings, *, as_json: bool, ops: Sequence[str] = ()) -> int:
    """`ops`: those whose scaling is tried (d), and the peer's kernels that are compiled (c); none: all. Returns 0, or 1 where something could not be compiled or a limit of (d) is broken. Raises ToolchainError, ValueError."""
    unknown = set(parts) - set("abcde")
    if unknown:
        raise ValueError(f"--validate: got parts {parts!r}; expected some of a, b, c, d, e")
    measured, scaling = (functools.partial(part, ops=tuple(ops)) for part in (_c, _d))
    report: dict[str, Any] = {"versions": toolchain.versions(target("v5e")), "targets": list(targets)}
    failed = 0
    for part, function in (("a", _a), ("b", _b), ("c", measured), ("d", scaling), ("e", _e)):
        if part in parts:
            report[part], bad = function(targets, settings, quiet=as_json)
            failed += bad
    if as_json:
        output.say_json(report)
    return 1 if failed else 0


def _plan(kind: str, name: str, target_name: str, **fields: Any) -> Planned:
    job = {"kind": kind, "contender": name, "target": target_name, **fields}
    return Planned(kind, "fwd", name, name, target_name, None, job)


def _compiled(planned: Sequence[Planned], settings: Settings) -> tuple[list[tuple[Planned, dict[str, Any]]], int]:
    """The rows that compiled, and how many did not, which are named on stderr."""
    found, failed = [], 0
    for one, answer in zip(planned, running.answers(planned, settings), strict=True):
        if "compiled" in answer:
            found.append((one, answer["compiled"]))
        else:
            failed += 1
            output.complain(f"{one.target} {one.label}: {next(iter(answer.values()), 'no answer')}")
    return found, failed


def _a(targets: Sequence[str], settings: Settings, *, quiet: bool) -> tuple[Any, int]:
    planned = [_plan("fusion", name, chip) for chip in targets for name in fusions.FUSIONS]
    found, failed = _compiled(planned, settings)
    pairs: defaultdict[str, list[Pair]] = defaultdict(list)
    for one, compiled in found:
        clock = Chip(**compiled["chip"]).clock
        for part in compiled["parts"]:
            kernel, cycles = part["kernel"], part["estimated_cycles"]
            if part["kind"] == "xla" and kernel and kernel["exact"] and cycles and cycles > 2000:
                pairs[one.target].append(
                    Pair(one.label, f"{one.label}: {part['name']}", kernel["seconds"] * clock, cycles)
                )
    result = {chip: [dataclasses.asdict(pair) | {"ratio": pair.ratio} for pair in rows] for chip, rows in pairs.items()}
    if not quiet:
        for chip, rows in pairs.items():
            ratios = [pair.ratio for pair in rows]
            worst = max(rows, key=lambda pair: max(pair.ratio, 1 / pair.ratio))
            output.say(
                f"(a) {chip}: estimate / XLA's estimated_cycles over {len(rows)} fusions: median {statistics.median(ratios):.2f}, worst {worst.ratio:.2f} ({worst.group})"
            )
            output.say_table(
                ("fusion", "estimate", "XLA", "ratio"),
                [(pair.label, f"{pair.estimate:.0f}", f"{pair.truth:.0f}", f"{pair.ratio:.2f}") for pair in rows],
                ("estimate", "XLA", "ratio"),
            )
    return result, failed


def _b(targets: Sequence[str], settings: Settings, *, quiet: bool) -> tuple[Any, int]:
    """On v5e alone; an estimate lacks the start-up latency, so what is compared is the bundles and the growth."""
    found, failed = _compiled(
        [_plan("reference", "small_matmul", "v5e", options={"rows": rows}) for rows in PUBLISHED], settings
    )
    lines = []
    for one, compiled in found:
        rows = one.job["options"]["rows"]
        cycles, bundles = PUBLISHED[rows]
        kernel = next(part["kernel"] for part in compiled["parts"] if part["kind"] == "kernel")
        lines.append(
            {
                "rows": rows,
                "bundles": kernel["bundles_run"],
                "published_bundles": bundles,
                "estimate": kernel["cycles"],
                "published_cycles": cycles,
            }
        )
    if not quiet:
        output.say(
            "(b) bf16 [rows, 128] @ [128, 128]: scheduled bundles and estimated cycles beside the published ones (v5e)"
        )
        output.say_table(
            tuple(lines[0]) if lines else (), [tuple(f"{value:.0f}" for value in line.values()) for line in lines]
        )
    return lines, failed


def _c(targets: Sequence[str], settings: Settings, *, quiet: bool, ops: Sequence[str] = ()) -> tuple[Any, int]:
    why = peer.missing()
    if why:
        output.complain(why)
        return None, 1
    result: dict[str, Any] = {"tokamax": peer.version()}
    failed = 0
    for chip in targets:
        if chip not in peer.FOLDERS:
            continue
        rows = sample(
            peer.measured(chip, {name: file for name, file in peer.KERNELS.items() if not ops or name in ops})
        )
        planned = [
            _plan("peer", row.label, chip, kernel=row.kernel, call=dict(row.call), config=dict(row.config))
            for row in rows
        ]
        answers = running.answers(planned, settings)
        pairs = []
        for row, answer in zip(rows, answers, strict=True):
            if "compiled" in answer:
                pairs.append(Pair(row.kernel, row.label, answer["compiled"]["seconds"], row.seconds))
            else:  # the peer's own row may not compile with this toolchain: said, not counted against the estimator
                output.complain(f"{chip} {row.kernel} {row.label}: {next(iter(answer.values()), 'no answer')}")
        if not pairs:
            failed += 1
            continue
        groups = {"all": pairs} | {kernel: [pair for pair in pairs if pair.group == kernel] for kernel in peer.KERNELS}
        fits = {name: fit(some) for name, some in groups.items() if len(some) >= 4}
        result[chip] = {
            "fits": {name: dataclasses.asdict(one) for name, one in fits.items()},
            "rows": [dataclasses.asdict(pair) | {"ratio": pair.ratio} for pair in pairs],
        }
        if not quiet:
            for name, one in fits.items():
                output.say(
                    f"(c) {chip} {name}: estimate / measured, {one.rows} held-out rows: median {one.median:.2f} after the constant {one.constant:.2f} "
                    f"(raw {one.raw_median:.2f}), 10-90 % {one.low:.2f} to {one.high:.2f}, rank correlation {one.rank:.3f}"
                )
            output.say_table(
                ("kernel", "row", "estimate ms", "measured ms", "ratio"),
                [
                    (
                        pair.group,
                        pair.label,
                        f"{pair.estimate * 1e3:.3f}",
                        f"{pair.truth * 1e3:.3f}",
                        f"{pair.ratio:.2f}",
                    )
                    for pair in pairs
                ],
                ("ratio",),
            )
    return result, failed


def _e(targets: Sequence[str], settings: Settings, *, quiet: bool) -> tuple[Any, int]:
    """Whole programs of XLA's: nothing is fitted, as two estimates are held against the same times."""
    why = peer.missing()
    if why:
        output.complain(why)
        return None, 1
    result: dict[str, Any] = {}
    failed = 0
    for chip in targets:
        rows = sample(peer.measured(chip, peer.XLA_PROGRAMS)) if chip in peer.FOLDERS else []
        planned = [
            _plan("peer", row.label, chip, kernel=row.kernel, call=dict(row.call), config=dict(row.config))
            for row in rows
        ]
        pairs: defaultdict[str, list[tuple[Pair, Pair]]] = defaultdict(list)
        for row, answer in zip(rows, running.answers(planned, settings), strict=True):
            if "compiled" in answer:
                both = (answer["compiled"][which] for which in ("seconds", "xla_seconds"))
                ours, theirs = (Pair(row.kernel, row.label, seconds, row.seconds) for seconds in both)
                pairs[row.kernel].append((ours, theirs))
            else:
                failed += 1
                output.complain(f"{chip} {row.kernel} {row.label}: {next(iter(answer.values()), 'no answer')}")
        result[chip] = {kernel: [_both(*two) for two in some] for kernel, some in pairs.items()}
        if not quiet:
            for kernel, some in pairs.items():
                told = []
                for name, which in (("this", [two[0] for two in some]), ("XLA's", [two[1] for two in some])):
                    ratios = sorted(pair.ratio for pair in which)
                    rank = spearman([pair.estimate for pair in which], [pair.truth for pair in which])
                    told.append(
                        f"{name} {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), rank {rank:.3f}"
                    )
                output.say(f"(e) {chip} {kernel}, {len(some)} rows, estimate / measured: {'; '.join(told)}")
    return result, failed


def _both(ours: Pair, theirs: Pair) -> dict[str, Any]:
    row = {"row": ours.label, "measured": ours.truth, "estimate": ours.estimate, "xla": theirs.estimate}
    return row | {"ratio": ours.ratio, "xla_ratio": theirs.ratio}


def sample(rows: Iterable[peer.Measured]) -> list[peer.Measured]:
    """Up to 20 a kernel, spread over the data file's whole range of times: the same ones on each run."""
    by_kernel: defaultdict[str, list[peer.Measured]] = defaultdict(list)
    for row in rows:
        by_kernel[row.kernel].append(row)
    chosen: list[peer.Measured] = []
    for found in by_kernel.values():
        found.sort(key=lambda row: (row.seconds, row.label))
        count = min(_ROWS_A_KERNEL, len(found))
        chosen += [found[at * len(found) // count] for at in range(count)]
    return chosen


def fit(pairs: Sequence[Pair]) -> Fit:
    """A constant from every second row by measured time, judged on the others."""
    ordered = sorted(pairs, key=lambda pair: (pair.truth, pair.label))
    fitted, held = ordered[::2], ordered[1::2]
    constant = statistics.median(pair.ratio for pair in fitted)
    ratios = sorted(pair.ratio / constant for pair in held)
    return Fit(
        rows=len(held),
        constant=constant,
        raw_median=statistics.median(pair.ratio for pair in held),
        median=statistics.median(ratios),
        low=ratios[len(ratios) // 10],
        high=ratios[-1 - len(ratios) // 10],
        rank=spearman([pair.estimate for pair in held], [pair.truth for pair in held]),
    )


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation; ties share their mean rank. nan where one side is constant."""
    ranks = [_ranks(values) for values in (first, second)]
    try:
        return statistics.correlation(*ranks)
    except statistics.StatisticsError:
        return float("nan")


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def _d(targets: Sequence[str], settings: Settings, *, quiet: bool, ops: Sequence[str] = ()) -> tuple[Any, int]:
    """Each op's plainest bfloat16 row at once and twice its length, by its kernel; and no estimate under the MXU's ideal."""
    planned = [
        dataclasses.replace(_of_case(case, which, chip), label=f"{case.label} x{factor}")
        for chip in targets
        for op in tops_manifest.ops()
        if op.status == "implemented" and (not ops or op.name in ops)
        for which in ("fwd", "vjp")
        for case, factor in _doubled(op.name, which)
    ]
    found, failed = _compiled(planned, settings)
    seconds = {
        (one.target, one.op, one.which, one.label.endswith("x2")): compiled["seconds"] for one, compiled in found
    }
    lines = []
    for chip, op, which, is_double in seconds:
        if not is_double and (chip, op, which, True) in seconds:
            growth = seconds[chip, op, which, True] / seconds[chip, op, which, False]
            lines.append(
                {"target": chip, "op": op, "pass": which, "growth": growth, "linear": abs(growth - 2) <= 2 * _LINEAR}
            )
    under = []
    for one, compiled in found:
        row = matrix.row(one, {"compiled": compiled})
        if row.figures.get("roofline_bound") == "mxu" and row.figures["seconds"] < row.figures["roofline_seconds"]:
            under.append(f"{one.target} {one.key}")
    if not quiet:
        output.say("(d) twice the length: estimate grows by")
        output.say_table(
            ("target", "op", "pass", "growth", "within 3%"),
            [
                (line["target"], line["op"], line["pass"], f"{line['growth']:.3f}", "yes" if line["linear"] else "NO")
                for line in lines
            ],
        )
        output.say(f"(d) estimates under the MXU's ideal: {', '.join(under) or 'none'}")
    return {"growth": lines, "under_ideal": under}, failed + len(under) + sum(not line["linear"] for line in lines)


def _of_case(case: Case, which: Pass, chip: str) -> Planned:
    job = {"kind": "op", "case": case_data(case), "pass": which, "contender": "pallas_tpu", "target": chip}
    return Planned(case.op.name, which, case.label, "pallas_tpu", chip, case, job)


def _doubled(op: str, which: Pass) -> list[tuple[Case, int]]:
    """The op's plainest bfloat16 row, made longer until no result of it fits in any chip's VMEM, and twice that.

    The plainest has the fewest parameters and optional inputs: what a matmul's activation adds takes three times as long to compile and
    says nothing of scaling. XLA keeps a result that fits there for what comes next: add_rms_norm's two equal gradients are then written twice, where those
    of a longer row are written, read and written. Both lengths must be on one side of this step for the growth to say anything. What lies between two
    kernels of a pass, as the states before gla's chunks, is no more than half as large as the largest result: so twice the VMEM.
    """
    found = [
        case for case in cases(op, which) if "bfloat16" in case.dtypes.values() and "pallas_tpu" in case.op.kernel_map
    ]
    if not found:
        return []
    first = min(found, key=lambda case: (len(case.params), len(case.present)))
    free = (name for name in first.dims if name in first.op.shard_free)
    name = "T" if "T" in first.dims else max(free, key=lambda name: _size(first.dims[name]))
    factor = 1
    while _largest_bytes(_longer(first, name, factor), which) < 2 * _LARGEST_VMEM:
        factor *= 2
    return [(_longer(first, name, factor), 1), (_longer(first, name, 2 * factor), 2)]


def _longer(case: Case, name: str, factor: int) -> Case:
    size = case.dims[name]
    longer = (
        tuple(value * factor if value == max(size) else value for value in size)
        if isinstance(size, tuple)
        else size * factor
    )
    return dataclasses.replace(case, dims={**case.dims, name: longer})


def _largest_bytes(case: Case, which: Pass) -> int:
    """Of the arrays that the pass writes: outputs, or gradients, which are as large as inputs."""
    specs = case.inputs() if which == "vjp" else case.outputs()
    return max(math.prod(spec.shape) * jnp.dtype(spec.dtype).itemsize for spec in specs.values())


def _size(size: int | tuple[int, ...]) -> int:
    return max(size, default=0) if isinstance(size, tuple) else size
