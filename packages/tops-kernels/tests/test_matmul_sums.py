"""The two ways in which matmul's TPU kernel adds up blocks of K give one result."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tops_kernels.ops.matmul import pallas_tpu
from tops_kernels.ops.matmul.config import MatmulTpuConfig, Product, _cost, default_config
from tops_kernels.runtime.chip import Chip

V5E = Chip(128 << 20, 240.2, 5)
TPU7X = Chip(64 << 20, 312.2, 7)
V6E = Chip(128 << 20, 560.0, 6)
SQUARE = Product(groups=1, m=4096, n=4096, k=4096, itemsize=2, out_itemsize=2)


@pytest.mark.parametrize("k", [384, 300], ids=["whole blocks", "a ragged last block"])
def test_a_sum_that_products_go_straight_into_is_the_sum(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((16, k), (k, 128)))
    config = MatmulTpuConfig(block_m=16, block_n=128, block_k=128)
    found: list[Any] = []
    for generation in (7, 0):  # from here on: none, all
        monkeypatch.setattr(pallas_tpu, "_STRAIGHT", generation)
        out = pallas_tpu.matmul_fwd(
            *(np.asarray(x) for x in (a, b)), None,  # type: ignore[arg-type]  # NumPy stands for jax's arrays
            activation="silu", out_dtype=np.float32, keep=True, config=config, interpret=True,
        )  # fmt: skip
        found.append([np.asarray(x) for x in out])
    for plain, straight in zip(*found, strict=True):
        np.testing.assert_array_equal(plain, straight)
    np.testing.assert_allclose(found[0][1], a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("on", [V5E, TPU7X])
def test_where_the_mxu_hides_a_steps_work_a_large_product_takes_short_steps(on: Chip) -> None:
    assert default_config(SQUARE, on) == MatmulTpuConfig(block_m=1024, block_n=1024, block_k=512)


def test_where_it_does_not_a_sum_is_not_split() -> None:
    assert default_config(SQUARE, V6E).block_k == 4096


def test_an_activation_is_not_hidden() -> None:
    config = MatmulTpuConfig(block_m=1024, block_n=1024, block_k=512)
    assert _cost(config, dataclasses.replace(SQUARE, activated=True), V5E) > _cost(config, SQUARE, V5E)
