"""`divided` says, in the program as lowered, whether XLA is to divide it among devices; and gla divides along B without a collective."""

import os
import re
import subprocess
import sys

CHILD = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import tops_kernels
from tops_kernels.runtime.partition import divided

flat, square = Mesh(np.array(jax.devices()), ("d",)), Mesh(np.array(jax.devices()).reshape(2, 2), ("d", "e"))
here = lambda x: x + divided()
put = lambda x, mesh, *names: jax.device_put(x, NamedSharding(mesh, P(*names)))
row = jnp.zeros(4)
of = functools.partial(jax.shard_map, in_specs=P("d"), out_specs=P("d"))
print("one device:", int(jax.jit(here)(row)[0]))
print("eager:", int(here(row)[0]))
print("several:", int(jax.jit(here)(put(row, flat, "d"))[0]))
print("shard_map:", int(jax.jit(of(here, mesh=flat))(put(row, flat, "d"))[0]))
print("shard_map over one of two axes:", int(jax.jit(of(here, mesh=square, axis_names={"d"}))(put(row, square, "d"))[0]))

def both(x):
    outputs, pull = jax.vjp(lambda q, g: tops_kernels.gla(q, q, q, -jnp.abs(g)), x, x)
    return outputs, pull(outputs)

def reduced(x):
    outputs, pull = jax.vjp(lambda q, g: tops_kernels.simple_gla(q, q, q, -jnp.abs(g[..., 0])), x, x)
    return outputs, pull(outputs)

x = put(jnp.ones((4, 70, 2, 16)), flat, "d")
for name, call in (("gla", both), ("simple_gla", reduced)):
    text = jax.jit(call, compiler_options={"xla_backend_optimization_level": 0}).lower(x).compile().as_text()
    print(f"{name} gathers:", text.count(" all-gather(") + text.count(" all-to-all(") + text.count(" collective-permute("))
"""


def test_heads_are_taken_one_by_one_only_where_no_device_would_gather_for_it() -> None:
    """In a process of its own: the number of devices is set before jax starts."""
    flags = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", CHILD], env=flags, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert dict(re.findall(r"(.*): (\d+)\n", ran.stdout)) == {
        "one device": "0",
        "eager": "0",
        "several": "1",
        "shard_map": "0",
        "shard_map over one of two axes": "1",
        "gla gathers": "0",
        "simple_gla gathers": "0",
    }
