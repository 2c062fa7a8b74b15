"""One of two processes with four devices each: gla with T split over all eight, held against one device's.

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


def draw() -> tuple[list[Any], list[Any]]:
    """q, k, v, g, initial_state; cotangents. The same in every process."""
    random = np.random.default_rng(0)
    states = (len(BOUNDS) - 1, 1, 16, 8)
    shapes = (1, 80, 2, 16), (1, 80, 1, 16), (1, 80, 1, 8), (1, 80, 1, 16), states, (1, 80, 2, 8), states
    q, k, v, g, state, do, dfinal = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    g = -0.05 * np.abs(g)
    g[:, 39:41, :, ::3] = -np.inf  # where one process's rows end and the other's begin
    return [q, k, v, g, state], [do, dfinal]


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
    bounds = np.array(BOUNDS, np.int32)

    def place(x: Any, spec: PartitionSpec) -> jax.Array:
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec), lambda index: x[index])

    arrays, cotangents = draw()
    specs = (ROWS, ROWS, ROWS, ROWS, WHOLE)
    split = jax.shard_map(
        lambda *a: tops_kernels.gla(*a, axis_name="time", backend="xla"),
        mesh=mesh,
        in_specs=(*specs, WHOLE),
        out_specs=(ROWS, WHOLE),
    )
    placed = [place(x, spec) for x, spec in zip(arrays, specs, strict=True)]
    pulled = [place(x, spec) for x, spec in zip(cotangents, (ROWS, WHOLE), strict=True)]
    cu_seqlens = place(bounds, WHOLE)
    found = passes(lambda *a: split(*a, cu_seqlens))(placed, pulled)
    with jax.default_device(jax.local_devices()[0]):
        want = passes(lambda *a: tops_kernels.gla(*a, jnp.asarray(bounds), backend="xla"))(arrays, cotangents)
    for name, ours, one in zip(
        ("o", "final_state", "dq", "dk", "dv", "dg", "dinitial_state"), found, want, strict=True
    ):
        exact = np.asarray(one)
        for shard in ours.addressable_shards:
            error = np.linalg.norm(np.asarray(shard.data) - exact[shard.index]) / np.linalg.norm(exact)
            assert error < 1e-6, f"{name} of {shard.device} is off by {error}"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
