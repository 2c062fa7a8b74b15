"""One of two processes with four devices each: gla and simple_gla with T split over all eight, held against one device's.

    python sequence_processes.py PORT PROCESS

Leaves with 0 where values and gradients of this process's shards are those of one device.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tops_kernels

PROCESSES, DEVICES = 2, 4
ROWS, WHOLE = PartitionSpec(None, "time"), PartitionSpec()
BOUNDS = [0, 3, 3, 10, 57, 60, 60, 76]
FAST = {"xla_backend_optimization_level": 0}


# Inputs by the names of the arguments, each the same in every process, and how they are split.
SPECS = {
    "gla": {"q": ROWS, "k": ROWS, "v": ROWS, "g": ROWS, "initial_state": WHOLE},
    "simple_gla": {"q": ROWS, "k": ROWS, "v": ROWS, "g": ROWS, "g_gamma": WHOLE, "initial_state": WHOLE},
}
PUBLIC = {"gla": tops_kernels.gla, "simple_gla": tops_kernels.simple_gla}


def draw(op: str) -> tuple[list[Any], list[Any]]:
    """The inputs in the order of SPECS; cotangents."""
    random = np.random.default_rng(0)
    states = (len(BOUNDS) - 1, 1, 16, 8)
    shapes = {
        "q": (1, 80, 2, 16),
        "k": (1, 80, 1, 16),
        "v": (1, 80, 1, 8),
        "g": (1, 80, 1, 16) if op == "gla" else (1, 80, 1),
        "g_gamma": (1,),
        "initial_state": states,
        "do": (1, 80, 2, 8),
        "dfinal": states,
    }
    found = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found["g"] = -0.05 * np.abs(found["g"])
    found["g"][:, 39:41, ..., ::3] = -np.inf  # where one process's rows end and the other's begin
    found["g_gamma"] = -0.05 * np.abs(found["g_gamma"])
    return [found[name] for name in SPECS[op]], [found["do"], found["dfinal"]]


def passes(run: Any) -> Any:
    """(arrays, cotangents) -> outputs and gradients, compiled."""

    def both(arrays: Any, cotangents: Any) -> Any:
        outputs, pull = jax.vjp(run, *arrays)
        return [*outputs, *pull(tuple(cotangents))]

    return jax.jit(both, compiler_options=FAST)


def main(port: str, process: int) -> None:
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.distributed.initialize(f"localhost:{port}", PROCESSES, process, initialization_timeout=60)
    mesh = Mesh(np.array(jax.devices()).reshape(-1), ("time",))
    assert mesh.size == PROCESSES * DEVICES
    for op in SPECS:
        hold(op, mesh)


def hold(op: str, mesh: Mesh) -> None:
    """Raises AssertionError where a shard of this process is off."""
    bounds, function = np.array(BOUNDS, np.int32), PUBLIC[op]
    names, specs = tuple(SPECS[op]), tuple(SPECS[op].values())

    def place(x: Any, spec: PartitionSpec) -> jax.Array:
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])

    def call(*arrays: Any, **how: Any) -> Any:
        *floats, cu_seqlens = arrays
        return function(**dict(zip(names, floats, strict=True)), cu_seqlens=cu_seqlens, backend="xla", **how)

    arrays, cotangents = draw(op)
    split = jax.shard_map(
        lambda *a: call(*a, axis_name="time"),
        mesh=mesh,
        in_specs=(*specs, WHOLE),
        out_specs=(ROWS, WHOLE),
    )
    placed = [place(x, spec) for x, spec in zip(arrays, specs, strict=True)]
    pulled = [place(x, spec) for x, spec in zip(cotangents, (ROWS, WHOLE), strict=True)]
    cu_seqlens = place(bounds, WHOLE)
    found = passes(lambda *a: split(*a, cu_seqlens))(placed, pulled)
    with jax.default_device(jax.local_devices()[0]):
        want = passes(lambda *a: call(*a, jnp.asarray(bounds)))(arrays, cotangents)
    for name, ours, one in zip(("o", "final_state", *(f"d{name}" for name in names)), found, want, strict=True):
        exact = np.asarray(one)
        for shard in ours.addressable_shards:
            error = np.linalg.norm(np.asarray(shard.data) - exact[shard.index]) / np.linalg.norm(exact)
            assert error < 1e-6, f"{op}: {name} of {shard.device} is off by {error}"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
