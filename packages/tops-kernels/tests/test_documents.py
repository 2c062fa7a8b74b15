"""The Python of the ops' documents runs and prints what its comments say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENTS = Path(__file__).parents[3] / "docs"
GLA = """
import jax, jax.numpy as jnp, tops_kernels
jax.config.update("jax_num_cpu_devices", 8)
q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 16, 8, 4))
g, g_gamma = -abs(q), -jnp.ones(8)

def show(op, *arrays):
    for one, other in zip(jax.jit(split)(*arrays), op(*arrays)):
        print(bool(jnp.allclose(one, other, rtol=1e-5, atol=1e-5)))
"""
SIMPLE_GLA = """
show(tops_kernels.gla, q, k, v, g)
g = g[..., 0]
"""
STEP = """
show(tops_kernels.simple_gla, q, k, v, g, g_gamma)
q, k, v = q[0, :2], k[0, :2], v[0, :2]
g, state = -abs(q), jnp.ones((2, 8, 4, 4))
pool, index = jnp.ones((5, 8, 4, 4)), jnp.array([3, -1], jnp.int32)
"""
END = "print(pool.shape == (5, 8, 4, 4) and bool((pool[4] == 1).all()))"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)


def blocks(name: str) -> list[str]:
    text = (DOCUMENTS / name).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("name", ["simple_gla.md"])
def test_the_example_prints_what_it_says(name: str) -> None:
    done = run(blocks(name)[0])
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == {"True"}


@pytest.mark.slow
def test_excerpts_run_where_their_names_are_given_and_give_what_one_device_does() -> None:
    steps = "".join(blocks("gla_step.md"))
    done = run("".join((GLA, blocks("gla.md")[0], SIMPLE_GLA, blocks("simple_gla.md")[1], STEP, steps, END)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True"] * 5
