"""How far an array is from the oracle's: one number, and strict rules for what has no distance."""

import math

import numpy as np
import numpy.typing as npt

# Sums are made of float32 terms. Where the terms cancel (one element that comes out near 0, the gradient of a norm over
# one element), their own rounding, some 16 times 2^-24 of their size, is all that can be asked.
# Both numbers stand in tolerances.lock: they loosen as a tolerance does.
TERM_ROUNDING = 1e-6
LARGEST_ROUNDING = 4e-6  # the largest of many roundings


class ConformanceError(AssertionError):
    """A kernel does not do what its contract or its oracle says."""


def relative_error(what: str, got: npt.ArrayLike, want: npt.NDArray[np.float64], *, terms: float = 0.0) -> float:
    """The larger of |got - want| / |want| in the 2-norm and in the max-norm.

    `terms`: root mean square of the terms that were summed; their rounding (TERM_ROUNDING) is then not counted.
    Raises ConformanceError, naming the first place, for a NaN anywhere, and for an infinity that the oracle has not.
    """
    values = np.asarray(got).astype(np.float64)
    if values.shape != want.shape:
        raise ConformanceError(f"{what} has shape {values.shape}; the oracle's is {want.shape}")
    if np.isnan(want).any():
        raise ConformanceError(f"{what}: the oracle is NaN at {_first(np.isnan(want))}; no kernel is judged there")
    if np.isnan(values).any():
        at = _first(np.isnan(values))
        raise ConformanceError(f"{what} is NaN at {at}; the oracle has {want[at]}")
    infinite = np.isinf(want) | np.isinf(values)
    wrong = infinite & (values != want)
    if wrong.any():
        at = _first(wrong)
        raise ConformanceError(f"{what} is {values[at]} at {at}; the oracle has {want[at]}")
    if not want.size:
        return 0.0
    values, want = np.where(infinite, 0.0, values), np.where(infinite, 0.0, want)
    difference, free = np.abs(values - want), TERM_ROUNDING * terms
    by_norm = _ratio(float(np.linalg.norm(difference)) - free * math.sqrt(want.size), float(np.linalg.norm(want)))
    by_max = _ratio(float(difference.max()) - LARGEST_ROUNDING * terms, float(np.abs(want).max()))
    return max(by_norm, by_max)


def _ratio(error: float, size: float) -> float:
    if error <= 0.0:
        return 0.0
    return error / size if size else math.inf


def _first(mask: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(index) for index in np.argwhere(mask)[0])
