"""Runs a recorded call again: on any backend, in the interpreter, or through the compiler of a chip that is not here."""

import contextlib
import dataclasses
import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

import tops_manifest
from tops_kernels.runtime import interpreter, public
from tops_kernels.runtime.overrides import use_config
from tops_kernels.runtime.reading import Recorded
from tops_kernels.runtime.support import GPU_TARGETS

Arrays = Mapping[str, np.ndarray[Any, Any]]

# The smallest topology of each TPU, as jax.experimental.topologies names it.
_TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}
# libtpu looks for the machine it is on unless it is told; which one it is told does not matter, the topology decides.
COMPILE_ONLY = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_CARDS = {"sm_80": "NVIDIA A100-SXM4-80GB", "sm_90": "NVIDIA H100 80GB HBM3", "sm_100": "NVIDIA B200"}
# What float results may differ by, of the largest value expected: between orders of summation, not between right and wrong.
_TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One output against what was expected of it. Errors are of finite values; a NaN equals a NaN."""

    output: str
    elements: int
    differing: int  # by more than the tolerance; in one of them NaN or infinite, in the other not
    unequal: int  # by any amount
    first: tuple[tuple[int, ...], ...]  # the first few places that differ
    largest: float  # error
    relative: float  # the same over the largest value expected
    at: tuple[int, ...] | None  # where it is


def run(dump: Recorded, backend: str | None, interpret: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs by name, computed here. Raises what the call raises."""
    with _configured(dump):
        function = public.original(dump.op)
        arrays = {name: jax.numpy.asarray(value) for name, value in dump.inputs.items()}
        result = function(**_arguments(dump, arrays), **dump.params, backend=backend, interpret=interpret)
        parts = result if isinstance(result, tuple) else (result,)
        names = [spec.name for spec in tops_manifest.op(dump.op).outputs]
        return {name: np.asarray(part) for name, part in zip(names, parts, strict=True)}


def run_checked(dump: Recorded, backend: str | None) -> tuple[dict[str, np.ndarray[Any, Any]], bool]:
    """In the TPU interpreter that looks for races: the outputs, and whether it found one."""
    outputs = run(dump, backend, interpreter.checking_interpreter())
    return outputs, interpreter.races_found()


def missing(target: str) -> str:
    """Why the call cannot be compiled for a target here, with what to run; empty where it can be."""
    if target in _TOPOLOGIES:
        try:
            importlib.metadata.version("libtpu")
        except importlib.metadata.PackageNotFoundError:
            return f"compiling for {target} needs the TPU compiler (no TPU). Run: pip install libtpu"
    return ""


def compile_for(dump: Recorded, backend: str | None, target: str) -> str:
    """Compiles the call for a target: a TPU by its own compiler, "cpu" by XLA; for an NVIDIA GPU it is lowered alone.

    Returns: what was done, for people. Raises: what tracing, lowering or the compiler raises.
    """
    function = public.original(dump.op)

    def call(arrays: Mapping[str, Any]) -> Any:
        return function(**_arguments(dump, arrays), **dump.params, backend=backend)

    shapes = {name: _aval(one.shape, one.dtype) for name, one in dump.inputs.items()}
    with _configured(dump):
        if target in GPU_TARGETS:
            device = jax.sharding.AbstractDevice(_CARDS[target], None, "gpu")
            mesh = jax.sharding.AbstractMesh((1,), ("x",), (jax.sharding.AxisType.Auto,), abstract_device=device)
            with jax.sharding.use_abstract_mesh(mesh):
                jax.jit(call).trace(shapes).lower(lowering_platforms=("cuda",))
            return f"lowered for {target}; not assembled: that needs the GPU's compiler"
        if target == "cpu":
            jax.jit(call).lower(shapes).compile()
            return "compiled for cpu"
        from jax.experimental import topologies

        device = topologies.get_topology_desc(platform="tpu", topology_name=_TOPOLOGIES[target]).devices[0]
        here = jax.sharding.SingleDeviceSharding(device)
        placed = {name: _aval(one.shape, one.dtype, sharding=here) for name, one in shapes.items()}
        # The mesh tells lowering which chip it is for.
        with jax.sharding.use_abstract_mesh(jax.sharding.Mesh(np.array([device]), ("x",)).abstract_mesh):
            jax.jit(call, out_shardings=here).trace(placed).lower(lowering_platforms=("tpu",)).compile()
    return f"compiled for {target}"


def compare(found: Arrays, expected: Arrays, tolerance: float | None = None) -> list[Difference]:
    """Each output against what is expected.

    Args:
      tolerance: of float outputs, times the largest finite value expected; None: 1e-4 for float32, 3e-2 for bfloat16.
        Whole numbers must be equal.
    Raises: ValueError where names, shapes or dtypes are not the same.
    """
    if {name: (one.shape, one.dtype) for name, one in found.items()} != {
        name: (one.shape, one.dtype) for name, one in expected.items()
    }:
        raise ValueError("outputs of other names, shapes or dtypes than expected")
    return [_difference(name, one, expected[name], tolerance) for name, one in found.items()]


def _difference(
    name: str, found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: float | None
) -> Difference:
    allowed = _TOLERANCES.get(str(found.dtype), 0.0) if tolerance is None else tolerance
    if found.dtype.kind in "iub":
        allowed = 0.0
    got, want = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(got) & np.isfinite(want)
    error = np.abs(np.where(finite, got, 0) - np.where(finite, want, 0))
    scale = float(np.abs(np.where(np.isfinite(want), want, 0)).max(initial=0))
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    differing = ~same & (~finite | (error > allowed * scale))
    places = np.argwhere(differing)[:5]
    largest = float(error.max(initial=0))
    return Difference(
        output=name,
        elements=found.size,
        differing=int(differing.sum()),
        unequal=int((~same).sum()),
        first=tuple(tuple(int(i) for i in place) for place in places),
        largest=largest,
        relative=largest / scale if scale else (0.0 if largest == 0 else float("inf")),
        at=tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape)) if largest > 0 else None,
    )


def _aval(shape: tuple[int, ...], dtype: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]  # jax has no types for it


def _arguments(dump: Recorded, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {spec.name: arrays.get(spec.name) for spec in tops_manifest.op(dump.op).inputs}


@contextlib.contextmanager
def _configured(dump: Recorded) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for which, config in dump.override:
            stack.enter_context(use_config(dump.op, which, config))
        yield
