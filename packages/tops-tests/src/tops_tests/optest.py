"""OpTest: a workload with its reference program and `check()`. Shape and dtype first, exactly; then values, by name."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from tops_manifest import ArraySpec
from tops_manifest.model import Pass
from tops_tests import oracles
from tops_tests.compare import ConformanceError, relative_error
from tops_tests.tolerances import tolerance
from tops_workloads import Workload

_T = TypeVar("_T")
_PROBE = 1e-6  # relative step that shows the size of the terms of a sum

Values = Mapping[str, npt.NDArray[np.float64]]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """How far one output is from the oracle's, and how far it may be."""

    measured: float
    tolerance: float


class OpTest(Workload):
    """One case of an op: inputs from the workload, truth from the oracle, judgement from the table of tolerances."""

    def gen_cotangents(self, key: jax.Array) -> tuple[jax.Array, ...]:
        """A standard normal cotangent for every output."""
        result = []
        for index, spec in enumerate(self.case.outputs().values()):
            values = jax.random.normal(jax.random.fold_in(key, index), spec.shape, jnp.float32)
            result.append(values.astype(spec.dtype))
        return tuple(result)

    def positional(self, inputs: Mapping[str, _T]) -> tuple[_T | None, ...]:
        """Every input of the signature in order; None where not given."""
        return tuple(inputs.get(spec.name) for spec in self.case.op.inputs)

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The given inputs that have a gradient: named by the contract, and of a floating dtype."""
        specs = self.case.inputs()
        return tuple(
            name for name in self.case.op.vjp if name in specs and jnp.issubdtype(specs[name].dtype, jnp.floating)
        )

    def reference(self, inputs: Mapping[str, npt.ArrayLike]) -> Values:
        """The oracle's outputs by name."""
        op = self.case.op
        run = oracles.forward(op)
        values = self._afford(lambda: run(*self.positional(inputs), **self.case.params))
        return dict(zip((spec.name for spec in op.outputs), values, strict=True))

    def reference_vjp(self, cotangents: Sequence[npt.ArrayLike], inputs: Mapping[str, npt.ArrayLike]) -> Values:
        """The oracle's gradients by name: "dx" for input x."""
        run = oracles.backward(self.case.op)
        values = self._afford(lambda: run(cotangents, self.positional(inputs), self.case.params))
        return {f"d{name}": values[name] for name in self.differentiable}

    def check(self, outputs: object, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Measured]:
        """Holds what a forward call gave against contract and oracle. Raises ConformanceError naming op and output."""
        arrays = self._as_specified(outputs, self.case.outputs())
        return self._judge("fwd", arrays, self.reference(inputs), lambda: self._terms(inputs))

    def check_gradients(
        self,
        gradients: Mapping[str, object],
        cotangents: Sequence[npt.ArrayLike],
        inputs: Mapping[str, npt.ArrayLike],
    ) -> dict[str, Measured]:
        """Holds gradients, by input name, against primal dtypes and the oracle's own vjp."""
        specs = self.case.inputs()
        expected = {f"d{name}": specs[name] for name in self.differentiable}
        if set(gradients) != set(self.differentiable):
            raise ConformanceError(f"{self.where}: gradients of {set(gradients)}; expected {set(self.differentiable)}")
        arrays = self._as_specified(tuple(gradients[name] for name in self.differentiable), expected)
        size = max((_rms(np.asarray(c).astype(np.float64)) for c in cotangents), default=0.0)
        return self._judge("vjp", arrays, self.reference_vjp(cotangents, inputs), lambda: dict.fromkeys(expected, size))

    @property
    def where(self) -> str:
        """Names the case in messages: op, row, shapes, params."""
        shapes = ", ".join(f"{name} {spec}" for name, spec in self.case.inputs().items())
        params = "".join(f", {name}={value!r}" for name, value in self.case.params.items())
        return f"{self.case.op.name} ({shapes}{params})"

    def _as_specified(self, values: object, specs: Mapping[str, ArraySpec]) -> dict[str, jax.Array]:
        """The arrays by name, once their number, shapes and dtypes are exactly as specified."""
        arrays = values if isinstance(values, tuple | list) else (values,)
        if len(arrays) != len(specs):
            raise ConformanceError(f"{self.where}: {len(arrays)} arrays; expected {len(specs)}: {', '.join(specs)}")
        for (name, spec), array in zip(specs.items(), arrays, strict=True):
            if not isinstance(array, jax.Array):
                raise ConformanceError(f"{self.where}: {name} is a {type(array).__name__}; expected a jax.Array")
            got = ArraySpec(array.shape, str(array.dtype))
            if got != spec or array.weak_type:
                weak = " (weakly typed)" if array.weak_type else ""
                raise ConformanceError(f"{self.where}: {name} is {got}{weak}; expected {spec}")
        return dict(zip(specs, arrays, strict=True))

    def _judge(
        self, which: Pass, arrays: Mapping[str, jax.Array], truth: Values, terms: Callable[[], Mapping[str, float]]
    ) -> dict[str, Measured]:
        result, sizes = {}, None
        for name, array in arrays.items():
            allowed = tolerance(self.case.op.name, str(array.dtype), name, which, of=self._operands)
            what = f"{self.where}: {name}"
            error = relative_error(what, array, truth[name])
            if error > allowed and jnp.issubdtype(array.dtype, jnp.floating):
                sizes = terms() if sizes is None else sizes
                error = relative_error(what, array, truth[name], terms=sizes[name])
            if error > allowed:
                raise ConformanceError(f"{what} is off by {error:.3g} (relative, by norm); tolerance {allowed:g}")
            result[name] = Measured(error, allowed)
        return result

    @property
    def _operands(self) -> str:
        """The dtype of the first input: what the products are taken of."""
        return next(iter(self.case.inputs().values())).dtype

    def _terms(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, float]:
        """Root mean square of the terms each output sums: how it answers to relative changes of either sign."""
        random = np.random.default_rng(0)
        moved: dict[str, npt.ArrayLike] = {}
        for name, array in inputs.items():
            if not jnp.issubdtype(np.asarray(array).dtype, jnp.floating):
                moved[name] = array  # boundaries and the like: no terms
                continue
            values = np.asarray(array).astype(np.float64)
            moved[name] = values * (1 + _PROBE * random.choice((-1.0, 1.0), values.shape))
        before, after = self.reference(inputs), self.reference(moved)
        return {name: _rms((after[name] - before[name]) / _PROBE) for name in before}

    def _afford(self, run: Callable[[], _T]) -> _T:
        try:
            return run()
        except MemoryError as error:  # never a reason to let a kernel pass unjudged
            raise ConformanceError(f"{self.where}: the oracle ran out of memory; give it a smaller case") from error


def _rms(values: npt.NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(values * values))) if values.size else 0.0
