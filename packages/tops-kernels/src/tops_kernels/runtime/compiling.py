"""From a specification to code, and from code to something to call. Native code is a serialized executable, portable code an export.

A serialized executable is the client's own format, with what the call needs beside it as JSON: jax.experimental.serialize_executable
wraps the same bytes in a pickle, which runs what it holds before anybody can look. jax.export has its own format, without a pickle.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tops_manifest
from tops_kernels.runtime import targets
from tops_kernels.runtime.artifacts import Unit
from tops_kernels.runtime.compile_cache import compile_cache
from tops_kernels.runtime.objects import in_order
from tops_kernels.runtime.overrides import use_config
from tops_kernels.runtime.spec import Spec, SpecError, configurations_of, gradients
from tops_kernels.runtime.toolchain import version

Function = Callable[..., Any]


class LoadError(RuntimeError):
    """Code that cannot be loaded here; the message says why."""


def program(spec: Spec) -> Function:
    """The unit as a function of its arguments, in order: "fwd" gives what the op gives, "vjp" a tuple of gradients."""
    import jax

    import tops_manifest

    contract = tops_manifest.op(spec.op)
    names = [one.name for one in spec.arguments]
    given = [one.name for one in contract.inputs if one.name in names]
    if spec.op not in public_ops():
        raise SpecError(f"{spec.op} has no code to compile; known: {', '.join(public_ops())}")
    function = public_ops()[spec.op]

    def forward(arrays: dict[str, Any]) -> Any:
        ordered = (arrays.get(one.name) for one in contract.inputs)
        return function(*ordered, **dict(spec.params), backend=spec.implementation)

    def fwd(*arrays: Any) -> Any:
        return forward(dict(zip(names, arrays, strict=True)))

    def vjp(*arrays: Any) -> Any:
        by_name = dict(zip(names, arrays, strict=True))
        inputs = {name: by_name[name] for name in given}
        wanted = {name: inputs.pop(name) for name in gradients(spec)}
        outputs, back = jax.vjp(lambda some: forward(inputs | some), wanted)
        cotangents = arrays[len(given) :]
        (found,) = back(cotangents if isinstance(outputs, tuple) else cotangents[0])
        return tuple(found[name] for name in wanted)

    run = fwd if spec.which == "fwd" else vjp
    run.__name__ = f"{spec.op}_{spec.which}"  # what profiles show
    return run


def compile_unit(spec: Spec) -> Unit:
    """Compiles or exports. Raises what tracing, lowering and the compiler raise, and TargetError."""
    import jax
    from jax._src import config  # private: no public way to keep source paths out of a program for a stretch of code

    run = program(spec)
    avals = _avals(spec)
    shapes = jax.eval_shape(run, *avals)
    outputs = tuple((tuple(one.shape), str(one.dtype)) for one in jax.tree.leaves(shapes))
    single = not isinstance(shapes, tuple)
    # Where the sources lie is no part of a unit: it would be another one in every checkout.
    with config.traceback_in_locations_limit(0), _configured(spec):
        code = _export(spec, run, avals) if spec.kind == "portable" else _executable(spec, run, avals)
    return Unit(spec, outputs, single, code)


def load_unit(unit: Unit) -> Function:
    """The unit as a function of arrays, like `program` of its specification; nothing of ours is traced.

    Raises: LoadError where its target is not here or its code is refused.
    """
    spec = unit.spec
    found = targets.devices(spec.target)
    if not found:
        raise LoadError(f"{spec}: no {spec.target} here; this process has {targets.here()}")
    call = _load_portable(unit, found[0]) if spec.kind == "portable" else _load_native(unit, found[0])

    def run(*arrays: Any) -> Any:
        _check(spec, arrays)
        outputs = call(arrays)
        return outputs[0] if unit.single else tuple(outputs)

    run.__name__ = f"{spec.op}_{spec.which}"
    run.__doc__ = f"{spec}: takes {', '.join(one.name for one in spec.arguments)}, in order."
    return run


def _executable(spec: Spec, run: Function, avals: Sequence[Any]) -> bytes:
    import jax
    from jax.sharding import SingleDeviceSharding

    with targets.lowering(spec.target) as device:
        place = SingleDeviceSharding(device)
        placed = [jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place) for one in avals]  # type: ignore[no-untyped-call]  # jax's
        # keep_unused: it takes all that the specification says. out_shardings: a program whose outputs hang on no input goes to the host else.
        traced = jax.jit(run, keep_unused=True, out_shardings=place).trace(*placed)
        compiled: Any = traced.lower(lowering_platforms=(targets.platform_of(spec.target),)).compile()
        executable = compiled.runtime_executable()
        code = bytes(executable.serialize())
    return in_order(code) if spec.target == "cpu" else code


def _export(spec: Spec, run: Function, avals: Sequence[Any]) -> bytes:
    import jax
    from jax import export

    _flatbuffers()
    checks = [export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")] if spec.target == "cuda" else []
    with targets.exporting(spec.target):
        exported = export.export(jax.jit(run, keep_unused=True), platforms=[spec.target], disabled_checks=checks)(
            *avals
        )
    return bytes(exported.serialize())


def _load_native(unit: Unit, device: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
    import jax
    from jaxlib import xla_client  # the public way puts a pickle around it

    try:
        executable = device.client.deserialize_executable(
            unit.code, executable_devices=xla_client.DeviceList((device,))
        )
    except Exception as error:  # the client's own, of no type that is promised
        raise LoadError(f"{unit.spec}: the compiler's runtime refuses it: {error}") from error

    def call(arrays: Sequence[Any]) -> Sequence[Any]:
        placed = [jax.device_put(array, device) for array in arrays]
        results = executable.execute_sharded(placed).disassemble_into_single_device_arrays()
        return [result[0] for result in results]

    return call


def _load_portable(unit: Unit, device: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
    import jax
    from jax import export
    from jax.sharding import SingleDeviceSharding

    _flatbuffers()
    place = SingleDeviceSharding(device)
    try:
        exported = export.deserialize(bytearray(unit.code))
        avals = [jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=place) for one in _avals(unit.spec)]  # type: ignore[no-untyped-call]  # jax's
        with compile_cache():
            compiled = jax.jit(exported.call, out_shardings=place).lower(*avals).compile()
    except Exception as error:  # jax's own, of no type that is promised
        raise LoadError(f"{unit.spec}: the export cannot be compiled here: {error}") from error
    return lambda arrays: jax.tree.leaves(compiled(*(jax.device_put(array, device) for array in arrays)))


@contextlib.contextmanager
def _configured(spec: Spec) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for which, config in configurations_of(spec):
            stack.enter_context(use_config(spec.op, which, config))
        yield


def _avals(spec: Spec) -> list[Any]:
    import jax

    return [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in spec.arguments]  # type: ignore[no-untyped-call]  # jax's


def _check(spec: Spec, arrays: Sequence[Any]) -> None:
    """A unit is for one signature; another one would be read as if it were this."""
    import jax

    if len(arrays) != len(spec.arguments):
        names = ", ".join(one.name for one in spec.arguments)
        raise TypeError(f"{spec.op}: got {len(arrays)} arrays; expected {len(spec.arguments)}: {names}")
    for wanted, array in zip(spec.arguments, arrays, strict=True):
        shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
        if isinstance(array, jax.core.Tracer):
            raise TypeError(
                f"{spec.op}: {wanted.name} is traced; a loaded unit takes arrays, outside jit. Call the op there"
            )
        if shape != wanted.shape or str(dtype) != wanted.dtype:
            raise TypeError(
                f"{spec.op}: {wanted.name} is {dtype}{list(shape or ())}; this unit is for {wanted.dtype}{list(wanted.shape)}"
            )


def public_ops() -> Mapping[str, Function]:
    """The public functions by name."""
    from tops_kernels.runtime import public  # it imports every op

    return {op.name: public.original(op.name) for op in tops_manifest.ops() if op.status == "implemented"}


def _flatbuffers() -> None:
    if version("flatbuffers") == "absent":
        raise LoadError(
            "portable units need flatbuffers, which jax.export uses and does not bring. Run: pip install flatbuffers"
        )
