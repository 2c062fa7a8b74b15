"""The TPU interpreter at its strictest, for whoever tests a kernel without a TPU and may not reach into Pallas."""

from typing import Any


def checking_interpreter() -> Any:
    """For `interpret=`: simulates memory spaces and DMAs, looks for races, and fills memory nobody wrote with NaN. Slow."""
    from jax.experimental.pallas import tpu as pltpu  # lazily: Pallas takes longer to import than all of this package

    return pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")


def races_found() -> bool:
    """Whether the last call under `checking_interpreter` had a data race.

    Raises: RuntimeError where this jax keeps the answer somewhere else.
    """
    # Private: the public interface only prints a line. Both jax lines that the lock holds keep it here.
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    races = getattr(interpret_pallas_call, "races", None)
    found = getattr(races, "races_found", None)
    if found is None:
        raise RuntimeError("no call was made with checking_interpreter(), or this jax keeps its races elsewhere")
    return bool(found)
