"""Block sizes are legal for Mosaic and fit VMEM for every shape there is, on every chip."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tops_kernels.ops.matmul import _pallas_gpu_config as matmul_gpu
from tops_kernels.ops.matmul.config import (
    MatmulTpuConfig,
    Product,
    default_config,
    search_space,
    vmem_bytes,
    vmem_limit,
)
from tops_kernels.ops.rms_norm import _pallas_gpu_config as rms_gpu
from tops_kernels.ops.rms_norm import config as rms
from tops_kernels.runtime.chip import UNKNOWN, Chip, chip

SIZES = st.one_of(st.integers(1, 300), st.integers(1, 1 << 20), st.sampled_from([2**power for power in range(21)]))
CHIPS = (UNKNOWN, Chip(128 << 20, 240.0), Chip(64 << 20, 600.0), Chip(16 << 20, 230.0))
SLOW = settings(deadline=None, max_examples=60)


@SLOW
@given(
    m=SIZES,
    n=SIZES,
    k=SIZES,
    groups=st.integers(1, 64),
    itemsize=st.sampled_from([1, 2, 4]),
    out=st.sampled_from([2, 4]),
    transposed=st.booleans(),
    on=st.sampled_from(CHIPS),
)
def test_matmul_blocks_are_multiples_of_128_or_the_whole_and_fit(
    m: int, n: int, k: int, groups: int, itemsize: int, out: int, transposed: bool, on: Chip
) -> None:
    product = Product(groups=groups, m=m, n=n, k=k, itemsize=itemsize, out_itemsize=out, transposed=transposed)
    config = default_config(product, on)
    for block, size in ((config.block_m, m), (config.block_n, n), (config.block_k, k)):
        assert block == size or (block % 128 == 0 and block <= size + 127)
    assert vmem_bytes(config, product) <= (vmem_limit(on) or 16 << 20)


def test_a_large_chip_is_let_use_more_than_the_compilers_default_and_a_small_one_is_not() -> None:
    assert vmem_limit(UNKNOWN) is None
    assert (vmem_limit(Chip(128 << 20, 240.0)) or 0) == 96 << 20


def test_without_a_tpu_the_chip_is_the_least_of_all() -> None:
    assert chip() == UNKNOWN


@SLOW
@given(n=st.integers(0, 1 << 22), d=SIZES)
def test_rms_norm_blocks_are_tiles_and_fit(n: int, d: int) -> None:
    config = rms.default_config(n=n, d=d)
    assert config.block_n % 16 == 0
    assert config.block_d == d or config.block_d % 128 == 0
    lanes = math.ceil(config.block_d / 128) * 128
    assert 6 * 4 * config.block_n * lanes <= 8 << 20  # six float32 blocks at once, of 16 MiB


@SLOW
@given(
    n=st.integers(0, 1 << 22),
    d=SIZES,
    dtype=st.sampled_from(["bfloat16", "float32"]),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_rms_norm_blocks_of_the_backward_pass_fit_and_hold_no_more_pairs_of_rows_than_two_mxus_wide(
    n: int, d: int, dtype: str, flags: tuple[bool, bool]
) -> None:
    large = Chip(64 << 20, 312.0, generation=7)
    config = rms.backward_config(n=n, d=d, dtype=dtype, is_scaled=flags[0], is_added=flags[1], on=large)
    usual = rms.default_config(n=n, d=d)
    if config.mxu_squares:
        assert (dtype, *flags) == ("bfloat16", True, False)
        assert usual.block_n < config.block_n <= min(n, 256)
        assert 6 * 2 * config.block_n * d <= 13 << 20  # x, dy and the gradient, two buffers of each, of 64 MiB
    else:
        assert config.block_n in (usual.block_n, 2 * usual.block_n)
        assert 6 * 2 * config.block_n * math.ceil(config.block_d / 128) * 128 <= 13 << 20
    assert rms.backward_config(n=n, d=d, dtype=dtype, is_scaled=True, is_added=False, on=UNKNOWN) == usual


def _is_power(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@SLOW
@given(m=SIZES, n=SIZES, k=SIZES, itemsize=st.sampled_from([1, 2, 4]))
def test_gpu_matmul_blocks_are_powers_of_two_that_fit_the_least_shared_memory(
    m: int, n: int, k: int, itemsize: int
) -> None:
    config = matmul_gpu.default_config(m=m, n=n, k=k, itemsize=itemsize)
    for block in (config.block_m, config.block_n, config.block_k):
        assert _is_power(block)
        assert block >= 16
    assert config.block_k >= (32 if itemsize == 1 else 16)
    assert matmul_gpu.shared_bytes(config, itemsize) <= 99 << 10  # what sm_89 lets a block have; sm_80 and on: 163 KiB


@SLOW
@given(n=st.integers(0, 1 << 22), d=SIZES)
def test_gpu_rms_norm_blocks_are_powers_of_two_and_fit_registers(n: int, d: int) -> None:
    config = rms_gpu.default_config(n=n, d=d)
    assert _is_power(config.block_n)
    assert _is_power(config.block_d)
    assert config.block_n * config.block_d <= 32 * 32 * config.num_warps
    assert rms_gpu.steps(n, config) * config.block_n * 256 >= n


@pytest.mark.parametrize("which", ["fwd", "vjp"])
def test_gpu_search_spaces_start_with_the_heuristics_choice(which: str) -> None:
    found = matmul_gpu.search_space(which, {"a": _aval(512, 256), "b": _aval(256, 512)}, {})
    assert len(found) == len(set(found)) > 10
    assert all(matmul_gpu.shared_bytes(config, 4) <= 99 << 10 for config in found)
    rows = rms_gpu.search_space(which, {"x": _aval(4096, 1024)}, {})
    assert rows[0] == rms_gpu.default_config(n=4096, d=1024)
    assert len(rows) == len(set(rows)) > 3


@pytest.mark.parametrize("field", ["block_m", "block_n", "block_k"])
@pytest.mark.parametrize("value", [0, 8, 48])
def test_a_gpu_block_that_is_no_power_of_two_from_16_is_refused(field: str, value: int) -> None:
    sizes = {"block_m": 64, "block_n": 64, "block_k": 32, field: value}
    with pytest.raises(ValueError, match=f"matmul: {field} is {value}; expected a power of two, at least 16"):
        matmul_gpu.MatmulGpuConfig(**sizes, num_warps=4, num_stages=2)
    with pytest.raises(ValueError, match="rms_norm: block_n is 3; expected a power of two"):
        rms_gpu.RmsNormGpuConfig(block_n=3, block_d=128, num_warps=4)


@pytest.mark.parametrize("field", ["block_m", "block_n", "block_k"])
def test_a_matmul_block_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"matmul: {field} is 0; expected at least 1"):
        MatmulTpuConfig(**{"block_m": 128, "block_n": 128, "block_k": 128, field: 0})


@pytest.mark.parametrize(
    ("block_n", "block_d", "what"), [(8, 128, "block_n is 8"), (24, 128, "24"), (16, 0, "block_d")]
)
def test_a_rms_norm_block_that_is_no_tile_is_refused(block_n: int, block_d: int, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        rms.RmsNormTpuConfig(block_n=block_n, block_d=block_d)


@pytest.mark.parametrize("which", ["fwd", "vjp"])
@pytest.mark.parametrize("shape", [(8, 8, 8), (1, 5000, 3), (4096, 4096, 4096), (300, 129, 70000)])
def test_a_search_space_starts_with_the_heuristics_choice_and_holds_no_two_alike(
    which: str, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = _aval(m, k), _aval(k, n)
    found = search_space(which, {"a": a, "b": b}, {})
    assert len(found) == len(set(found)) >= 1
    if which == "fwd":
        assert found[0] == default_config(Product(groups=1, m=m, n=n, k=k, itemsize=4, out_itemsize=4), chip())
    rows = rms.search_space(which, {"x": _aval(m, k)}, {})
    assert rows[0] == rms.default_config(n=m, d=k)
    assert len(rows) == len(set(rows))


def _aval(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.float32(0), shape)  # no memory, whatever the shape
