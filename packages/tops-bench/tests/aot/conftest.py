"""Recorded dumps of two small kernels of this folder's own (libtpu 0.0.42.1, v5e), and a chip with round numbers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tops_bench.aot import bundles, dumps
from tops_bench.aot.dumps import Dump
from tops_bench.aot.targets import Chip

DATA = Path(__file__).parent / "data"


@pytest.fixture
def recorded() -> Callable[[str], Dump]:
    """`tiny`: y = a @ b over a grid of (2, 4), accumulated, with a pl.when at the first and the last k.
    `gather`: a grid of 4 that prefetches an index a step and works only where it is positive."""

    def read(name: str) -> Dump:
        def text(what: str) -> str:
            return (DATA / f"{name}.{what}.txt").read_text()

        return Dump(
            name,
            bundles.parse(text("final_bundles"), name),
            bundles.parse_utilization(text("final_hlo-static-per-bundle-utilization"), name),
            dumps.allocations(text("allocations")),
        )

    return read


@pytest.fixture
def chip() -> Chip:
    return Chip("test", 5, 1, 4, 128, 1 << 27, 1 << 20, 1e12, 2 * 4 * 128**2 * 1e9, 4 * 4 * 128**2 * 1e9)
