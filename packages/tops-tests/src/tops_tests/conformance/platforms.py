"""Where a program may go: export, lowering for every platform, refusal of a forced backend, many devices, and the cost formula."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

import tops_kernels
from tops_manifest.workloads import Case
from tops_tests.compare import ConformanceError
from tops_tests.conformance import drawing
from tops_tests.conformance.registry import NotApplicable, check
from tops_tests.optest import OpTest
from tops_tests.subject import Subject

PLATFORMS = ("cpu", "tpu", "cuda")
_DEVICES = 8
_KERNEL = {"pallas_tpu": ("tpu", "tpu_custom_call"), "pallas_gpu": ("cuda", "__gpu$xla.gpu.triton")}
_UNSTABLE = [
    jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")
]  # jax vouches for Mosaic's format alone


@check("op")
def export_for_the_cpu_survives_the_round_trip(subject: Subject) -> None:
    """jax.export, serialized and read again, gives the oracle's values, forward and backward."""
    case = drawing.tiny(subject.op, size=5)
    test = OpTest(case)
    inputs, cotangents = test.gen_inputs(jax.random.key(0)), test.gen_cotangents(jax.random.key(1))
    exported = jax.export.export(jax.jit(subject.call(case)), platforms=("cpu",))(*inputs.values())
    test.check(_read_again(exported)(*inputs.values()), inputs)
    if test.differentiable:
        back = jax.export.export(jax.jit(subject.gradients(case)), platforms=("cpu",))(cotangents, *inputs.values())
        test.check_gradients(_read_again(back)(cotangents, *inputs.values()), cotangents, inputs)


def _read_again(exported: jax.export.Exported) -> Callable[..., Any]:
    again: Callable[..., Any] = jax.export.deserialize(exported.serialize()).call
    return again


def _on(platform: str) -> contextlib.AbstractContextManager[object]:
    """Within it a program may be lowered for the platform. From jax 0.12 on, Triton asks which GPU it is for."""
    if platform != "cuda":
        return contextlib.nullcontext()
    device = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
    return jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), (AxisType.Auto,), abstract_device=device))


@check("op")
def export_carries_the_platforms_own_kernel(subject: Subject) -> None:
    """Exported for one platform from this host: its kernel is inside where kernel_map has one, and no other's is."""
    for dtypes, platform in itertools.product(drawing.float_dtypes(subject.op), PLATFORMS):
        own = [key for key, (where, _) in _KERNEL.items() if where == platform and key in subject.op.kernel_map]
        forms = {form.present: form for form in _forms_of_kernels(subject, own, dtypes)}
        for case in forms.values():
            test = OpTest(case)
            taken = [key for key in own if not subject.op.lacks(key) & set(case.present)]
            programs: list[tuple[Any, tuple[Any, ...]]] = [(subject.call(case), tuple(test.avals().values()))]
            if test.differentiable:
                cotangents = tuple(jax.eval_shape(test.gen_cotangents, jax.random.key(0)))
                programs.append((subject.gradients(case), (cotangents, *test.avals().values())))
            for program, avals in programs:
                with _on(platform):
                    exported = jax.export.export(jax.jit(program), platforms=(platform,), disabled_checks=_UNSTABLE)
                    text = exported(*avals).mlir_module()
                for key, (_, mark) in _KERNEL.items():
                    if (mark in text) != (key in taken):
                        has = "has" if mark in text else "lacks"
                        raise ConformanceError(
                            f"{test.where}: exported for {platform} the program {has} {key}'s kernel"
                        )


def _forms_of_kernels(subject: Subject, keys: list[str], dtypes: dict[str, str]) -> list[Case]:
    """A tiny case of all that can be given; and for each kernel that does not take all of it, one of what it takes."""
    return [drawing.tiny(op, size=5, dtypes=dtypes) for op in (subject.op, *map(subject.op.as_taken_by, keys))]


