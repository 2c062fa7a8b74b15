"""Compiles planned rows in children, a platform at a time, with a bar on stderr."""

import dataclasses
from collections.abc import Sequence

from tops_bench import output
from tops_bench.aot import children, matrix, targets, toolchain
from tops_bench.aot.children import Answer
from tops_bench.aot.matrix import Planned, Row


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    limit: float = 240.0  # seconds a row
    count: int | None = None  # children at a time; None: what cores and memory allow


class ToolchainError(Exception):
    """A compiler that is not installed, or does not start; the message has the command."""


def answers(planned: Sequence[Planned], settings: Settings) -> list[Answer]:
    """Each row's answer, in order. Raises ToolchainError."""
    result: list[Answer] = [{} for _ in planned]
    for platform in ("tpu", "cuda"):
        indices = [at for at, one in enumerate(planned) if targets.target(one.target).platform == platform]
        indices.sort(key=lambda at: _weight(planned[at]), reverse=True)  # the longest first: children end together
        if not indices:
            continue
        why = toolchain.missing(platform)
        if why:
            raise ToolchainError(why)
        with (
            children.pool(platform, count=settings.count, limit=settings.limit) as pool,
            output.progress(f"compiling for {platform}", len(indices)) as (say, step),
        ):

            def done(at: int, _: Answer, indices: Sequence[int] = indices) -> None:
                one = planned[indices[at]]
                say(f"{one.target} {one.op} {one.which} {one.label} {one.contender}")
                step()

            for at, answer in zip(indices, pool.run([planned[at].job for at in indices], done), strict=True):
                result[at] = answer
    return result


def _weight(one: Planned) -> tuple[bool, bool]:
    """What takes long to compile: XLA's own programs, of many fusions; then backward passes."""
    return one.contender != "pallas_tpu", one.which == "vjp"


def rows(planned: Sequence[Planned], settings: Settings) -> list[Row]:
    """Compiles and reads every row. Raises ToolchainError."""
    return [matrix.row(one, answer) for one, answer in zip(planned, answers(planned, settings), strict=True)]
