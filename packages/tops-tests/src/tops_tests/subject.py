"""What is tested: a function that claims to be an op, by one of its implementations."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

import tops_kernels
from tops_manifest import Op
from tops_manifest.model import Pass
from tops_manifest.workloads import Case
from tops_tests.optest import Measured, OpTest
from tops_tests.untouched import untouched

# Keys of kernel_map that can be interpreted on a machine without their device.
INTERPRETED = ("pallas_tpu", "pallas_gpu")
# (op, key) whose interpreted program takes XLA ten seconds and more to compile, each shape anew: held in full at night.
# simple_gla_step's kernel is gla_step's, which is held for every change.
LONG = frozenset({("gla", "pallas_tpu"), ("simple_gla", "pallas_tpu"), ("simple_gla_step", "pallas_tpu")})


@dataclasses.dataclass(frozen=True)
class Subject:
    """`implementation` None leaves the choice to dispatch, "baseline:<name>" is a function outside of tops_kernels."""

    op: Op
    function: Callable[..., Any]
    implementation: str | None = None
    interpret: object = False  # False, True, or the interpreter's own parameters

    def __str__(self) -> str:
        how = "" if self.interpret is False else ", interpreted"
        return f"{self.op.name}[{self.implementation or 'dispatch'}{how}]"

    @property
    def is_long(self) -> bool:
        """Interpreted, and too long to compile for every change."""
        return self.interpret is not False and (self.op.name, self.implementation) in LONG

    @property
    def is_baseline(self) -> bool:
        return self.implementation is not None and self.implementation.startswith("baseline:")

    def call(self, case: Case) -> Callable[..., tuple[Any, ...]]:
        """A function of the case's given inputs alone, in the signature's order; always a tuple of outputs."""
        function = functools.partial(self.function, **case.params, **self._choice())
        given = tuple(case.inputs())

        def run(*arrays: Any) -> tuple[Any, ...]:
            by_name = dict(zip(given, arrays, strict=True))
            result = function(*(by_name.get(spec.name) for spec in case.op.inputs))
            return tuple(result) if isinstance(result, tuple | list) else (result,)

        return run

    def _choice(self) -> dict[str, object]:
        if self.is_baseline:
            return {}
        return {"backend": self.implementation, "interpret": self.interpret}

    def gradients(self, case: Case) -> Callable[..., dict[str, Any]]:
        """A function (cotangents, *inputs) -> gradients by input name."""
        test, run = OpTest(case), self.call(case)
        given = tuple(case.inputs())
        wanted = tuple(given.index(name) for name in test.differentiable)

        def backward(cotangents: Sequence[Any], *arrays: Any) -> dict[str, Any]:
            def of_wanted(*parts: Any) -> tuple[Any, ...]:
                full = list(arrays)
                for index, part in zip(wanted, parts, strict=True):
                    full[index] = part
                return run(*full)

            _, vjp = jax.vjp(of_wanted, *(arrays[index] for index in wanted))
            return dict(zip(test.differentiable, vjp(tuple(cotangents)), strict=True))

        return backward


def public(op: Op) -> Callable[..., Any]:
    """The op's public function. Raises LookupError where tops_kernels has none."""
    function = getattr(tops_kernels, op.name, None)
    if not callable(function):
        raise LookupError(f"{op.name}: tops_kernels has no function of this name")
    return function  # type: ignore[no-any-return]  # callable, and more is not known before it is tested


def dispatched(op: Op) -> Subject:
    return Subject(op, public(op))


def implementations(op: Op, interpret: object = True) -> Iterator[tuple[str, Subject | None, str]]:
    """(kernel_map key, the subject or None, why not): run natively where this machine can, interpreted where possible.

    The subject's contract is without the inputs that the implementation does not take.
    """
    platform = jax.default_backend()
    for key in op.kernel_map:
        answer = tops_kernels.support(op.name, key, platform)
        if answer.ok:
            yield key, Subject(op.as_taken_by(key), public(op), key), ""
        elif key in INTERPRETED:
            yield key, Subject(op.as_taken_by(key), public(op), key, interpret), ""
        else:
            yield key, None, f"not-supported: {answer.reason}"


def measure(subject: Subject, case: Case, which: Pass, seed: int = 0) -> dict[str, Measured]:
    """Runs one pass, compiled, and holds it against the oracle. Raises ConformanceError where it is off."""
    test = OpTest(case)
    key = jax.random.key(seed)
    inputs = test.gen_inputs(key)
    cotangents = test.gen_cotangents(jax.random.fold_in(key, 1))
    with untouched(test.where):
        if which == "fwd":
            outputs = jax.jit(subject.call(case))(*inputs.values())
        else:
            gradients = jax.jit(subject.gradients(case))(cotangents, *inputs.values())
    if which == "fwd":
        return test.check(outputs, inputs)
    return test.check_gradients(gradients, cotangents, inputs)


def case(
    op: Op,
    dims: Mapping[str, int | tuple[int, ...]],
    dtypes: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    present: Sequence[str] | None = None,
    alternatives: Mapping[str, int] | None = None,
    row: str = "drawn",
) -> Case:
    """A case that is no row of the manifest. Left out: the first dtype of each variable, every optional input given."""
    chosen = {name: choices[0] for name, choices in op.free_dtypes.items()} | dict(dtypes or {})
    chosen |= {var.name: var.derive(chosen[var.source]) for var in op.dtypes if var.source is not None}
    optional = tuple(spec.name for spec in op.inputs if spec.optional)
    return Case(
        op=op,
        row=row,
        dims=dict(dims),
        dtypes=chosen,
        params=dict(params or {}),
        present=optional if present is None else tuple(present),
        alternatives=dict(alternatives or {}),
        passes=("fwd", "vjp") if op.vjp else ("fwd",),
    )
