"""A manifest row as something to run: its shapes, its parameters, and inputs drawn for it."""

import math
import zlib
from collections.abc import Mapping

import jax

from tops_manifest import ArraySpec
from tops_manifest.model import ParamValue, Pass
from tops_manifest.workloads import Case, cases
from tops_workloads.distributions import draw, draw_distinct, draw_rising


class Workload:
    """One row of the manifest at one choice of dtypes. Has shapes and values, and no opinion on results."""

    __slots__ = ("_case",)

    def __init__(self, case: Case) -> None:
        self._case = case

    @property
    def case(self) -> Case:
        """The row. `Workload(workload.case.fit(max_bytes))` is the nearest copy that fits a machine."""
        return self._case

    @property
    def params(self) -> Mapping[str, ParamValue]:
        """The static parameters the row sets."""
        return self._case.params

    def kwargs(self) -> dict[str, ParamValue]:
        """`params` as keyword arguments of the public function."""
        return dict(self._case.params)

    def avals(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape and dtype of each given input, in the signature's order."""
        return {
            name: jax.ShapeDtypeStruct(spec.shape, spec.dtype)  # type: ignore[no-untyped-call]  # jax has no types for it
            for name, spec in self._case.inputs().items()
        }

    def gen_inputs(self, key: jax.Array) -> dict[str, jax.Array]:
        """One array for each given input, in the signature's order.

        Args:
          key: a JAX random key. Each input folds its own name into it, so its values do not depend on which others are given.
        Returns: arrays of the row's shapes and dtypes with values in each input's domain (`tops_workloads.distributions`);
          an input that `rises` has values from 0 to at most the size of its dimension, one that `indexes` has positions along it.
        """
        return {name: self._draw(_fold(key, name), name, spec) for name, spec in self._case.inputs().items()}

    def _draw(self, key: jax.Array, name: str, spec: ArraySpec) -> jax.Array:
        declared = self._case.op.input(name)
        if declared.rises is not None:
            return draw_rising(key, spec.shape[0], spec.dtype, self._size(declared.rises))
        if declared.indexes is not None:
            return draw_distinct(key, spec.shape[0], spec.dtype, self._size(declared.indexes))
        return draw(key, spec.shape, spec.dtype, declared.domain)

    def _size(self, name: str) -> int:
        size = self._case.dims[name]
        return math.prod(size) if isinstance(size, tuple) else size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workload) and self._name() == other._name()

    def __hash__(self) -> int:
        return hash(self._name())

    def _name(self) -> tuple[str, str]:
        return self._case.op.name, self._case.label

    def __repr__(self) -> str:
        return f"Workload({self._case.op.name}, {self._case.label})"


def _fold(key: jax.Array, name: str) -> jax.Array:
    """A key of its own for each name, the same in every process (Python's hash of a string is not)."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def workloads(op: str, which: Pass | None = None) -> tuple[Workload, ...]:
    """Every row of one op at every choice of dtypes; with `which`, those that run this pass.

    Raises KeyError for an op the manifest does not have.
    """
    return tuple(Workload(case) for case in cases(op, which))


def parametrization(op: str, which: Pass | None = None) -> tuple[list[Workload], list[str]]:
    """Values and ids for pytest: `@pytest.mark.parametrize("workload", values, ids=ids)`."""
    found = workloads(op, which)
    return list(found), [workload.case.label for workload in found]
