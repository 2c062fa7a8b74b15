"""The public doors to tuning. What stands behind them is imported when they are called."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tops_kernels.runtime.tuning.tuner import Tuned


def tune(
    fn: Callable[..., Any],
    *args: Any,
    file: str | os.PathLike[str],
    passes: Sequence[str] | None = None,
    backend: str | None = None,
    interpret: bool = False,
    time_limit: float = 60.0,
    candidates: int = 32,
    rounds: int = 9,
    **kwargs: Any,
) -> "tuple[Tuned, ...]":
    """Finds the fastest block configurations for the calls of ops that `fn(*args, **kwargs)` makes, and writes them to a file for `tuned`.

    `fn` is traced, not run: each call in it of an op with a kernel for this machine is tuned by itself, for its shapes and dtypes, with
    values drawn within the op's contract. Candidates of the op's search space are compiled in child processes; each is then
    held against the op's xla path, and thrown out where it disagrees; those that are left are timed by turns, the heuristic's choice among
    them. What is not over 2 % faster than that is not written. This is the only thing in tops that tunes; nothing calls it for you.

    Args:
      fn: an op, or a function that calls ops. args, kwargs: its own; arrays may be jax.ShapeDtypeStructs.
      file: where the results go; made where there is none. Rows of other calls, and of others who write meanwhile, stay.
      passes: "fwd", "vjp"; with "vjp", fn is differentiated in its floating-point arrays. None: the passes that fn itself makes.
      backend: the kernels to tune; None: those for this machine's chip.
      interpret: tune in Pallas' interpreter, on a CPU. For tests: rows for the interpreter are used under `interpret=True` alone.
      time_limit: seconds that a candidate may take to compile.
      candidates: how many are tried for a call, the likeliest first.
      rounds: of timing; the median counts.
    Returns: a Tuned for each call and pass: what was tried, what came of it, and the best.
    Raises: ValueError where this machine has no chip that the kernels have code for, where fn calls no op, or the file is something else.
    """
    if passes is not None and (not passes or set(passes) - {"fwd", "vjp"}):
        raise ValueError(f'tune: passes is {passes!r}; expected "fwd", "vjp" or both')
    from tops_kernels.runtime.tuning.case import Case
    from tops_kernels.runtime.tuning.tuner import Settings, calls, parallel, run, where

    settings = Settings(limit=time_limit, candidates=candidates, rounds=rounds, children=parallel())
    implementation, chip = where(backend, interpret)
    seen = calls(fn, args, kwargs, passes)
    if not seen:
        raise ValueError(
            "tune: fn calls no op of tops_kernels that has a kernel to configure, for these arguments and passes"
        )
    return run([Case(call, which, implementation, interpret) for call, which in seen], chip, Path(file), settings)


def record_tuned(
    path: str | os.PathLike[str],
    *,
    op: str,
    implementation: str,
    which: str,
    inputs: Mapping[str, Any],
    params: Mapping[str, Any],
    chip: str,
    config: Any,
    origin: str,
    seconds: float,
    heuristic_seconds: float,
    toolchain: Mapping[str, str],
    with_sources: bool = True,
    vmem_bytes: int = 0,
) -> bool:
    """Puts the best configuration of a call into a file for `tuned`, in place of an older one of the same bucket.

    A configuration that is not over 2 % faster than the heuristic's, or that `tuned` would refuse for the call, is not put, and an older row
    of the bucket is taken out.

    Args:
      path: the file; made where there is none. Others may write at the same time: none of their rows is lost.
      op, implementation, which, inputs, params: the call, as `configurations` takes it. chip: the target that it is for.
      config: one of `configurations`.
      origin: where the times come from: "schedule estimate", "hardware" or "interpreter".
      seconds, heuristic_seconds: of this configuration and of the heuristic's choice.
      toolchain: package -> version, of what compiled it.
      with_sources: note the digest of the kernel's sources, so that the row is stale when they change. False for package data.
      vmem_bytes: of a TPU kernel, where it is known; for people.
    Returns: whether the file has the row now.
    Raises: ValueError where the file is something else, or what is given is no row; OSError where it cannot be written.
    """
    from tops_kernels.runtime.chip import tracing_for
    from tops_kernels.runtime.tuning.file import merge
    from tops_kernels.runtime.tuning.row import MARGIN, row_for, signature_of

    call = signature_of(op, inputs, params)
    row = row_for(
        call,
        implementation=implementation,
        which=which,
        chip=chip,
        config=config,
        origin=origin,
        seconds=seconds,
        heuristic_seconds=heuristic_seconds,
        toolchain=toolchain,
        with_sources=with_sources,
        vmem_bytes=vmem_bytes,
    )
    with tracing_for(chip):
        fits = not config.misfit(which, dict(call.inputs), dict(call.params))
    is_better = fits and seconds <= MARGIN * heuristic_seconds
    merge(Path(path), [row] if is_better else [], [] if is_better else [row.key])
    return is_better