@check("op")
def a_kernel_that_lacks_an_input_says_so(subject: Subject) -> None:
    """Insisted on, or interpreted, with an input that it does not take: an error naming op, argument and input."""
    found = [(key, name) for key in subject.op.kernel_map for name in sorted(subject.op.lacks(key))]
    if not found:
        raise NotApplicable("every implementation takes every input")
    for key, name in found:
        case = drawing.tiny(subject.op, present=(name,))
        for argument, how in (("backend", {"backend": key}), ("interpret", {"interpret": True})):
            try:
                jax.eval_shape(functools.partial(_given, subject, case, how), *OpTest(case).avals().values())
            except ValueError as error:
                text = str(error)
                if text.startswith(f"{subject.op.name}: {argument} ") and f" with {name}; expected" in text:
                    continue
                raise ConformanceError(f"{subject.op.name}: {key} with {name} is told {text:.200}") from error
            raise ConformanceError(f"{subject.op.name}: {key} takes {name}, which the contract says it does not")


def _given(subject: Subject, case: Case, how: dict[str, Any], *arrays: Any) -> Any:
    return subject.function(**dict(zip(case.inputs(), arrays, strict=True)), **case.params, **how)


@check("op")
def a_forced_backend_is_refused_where_it_has_no_code(subject: Subject) -> None:
    """Lowered for a platform that `support` says no to, a forced kernel raises naming op and backend; the right one is lowered."""
    for key in subject.op.kernel_map:
        case = drawing.tiny(subject.op.as_taken_by(key), size=5)
        avals = tuple(OpTest(case).avals().values())
        forced = jax.jit(Subject(subject.op, subject.function, key).call(case))
        for platform in PLATFORMS:
            traced = forced.trace(*avals)
            if tops_kernels.support(subject.op.name, key, platform).ok:
                with _on(platform):
                    forced.trace(*avals).lower(lowering_platforms=(platform,))
                continue
            try:
                traced.lower(lowering_platforms=(platform,))
            except ValueError as error:
                if str(error).startswith(f"{subject.op.name}: backend={key!r}"):
                    continue
                raise ConformanceError(
                    f"{subject.op.name}: backend={key!r} on {platform} is told {error!s:.200}"
                ) from error
            raise ConformanceError(
                f"{subject.op.name}: backend={key!r} lowers for {platform}, where support says it cannot run"
            )


@check("op")
def support_answers_with_a_reason(subject: Subject) -> None:
    """Never raises; a no has a reason."""
    for key in (*subject.op.kernel_map, "nonsense"):
        for target in (*PLATFORMS, "v5e", "sm_90", "nonsense"):
            answer = tops_kernels.support(subject.op.name, key, target)
            if answer.ok == bool(answer.reason):
                raise ConformanceError(f"{subject.op.name}: support({key}, {target}) is {answer}")


@check("op")
def sharding_freely_changes_nothing(subject: Subject) -> None:
    """Along each shard_free dimension over 8 devices: jit with sharded inputs, and shard_map with check_vma on and off."""
    if len(jax.devices()) < _DEVICES:
        raise NotApplicable(f"needs {_DEVICES} devices; this process has {len(jax.devices())}")
    mesh = Mesh(np.array(jax.devices()[:_DEVICES]), ("x",))
    for name in subject.op.shard_free:
        sizes: dict[str, Any] = dict(drawing.tiny(subject.op, size=5, present=()).dims)
        sizes[name] = (_DEVICES,) if isinstance(sizes[name], tuple) else _DEVICES * 2
        for form in _forms(subject, sizes):
            if any(name in _names(form, spec.name) for spec in subject.op.inputs):
                _hold_sharded(subject, form, name, mesh)


def _forms(subject: Subject, sizes: dict[str, Any]) -> list[Case]:
    return [
        drawing.tiny(subject.op, dims=sizes, dtypes=drawing.float_dtypes(subject.op)[0], alternatives=chosen)
        for chosen in drawing.alternatives(subject.op)
    ]


def _names(case: Case, array: str) -> tuple[str, ...]:
    """The dimensions of an input, or of an output, one an axis."""
    specs = case.input_shapes() | {spec.name: spec.shape_for(case.present) for spec in case.op.outputs}
    result: list[str] = []
    for dim in specs[array]:
        size = case.dims[dim.name]
        result += [dim.name] * (len(size) if isinstance(size, tuple) else 1)
    return tuple(result)


