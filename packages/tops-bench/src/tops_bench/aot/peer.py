"""A peer's published measurements to hold the estimates against: tokamax ships autotuning data, times measured on real TPUs.

Needs `tokamax` (Python >= 3.12), which is no dependency: `uv run --python 3.13 --with tokamax --with 'jax[tpu]' tops-bench aot --validate c`.
Only shapes, configurations and times are read from it; its kernels are compiled as they are.
"""

import dataclasses
import importlib
import importlib.metadata
import importlib.resources
import json
import re
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tops_bench.aot.avals import aval

INSTALL = "uv run --python 3.13 --with tokamax --with 'jax[tpu]' tops-bench aot --validate c"
FOLDERS: Mapping[str, str] = {"v5e": "tpu_v5_lite", "v5p": "tpu_v5", "v6e": "tpu_v6_lite", "tpu7x": "tpu7x"}
KERNELS: Mapping[str, str] = {
    "ragged_dot": "pallas_mosaic_tpu_ragged_dot",
    "attention": "pallas_mosaic_tpu_flash_attention",
}
# Ops that the peer leaves to XLA, and times of what XLA made of them: to judge estimates of fusions by.
XLA_PROGRAMS: Mapping[str, str] = {"normalization": "normalization", "gated_linear_unit": "gated_linear_unit"}
_ACTIVATIONS = {"jax._src.nn.functions.silu": jax.nn.silu, "jax._src.nn.functions.sigmoid": jax.nn.sigmoid}
_ARRAY = re.compile(r"^(\w+)\[([\d,]*)\]$")
_DTYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32, "bfloat16": jnp.bfloat16, "float32": jnp.float32}


