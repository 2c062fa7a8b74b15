"""From a specification to a function: try the cache, lock, try the cache again, ask the policy, compile, store, load.

from tops_kernels.runtime.spec import spec
from tops_kernels.runtime.units import load
norm = load(spec("rms_norm", {"x": x}, target="cpu"))
y = norm(x)  # in a process that finds the unit: nothing traced, nothing compiled
"""

import dataclasses
from collections.abc import Callable

from tops_kernels.runtime import artifacts, toolchain
from tops_kernels.runtime.artifacts import Unit, path_of
from tops_kernels.runtime.compile_cache import compile_cache
from tops_kernels.runtime.compiling import Function, LoadError, compile_unit, load_unit, program
from tops_kernels.runtime.locking import locked
from tops_kernels.runtime.progress import progress
from tops_kernels.runtime.sources import source_digest
from tops_kernels.runtime.spec import Spec, SpecError, difference
from tops_kernels.runtime.storing import warn_once
from tops_kernels.runtime.targets import platform_of
from tops_kernels.runtime.variables import COMPILE


class CompileForbiddenError(RuntimeError):
    """A unit that no artifact holds, where TOPS_COMPILE says that none is compiled; the message names it."""


def load(spec: Spec) -> Function:
    """A function of arrays, in the order of `spec.arguments`: the unit out of the workspace, or compiled and kept there.

    TOPS_COMPILE=cache-only: a unit that is not there runs through jax.jit like any other call, and nothing is kept. forbid: it is
    refused. A valid unit is used always; a portable one in a native one's place where that may not be compiled.
    Raises: CompileForbiddenError; SpecError for a specification of another toolchain, process or source; LoadError where its target is
      not here; what the compiler raises.
    """
    _check_is_of_here(spec)
    policy = COMPILE.value()
    for candidate in (spec,) if policy == "auto" or spec.kind == "portable" else (spec, portable(spec)):
        unit = artifacts.find(candidate)
        if unit is None:
            continue
        try:
            return load_unit(unit)
        except LoadError as error:
            if policy == "forbid":
                raise
            warn_once(f"load {candidate.name}", f"{error}. Ignored")
            return _jitted(spec) if policy == "cache-only" else load_unit(ensure(spec, anew=True))
    if policy == "cache-only":
        return _jitted(spec)
    return load_unit(ensure(spec))


def ensure(spec: Spec, *, anew: bool = False, compiler: Callable[[Spec], Unit] = compile_unit) -> Unit:
    """The unit out of the workspace, else compiled and stored there; one process compiles, those that want the same one wait.

    Args:
      anew: what is there is not taken: it did not load.
      compiler: for tests.
    Raises: CompileForbiddenError under "cache-only" and "forbid"; as `load` besides.
    """
    _check_is_of_here(spec)
    found = None if anew else artifacts.find(spec)
    if found is not None:
        return found
    policy = COMPILE.value()
    path = path_of(spec).with_suffix(".lock")
    if policy != "auto" and not path.exists():  # nobody is compiling it: nothing to wait for, and nothing is written
        raise _forbidden(spec, policy)
    with progress(f"compiling {spec.op} for {spec.target}") as remark, locked(path, remark):
        remark("")
        found = None if anew else artifacts.find(spec)
        if found is not None:
            return found
        if policy != "auto":
            raise _forbidden(spec, policy)
        unit = compiler(spec)
        artifacts.store(unit)
        return unit


def portable(spec: Spec) -> Spec:
    """The portable unit of the same call, on the same platform."""
    target = platform_of(spec.target)
    return dataclasses.replace(
        spec,
        kind="portable",
        target=target,
        toolchain=toolchain.versions(target, "portable"),
        flags=toolchain.flags(target, "portable"),
    )


def _jitted(spec: Spec) -> Function:
    import jax

    jitted = jax.jit(program(spec))

    def run(*arrays: object) -> object:
        with compile_cache():
            return jitted(*arrays)

    return run


def _check_is_of_here(spec: Spec) -> None:
    """Code of one toolchain is not made, nor run, by another."""
    here = dataclasses.replace(
        spec,
        source=source_digest(spec.op, spec.implementation),
        toolchain=toolchain.versions(spec.target, spec.kind),
        flags=toolchain.flags(spec.target, spec.kind),
    )
    if here.key != spec.key:
        raise SpecError(f"{spec}: not of this process: {difference(spec, here)}. Specify it here, by spec(...)")


def _forbidden(spec: Spec, policy: str) -> CompileForbiddenError:
    return CompileForbiddenError(
        f"{spec}: not among the artifacts, and TOPS_COMPILE={policy} compiles none. Missing: {spec.name}. "
        "Make it with tops-kernels build, or set TOPS_COMPILE=auto"
    )