def _spec(case: Case, array: str, name: str) -> PartitionSpec:
    """Sharded along the first axis of that dimension, if there is one."""
    names = _names(case, array)
    at = names.index(name) if name in names else -1
    axes = ("x" if axis == at else None for axis in range(len(names)))
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]  # jax has no types for it


def _hold_sharded(subject: Subject, case: Case, name: str, mesh: Mesh) -> None:
    test = OpTest(case)
    inputs, cotangents = test.gen_inputs(jax.random.key(0)), test.gen_cotangents(jax.random.key(1))
    ins = {key: _spec(case, key, name) for key in inputs}
    outs = tuple(_spec(case, spec.name, name) for spec in case.op.outputs)
    placed = {key: jax.device_put(x, NamedSharding(mesh, ins[key])) for key, x in inputs.items()}
    pulled = tuple(jax.device_put(c, NamedSharding(mesh, spec)) for c, spec in zip(cotangents, outs, strict=True))
    test.check(jax.jit(subject.call(case))(*placed.values()), inputs)
    test.check_gradients(jax.jit(subject.gradients(case))(pulled, *placed.values()), cotangents, inputs)
    for check_vma in (True, False):
        mapped = jax.shard_map(
            subject.call(case), mesh=mesh, in_specs=tuple(ins.values()), out_specs=outs, check_vma=check_vma
        )
        test.check(jax.jit(mapped)(*placed.values()), inputs)

        def loss(floats: dict[str, jax.Array], mapped: Any = mapped) -> Any:
            arrays = placed | floats  # an index has no gradient
            out = mapped(*(arrays[key] for key in inputs))
            return sum(jnp.vdot(y.astype(jnp.float32), c.astype(jnp.float32)) for y, c in zip(out, pulled, strict=True))

        gradients = jax.jit(jax.grad(loss))({key: placed[key] for key in test.differentiable})
        test.check_gradients(gradients, cotangents, inputs)


@check("op")
def the_cost_formula_counts_the_ops_own_products(subject: Subject) -> None:
    """flops.mxu of the manifest is twice the multiply-adds of the dot_generals in the XLA path's jaxpr, forward and backward."""
    plain = Subject(subject.op, subject.function, "xla")
    first = drawing.tiny(subject.op)
    if "scan[" in str(jax.make_jaxpr(plain.call(first))(*OpTest(first).avals().values())):
        raise NotApplicable("products in a loop: the algorithm does other work than the definition's")
    for case in drawing.every_form(subject.op, drawing.float_dtypes(subject.op)[0]):
        test = OpTest(case)
        arrays = tuple(test.avals().values())
        counted = _dots(jax.make_jaxpr(plain.call(case))(*arrays).jaxpr)
        if counted != case.flops("fwd").get("mxu", 0.0):
            raise ConformanceError(
                f"{test.where}: forward has {counted} flops in products; manifest {case.flops('fwd')}"
            )
        if test.differentiable == subject.op.vjp:
            cotangents = tuple(jax.eval_shape(test.gen_cotangents, jax.random.key(0)))
            counted = _dots(jax.make_jaxpr(plain.gradients(case))(cotangents, *arrays).jaxpr)
            stated = case.flops("vjp").get("mxu", 0.0)
            # jax.vjp runs the forward pass too; a formula may count it or not, as the gradient needs it or not.
            if counted not in (stated, stated + case.flops("fwd").get("mxu", 0.0)):
                raise ConformanceError(f"{test.where}: gradient has {counted} flops in products; manifest {stated}")


def _dots(jaxpr: Any) -> float:
    """Twice the multiply-adds of every dot_general, in nested jaxprs too (but one branch of a conditional)."""
    total = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            ((contracted, _), _) = eqn.params["dimension_numbers"]
            left = eqn.invars[0].aval.shape
            total += 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
        for value in eqn.params.values():
            inner = value[:1] if isinstance(value, tuple | list) else [value]
            for one in inner:
                if hasattr(one, "eqns"):
                    total += _dots(one)
                elif hasattr(getattr(one, "jaxpr", None), "eqns"):
                    total += _dots(one.jaxpr)
    return total
