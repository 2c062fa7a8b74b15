"""Tunes the calls that a function makes, on the machine at hand: compile, compare, time, write down."""

import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import tops_manifest
from tops_kernels.runtime.blocklist import blocked
from tops_kernels.runtime.chip import INTERPRETER, chip_name
from tops_kernels.runtime.overrides import entered
from tops_kernels.runtime.signature import Signature
from tops_kernels.runtime.tuned import RECORD, Recorder, toolchain
from tops_kernels.runtime.tuning import case as cases
from tops_kernels.runtime.tuning import children
from tops_kernels.runtime.tuning.case import Case
from tops_kernels.runtime.tuning.file import merge
from tops_kernels.runtime.tuning.row import MARGIN, row_for
from tops_kernels.runtime.tuning.timing import interleaved

_log = logging.getLogger("tops_kernels.tune")


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """A configuration and what came of it."""

    config: Mapping[str, Any]  # fields by name
    outcome: str  # "timed", "lost", "refused" or "disagrees"
    reason: str = ""
    seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Tuned:
    """What came of one pass of one call. The heuristic's choice is the first of `tried`."""

    call: str
    op: str
    which: str
    implementation: str
    chip: str
    tried: tuple[Tried, ...]
    best: Tried | None  # what the file has now; None where nothing is over 2 % faster than the heuristic's choice
    note: str = ""  # why nothing was tried


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How much is tried. limit: seconds a candidate may compile. command: see `children.Child`; for tests."""

    limit: float
    candidates: int
    rounds: int
    children: int
    command: tuple[str, ...] = ()


def parallel() -> int:
    """Children at a time: half of the cores, and no more than four, as a compile may take gigabytes."""
    return max(1, min(4, (os.cpu_count() or 2) // 2))


def where(backend: str | None, interpret: bool) -> tuple[str, str]:
    """The kernels to tune, and the chip they are for. Raises ValueError."""
    known = ("pallas_tpu", "pallas_gpu")
    if backend is not None and backend not in known:
        raise ValueError(f"tune: backend is {backend!r}; expected None or one of {', '.join(known)}")
    if interpret:
        return backend or "pallas_tpu", INTERPRETER
    for implementation in known if backend is None else (backend,):
        chip = chip_name(implementation)
        if chip:
            return implementation, chip
    raise ValueError(
        f"tune: no kernel has code for this machine's {jax.default_backend()}; expected a TPU or an NVIDIA GPU. Tune where the program "
        "will run, or take schedule estimates (`tops-bench aot OP --sweep --write`); interpret=True only tries the machinery out"
    )


def calls(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], passes: Sequence[str] | None
) -> list[tuple[Signature, str]]:
    """The calls of ops, and which pass of each, that a function makes. It is traced, with jax's caches of it left alone."""
    recorder = Recorder()

    def bound(*arrays: Any) -> Any:
        return fn(*arrays, **kwargs)

    with entered(tuple((op, RECORD, recorder) for op in tops_manifest.op_names())):
        if passes is None or "fwd" in passes:
            jax.eval_shape(bound, *args)
        if passes is not None and "vjp" in passes:
            jax.eval_shape(_differentiated(bound), *args)
    return [(call, which) for call, which in recorder.seen if passes is None or which in passes]


