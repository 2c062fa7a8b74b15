"""Block sizes of matmul on TPU. They change speed, never results."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tops_kernels.runtime.chip import Chip, chip

_DEFAULT_LIMIT = 16 << 20  # VMEM that the compiler gives a kernel unless told otherwise, on every chip
_STEP_BYTES = 128 << 10  # what HBM moves while a grid step's own bookkeeping runs
_SUM_TERMS = (
    128  # adding a block to the sum in VMEM takes as long as this many terms more of the product (v4, v6e schedules)
)
_SHADOW = (5, 7)  # generations that add to the sum while the MXU is at the step's product (their schedules), and
_SHADOW_STEP_BYTES = 24 << 10  # do most of a step's bookkeeping then: this is left of it


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MatmulTpuConfig:
    """The block of the result a grid step works on, and how much of the sum it adds."""

    block_m: int  # rows; a multiple of 128, or all of M
    block_n: int  # columns; a multiple of 128, or all of N
    block_k: int  # terms of the sum; a multiple of 128, or all of K

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"matmul: {name} is {getattr(self, name)}; expected at least 1")

    def misfit(self, which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> str:
        """Why this must not be used for a call on the chip that is traced for; "" where it may. Arguments as `search_space` has them."""
        most = _room(chip())
        for product in _products(which, inputs, params):
            for label, block, size in (
                ("block_m", self.block_m, product.m),
                ("block_n", self.block_n, product.n),
                ("block_k", self.block_k, product.k),
            ):
                if block < size and block % 128:
                    return f"{label} is {block}; expected a multiple of 128, or all of {size}"
            held = vmem_bytes(self, product)
            if held > most:
                return f"its blocks take {held} bytes of VMEM; there is room for {most}"
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One launch: [groups, m, k] times [groups, k, n]."""

    groups: int
    m: int
    n: int
    k: int
    itemsize: int  # of the operands
    out_itemsize: int  # of all results together
    transposed: bool = False  # the left operand lies as [k, m]: its block is turned in VMEM
    activated: bool = False  # there is an activation to apply at the end of a sum


def vmem_limit(on: Chip) -> int | None:
    """What to let the compiler use: three quarters of a large VMEM; None, its own default, on a chip of 16 MiB."""
    return None if on.vmem_bytes <= _DEFAULT_LIMIT else on.vmem_bytes * 3 // 4


def _room(on: Chip) -> int:
    """Of the limit, what blocks may take: the rest is the compiler's, for what it spills."""
    return (vmem_limit(on) or _DEFAULT_LIMIT) * 13 // 16


def vmem_bytes(config: MatmulTpuConfig, product: Product) -> int:
    """Two buffers of each block; the sum and the part that is added to it; what operands turn into on their way to the MXU."""
    m, n, k = _clipped(config, product)
    operands = m * k + k * n
    held = 2 * operands * product.itemsize + 2 * m * n * product.out_itemsize + 4 * m * n
    if k < product.k:
        held += 4 * m * n  # the sum across steps
    if product.itemsize == 4:
        held += 6 * operands  # float32 as three bfloat16 parts
    if product.k % k:
        held += 8 * operands  # the last block is masked, as 32-bit numbers
    if product.transposed:
        held += m * k * product.itemsize
    return held


def default_config(product: Product, on: Chip) -> MatmulTpuConfig:
    """The cheapest of those that fit, by a model of HBM traffic, MXU time with padding, sums, and the pipeline's ends."""
    most = _room(on)
    candidates = list(_candidates(product))
    fitting = [config for config in candidates if vmem_bytes(config, product) <= most]
    if not fitting:
        return min(candidates, key=lambda config: vmem_bytes(config, product))
    return min(fitting, key=lambda config: (_cost(config, product, on), dataclasses.astuple(config)))


def _candidates(product: Product) -> Iterator[MatmulTpuConfig]:
    axes = [
        sorted({_block(size, most) for most in mosts})
        for size, mosts in (
            (product.m, (128, 256, 512, 1024, 2048)),
            (product.n, (128, 256, 512, 1024, 2048)),
            (product.k, (256, 512, 1024, 2048, 4096)),
        )
    ]
    for m, n, k in itertools.product(*axes):
        yield MatmulTpuConfig(block_m=m, block_n=n, block_k=k)


