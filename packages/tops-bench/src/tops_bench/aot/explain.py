"""tops-bench aot OP --explain: the hottest loop of each row's slowest kernel."""

import dataclasses
from pathlib import Path

from tops_bench import files, output
from tops_bench.aot import hotspot, matrix, running, timeline
from tops_bench.aot.hotspot import Hotspot
from tops_bench.aot.matrix import Planned, Selection
from tops_bench.aot.running import Settings

_LINES = 12


def run(selection: Selection, settings: Settings, page: Path | None, *, as_json: bool) -> int:
    """Returns 0, or 1 where a row gave no schedule. Raises LookupError, ToolchainError, files.FileError."""
    planned = [dataclasses.replace(one, job={**one.job, "explain": True}) for one in matrix.plan(selection)]
    answers = running.answers(planned, settings)
    spots: list[tuple[Planned, Hotspot, tuple[str, ...]]] = []
    failed = 0
    for one, answer in zip(planned, answers, strict=True):
        if "hotspot" in answer:
            spots.append((one, hotspot.from_json(answer["hotspot"]), tuple(answer["slots"])))
        else:
            failed += 1
            why = (
                next(iter(answer.values()), "no answer")
                if "compiled" not in answer
                else "no Pallas kernel in the program"
            )
            output.complain(f"{one.target} {one.key.replace('|', ' ')}: {why}")
    if as_json:
        output.say_json([{"row": one.key, "target": one.target, **dataclasses.asdict(spot)} for one, spot, _ in spots])
    else:
        for one, spot, _ in spots:
            say(one, spot)
    if page is not None and spots:
        one, spot, slots = spots[0]
        files.write(
            page, timeline.page(f"{one.op} {one.which} {one.label} on {one.target}: {spot.kernel}", spot, slots)
        )
        output.complain(f"wrote {page} (the first row's loop)")
    return 1 if failed else 0


def say(one: Planned, spot: Hotspot) -> None:
    """One row's loop."""
    output.say(
        f"{one.op} {one.which} {one.label} {one.contender} on {one.target}: kernel {spot.kernel} (schedule estimate)"
    )
    output.say(
        f"  hottest loop {spot.first:#x}..{spot.last:#x}: {spot.bundles} bundles x {spot.trips} trips, {spot.bundles_run} run "
        f"= {spot.share:.0%} of the kernel; {spot.idle} idle ({spot.idle / max(spot.bundles_run, 1):.0%})"
    )
    full = [f"{name} {share:.0%}, full in {count} bundles" for name, share, count in spot.slots if share > 0.005]
    output.say("  slots: " + "; ".join(full))
    for line, share in spot.lines[:_LINES]:
        output.say(f"  {share / max(spot.bundles_run, 1):6.1%}  {line}")
    output.say("  longest dependency chains within a trip (ops, bundles from first to last):")
    for chain in spot.chains:
        output.say(
            f"    {chain.ops:4} ops {chain.span:5} bundles  {chain.first} -> {chain.last}  ({', '.join(chain.mnemonics)})"
        )