def _differentiated(fn: Callable[..., Any]) -> Callable[..., Any]:
    def gradients(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        floating = [at for at, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]

        def of(*chosen: Any) -> Any:
            given = list(leaves)
            for at, leaf in zip(floating, chosen, strict=True):
                given[at] = leaf
            return fn(*jax.tree.unflatten(tree, given))

        outputs, pull = jax.vjp(of, *(leaves[at] for at in floating))
        return pull(jax.tree.map(jnp.ones_like, outputs))

    return gradients


def run(found: Iterable[Case], chip: str, file: Path, settings: Settings) -> tuple[Tuned, ...]:
    """Tunes cases for a chip, which this process has, and writes each result as it comes."""
    return tuple(_one(case, chip, file, settings) for case in found)


def _one(case: Case, chip: str, file: Path, settings: Settings) -> Tuned:
    def result(tried: Sequence[Tried], best: Tried | None = None, note: str = "") -> Tuned:
        return Tuned(str(case.call), case.call.op, case.which, case.implementation, chip, tuple(tried), best, note)

    op = case.call.op
    row = None if chip == INTERPRETER else blocked(op, case.implementation, chip)
    if row is not None:
        return result((), note=f"on the blocklist: {row}")
    if case.implementation not in tops_manifest.op(op).kernel_map:
        return result((), note=f"{op} has no {case.implementation}")
    lacked = sorted(tops_manifest.op(op).lacks(case.implementation) & set(case.call.inputs))
    if lacked:
        return result((), note=f"{case.implementation} has no {lacked[0]}")
    inputs, params = dict(case.call.inputs), dict(case.call.params)
    first, *others = cases.configurations(case, chip) or (None,)
    if first is None:
        return result((), note=f"{op} has nothing to configure")
    fitting = [config for config in others if not config.misfit(case.which, inputs, params)]
    configs = [first, *fitting[: settings.candidates - 1]]
    answers = _compiled(case, chip, configs, settings)
    tried, runs = _agreeing(case, configs, answers)
    if not runs or runs[0][0] != 0:
        return result(tried, note="the heuristic's own choice is lost: there is nothing to compare with")
    times = interleaved([run for _, run in runs], rounds=settings.rounds)
    for (at, _), seconds in zip(runs, times.medians, strict=True):
        tried[at] = dataclasses.replace(tried[at], outcome="timed", seconds=seconds)
    place = min(range(len(runs)), key=lambda place: times.ratios[place])
    winner = runs[place][0]
    # Against the heuristic's alone once more: the least of many noisy figures is too small.
    again = interleaved([runs[0][1], runs[place][1]], rounds=settings.rounds)
    written = row_for(
        case.call,
        implementation=case.implementation,
        which=case.which,
        chip=chip,
        config=configs[winner],
        origin="interpreter" if chip == INTERPRETER else "hardware",
        seconds=again.medians[1],
        heuristic_seconds=again.medians[0],
        toolchain=toolchain(chip),
        with_sources=True,
    )
    is_faster = winner != 0 and max(times.ratios[place], again.ratios[1]) <= MARGIN
    merge(file, [written] if is_faster else [], [] if is_faster else [written.key])
    _log.info("%s %s on %s: %.2fx of the heuristic's time", case.call, case.which, chip, again.ratios[1])
    return result(tried, tried[winner] if is_faster else None)


def _compiled(case: Case, chip: str, configs: Sequence[Any], settings: Settings) -> list[children.Answer]:
    jobs = [{**case.job(), "target": chip, "config": cases.fields(config)} for config in configs]
    started = time.monotonic()

    def done(at: int, answer: children.Answer) -> None:
        _log.info(
            "%s %s: %d of %d compiled, %.0f s", case.call.op, configs[at], at + 1, len(jobs), time.monotonic() - started
        )

    return children.run(jobs, chip, limit=settings.limit, count=settings.children, command=settings.command, done=done)


def _agreeing(
    case: Case, configs: Sequence[Any], answers: Sequence[children.Answer]
) -> tuple[list[Tried], list[tuple[int, Callable[[], Any]]]]:
    """What came of each configuration, and those that compiled and agree with the xla path, ready to run, by number."""
    arrays = cases.drawn(case)
    reference = jax.jit(cases.program(case, "xla"))(*arrays)
    tried: list[Tried] = []
    runs: list[tuple[int, Callable[[], Any]]] = []
    for at, (config, answer) in enumerate(zip(configs, answers, strict=True)):
        outcome = next((word for word in ("lost", "refused", "disagrees") if word in answer), "")
        reason = str(answer.get(outcome, ""))
        if not outcome:
            try:
                with cases.configured(case, config):
                    compiled = jax.jit(cases.program(case, case.implementation)).lower(*arrays).compile()
                reason = cases.disagreement(compiled(*arrays), reference, arrays)
                outcome = "disagrees" if reason else "agrees"
            except Exception as error:  # whatever a compiler or a kernel raises here that it did not raise in the child
                outcome, reason = "refused", " ".join(str(error).split())[:300]
        tried.append(Tried(cases.fields(config), outcome, reason))
        if outcome == "agrees":
            runs.append((at, functools.partial(compiled, *arrays)))
    return tried, runs