def _cost(config: MatmulTpuConfig, product: Product, on: Chip) -> float:
    """Bytes that HBM could move in the estimated time. Grid: rows, columns, terms, the last fastest."""
    m, n, k = _clipped(config, product)
    rows, columns, steps = math.ceil(product.m / m), math.ceil(product.n / n), math.ceil(product.k / k)
    a = product.m * product.k * (1 if steps == 1 else columns)  # a block stays while only columns move
    b = product.k * product.n * (1 if steps == columns == 1 else rows)
    moved = product.groups * ((a + b) * product.itemsize + product.m * product.n * product.out_itemsize)
    passes = {4: 6.0, 2: 1.0, 1: 0.5}[product.itemsize]
    shadowed = _shadowed(product, (m, n, k), on)
    terms = steps * (
        passes * _round_up(k, 128) + (_SUM_TERMS if steps > 1 and not shadowed else 0)
    )  # the sum is added to once, after all passes
    flops = 2.0 * product.groups * rows * _round_up(m, 8) * columns * _round_up(n, 128) * terms
    ends = (m * k + k * n) * product.itemsize + m * n * product.out_itemsize
    busy = flops / on.flops_per_byte
    step = _SHADOW_STEP_BYTES if shadowed and busy > moved else _STEP_BYTES
    fewer = moved / (1 << 20) if shadowed else 0.0  # decides between equals
    return max(busy, moved) + ends + step * product.groups * rows * columns * steps + fewer


def _shadowed(product: Product, blocks: tuple[int, int, int], on: Chip) -> bool:
    """Whether the MXU is at work for long enough to hide the sum and a step's bookkeeping: in plain products of large bfloat16 blocks.

    Activations and blocks that are turned take the vector unit's time themselves: with them it shows (v5e, tpu7x: up to 5 %).
    """
    is_plain = product.itemsize == 2 and not product.transposed and not product.activated
    sizes = (product.m, product.n, product.k)
    whole = all(block % 512 == 0 and size % block == 0 for block, size in zip(blocks, sizes, strict=True))
    return is_plain and whole and on.generation in _SHADOW and on.cores == 1  # of two cores no schedule was tried


def _clipped(config: MatmulTpuConfig, product: Product) -> tuple[int, int, int]:
    return min(config.block_m, product.m), min(config.block_n, product.n), min(config.block_k, product.k)


def _round_up(size: int, tile: int) -> int:
    return math.ceil(size / tile) * tile


def _block(size: int, most: int) -> int:
    """All of a short dimension, else a multiple of 128, of at most `most`, that wastes little of the last block."""
    if size <= most:
        return max(size, 1)
    return _round_up(math.ceil(size / math.ceil(size / most)), 128)


def search_space(which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[MatmulTpuConfig, ...]:
    """The heuristic's choice first, then others that fit, the cheapest by the model first. `inputs`: name -> anything with shape and dtype.

    For "vjp" the blocks are those of the larger product, da = dz b^T.
    """
    product = _products(which, inputs, params)[0]
    on = chip()
    first = default_config(product, on)
    others = [
        config
        for config in _candidates(product)
        if min(config.block_m, config.block_n) >= min(256, product.m, product.n)
        and config.block_k >= min(512, product.k)
        and vmem_bytes(config, product) <= _room(on)
    ]
    return tuple(dict.fromkeys([first, *sorted(others, key=lambda config: _cost(config, product, on))]))


def _products(which: str, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> list[Product]:
    """What a pass launches with one configuration. The forward pass of a call with an activation may have to keep its sum: another result."""
    a, b = inputs["a"], inputs["b"]
    shared = len(b.shape) == 2
    groups = 1 if shared else math.prod(a.shape[:-2])
    m, k, n = math.prod(a.shape[:-1]) if shared else a.shape[-2], a.shape[-1], b.shape[-1]
    itemsize = {"float32": 4, "bfloat16": 2, "int8": 1}[str(a.dtype)]
    if which == "vjp":  # gradients come in the operands' dtype
        da = Product(groups=groups, m=m, n=k, k=n, itemsize=itemsize, out_itemsize=itemsize)
        return [da, dataclasses.replace(da, m=k, n=n, k=m, transposed=True)]
    out = 2 if str(a.dtype) == "bfloat16" and params.get("out_dtype") in (None, "bfloat16") else 4
    plain = Product(groups=groups, m=m, n=n, k=k, itemsize=itemsize, out_itemsize=out)
    if params.get("activation", "none") == "none":
        return [plain]
    kept = dataclasses.replace(plain, out_itemsize=out + 4, activated=True)
    return [dataclasses.replace(plain, activated=True), kept]