Program = tuple[Callable[..., Any], tuple[Any, ...], dict[int, np.ndarray]]


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A kernel at a shape with a configuration, and the time a real chip took."""

    target: str
    kernel: str
    call: Mapping[str, Any]  # as the data file has it
    config: Mapping[str, Any]
    seconds: float

    @property
    def label(self) -> str:
        call = self.call
        residuals = " residuals" if call["return_residuals"] else ""
        if self.kernel == "normalization":
            return f"{call['x']} axis {call['axis']}{residuals}"
        if self.kernel == "gated_linear_unit":
            return f"{call['x']} {call['weights']}"
        if self.kernel == "ragged_dot":
            contracted = call["ragged_dot_dimension_numbers"]["dot_dimension_numbers"][0]
            return f"{call['lhs']} x {call['rhs']} {contracted}{residuals}"
        causal = "causal" if call["mask"].get("causal_mask") else "full"
        return f"{call['q']} {call['k']} {causal}{residuals}"


def missing() -> str | None:
    """Why the data is not here, with the command that has it."""
    try:
        importlib.metadata.version("tokamax")
    except importlib.metadata.PackageNotFoundError:
        return f"tokamax is not installed (it needs Python >= 3.12 and stays out of the lock). Run: {INSTALL}"
    return None


def version() -> str:
    return importlib.metadata.version("tokamax")


def measured(target: str, kernels: Mapping[str, str] = KERNELS) -> list[Measured]:
    """Every row of a chip that can be compiled as it was measured: plain bfloat16, no bias, mask causal or none."""
    found = []
    for kernel, name in kernels.items():
        place = importlib.resources.files("tokamax").joinpath(f"data/autotuning/{FOLDERS[target]}/{name}.json")
        if not place.is_file():
            continue
        for text, configs in json.loads(place.read_text()).items():
            call = json.loads(text)
            for config, result in configs.items():
                times = result.get("evaluation_times_ms")
                if times and _plain(kernel, call) and _fits(kernel, call, json.loads(config)):
                    found.append(Measured(target, kernel, call, json.loads(config), statistics.median(times) / 1e3))
    return found


def _plain(kernel: str, call: Mapping[str, Any]) -> bool:
    if kernel == "normalization":
        return isinstance(call["x"], str)
    if kernel == "gated_linear_unit":
        plain = all(isinstance(call[name], str) for name in ("x", "weights"))
        return plain and call["precision"] == "BF16_BF16_F32" and call["activation"] in _ACTIVATIONS
    if kernel == "ragged_dot":
        return all(isinstance(call[name], str) for name in ("lhs", "rhs")) and not call["activation"]
    mask = call["mask"]
    free = all(mask[name] is None for name in ("bool_mask", "q_start", "q_end", "k_start", "k_end"))
    return free and call["bias"] is None and call["logits_soft_cap"] is None and isinstance(call["q"], str)


def _fits(kernel: str, call: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a tile is within its dimension as this version of the kernel reads it.

    For the gradient of the left operand the present kernel contracts over tile_n; some rows were measured when it was tile_k, and
    name a tile_n several times the dimension. Compiled today they are another program than the one that was measured.
    """
    if kernel != "ragged_dot" or call["ragged_dot_dimension_numbers"]["dot_dimension_numbers"][0] != [[1], [2]]:
        return True
    _, out, contracted = _aval(call["rhs"]).shape
    return bool(config["tile_n"] <= -(-contracted // 128) * 128 and config["tile_k"] <= -(-out // 128) * 128)


def program(kernel: str, call: Mapping[str, Any], config: Mapping[str, Any]) -> Program:
    """The peer's kernel for a row: function, shapes, and the values its control flow hangs on."""
    if kernel in XLA_PROGRAMS:
        program: Program = _normalization(call) if kernel == "normalization" else _gated_linear_unit(call)
        return program
    made: Program = _ragged_dot(call, config) if kernel == "ragged_dot" else _attention(call, config)
    return made


def _normalization(call: Mapping[str, Any]) -> Any:
    op: Any = importlib.import_module("tokamax._src.ops.normalization.base").Normalization()

    def function(x: jax.Array, scale: jax.Array, offset: jax.Array) -> Any:
        names = ("axis", "epsilon", "scale_offset", "subtract_mean", "return_residuals")
        return op(x, scale, offset, **{name: call[name] for name in names})

    return function, tuple(_aval(call[name]) for name in ("x", "scale", "offset")), {}


def _gated_linear_unit(call: Mapping[str, Any]) -> Any:
    op: Any = importlib.import_module("tokamax._src.ops.gated_linear_unit.base").GatedLinearUnit()

    def function(x: jax.Array, weights: jax.Array) -> Any:
        return op(x, weights, activation=_ACTIVATIONS[call["activation"]],
                  precision=jax.lax.DotAlgorithmPreset.BF16_BF16_F32, return_residuals=call["return_residuals"])  # fmt: skip

    return function, (_aval(call["x"]), _aval(call["weights"])), {}


def _ragged_dot(call: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    base: Any = importlib.import_module("tokamax._src.ops.ragged_dot.base")
    kernel: Any = importlib.import_module("tokamax._src.ops.ragged_dot.pallas_mosaic_tpu")

    lhs, rhs = _aval(call["lhs"]), _aval(call["rhs"])
    given = call["group_sizes"]
    if isinstance(given, dict):
        groups = given["num_groups"]
        sizes = np.asarray(base.generate_group_sizes(m=given["total_size"], num_groups=groups), np.int32)
    else:
        sizes = np.asarray(given, np.int32)
    numbers = call["ragged_dot_dimension_numbers"]
    dimensions = jax.lax.RaggedDotDimensionNumbers(  # type: ignore[no-untyped-call]  # jax has no types for it
        dot_dimension_numbers=tuple(tuple(tuple(part) for part in pair) for pair in numbers["dot_dimension_numbers"]),
        lhs_ragged_dimensions=tuple(numbers["lhs_ragged_dimensions"]),
        rhs_group_dimensions=tuple(numbers["rhs_group_dimensions"]),
    )
    op = kernel.PallasMosaicTpuRaggedDot(config=kernel.Config(**config), bypass_device_check=True)

    def function(left: jax.Array, right: jax.Array, group_sizes: jax.Array) -> Any:
        preferred = call["preferred_element_type"]
        return op(left, right, group_sizes=group_sizes, ragged_dot_dimension_numbers=dimensions,
                  preferred_element_type=_DTYPES[preferred] if preferred else None,
                  return_residuals=call["return_residuals"])  # fmt: skip

    return function, (lhs, rhs, aval(sizes.shape, jnp.int32)), {2: sizes}


def _attention(call: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    kernel: Any = importlib.import_module("tokamax._src.ops.attention.pallas_mosaic_tpu")

    op = kernel.PallasMosaicTpuFlashAttention(config=kernel.Config(**config), bypass_device_check=True)

    def function(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        return op(q, k, v, logits_scale=call["logits_scale"], is_causal=bool(call["mask"].get("causal_mask")),
                  normalize_output=call["normalize_output"], return_residuals=call["return_residuals"])  # fmt: skip

    return function, tuple(_aval(call[name]) for name in ("q", "k", "v")), {}


def _aval(text: str) -> Any:
    match = _ARRAY.match(text)
    if not match:
        raise ValueError(f"tokamax: array {text!r} is not like bf16[8,128]")
    return aval(tuple(int(size) for size in match.group(2).split(",") if size), _DTYPES[match.group(1)])
