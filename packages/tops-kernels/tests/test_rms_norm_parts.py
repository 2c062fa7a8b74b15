"""A block of rows that the backward kernel does in parts: rows past the end, and those of every part, count once."""

import numpy as np


def test_a_long_block_done_in_parts_has_the_formulas_gradients():
    import jax.numpy as jnp

    from tops_kernels.ops.rms_norm import _pallas_tpu_bwd as backward
    from tops_kernels.ops.rms_norm.config import RmsNormTpuConfig

    random = np.random.default_rng(0)
    x, dy = (random.standard_normal((5000, 128)).astype(np.float32) for _ in range(2))
    factor = random.standard_normal((1, 128)).astype(np.float32)
    config = RmsNormTpuConfig(block_n=4096, block_d=128)
    grad, sums = backward.whole_rows(
        jnp.asarray(x), None, jnp.asarray(factor), jnp.asarray(dy), None, eps=1e-6, config=config, interpret=True
    )
    wide = x.astype(np.float64)
    rstd = 1 / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + 1e-6)
    normed, u = wide * rstd, dy * factor
    expected = rstd * (u - normed * np.mean(u * normed, axis=1, keepdims=True))
    np.testing.assert_allclose(grad, expected, atol=2e-6 * np.abs(expected).max())
    totals = np.sum(dy * normed, axis=0)
    np.testing.assert_allclose(np.sum(sums, axis=0), totals, atol=2e-6 * np.abs(totals).max())
