"""Trains a small byte-level language model with gated linear attention, then writes with it, a byte a step.

    python examples/train_gla_lm.py              # about a minute on a laptop's CPU
    python examples/train_gla_lm.py --steps 20

The text is the source code of Python's own standard library. The same parameters run in two ways: over whole sequences by `tops_kernels.gla`,
and byte by byte by `tops_kernels.gla_step`, from the states that the prompt left. At the end both must say the same. Exit status 1 if they do
not, or if the loss has not fallen.
"""

import argparse
import math
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tops_kernels

VOCABULARY = 256  # bytes
WIDTH, LAYERS, HEADS = 128, 2, 4
GATE_RANK = 16  # of the projection that the gates come from, as in arXiv:2312.06635 section 4.4
BATCH, LENGTH = 8, 256
LEARNING_RATE, WARMUP, CLIP = 3e-3, 20, 1.0
PROMPT, WRITTEN = 128, 200  # bytes that are read and then written
AGREE = 1e-5  # relative: what the two ways may differ by

Params = dict[str, Any]  # arrays, and under "layers" those of all layers together: [LAYERS, ..]
Mix = Callable[..., tuple[jax.Array, jax.Array]]  # (q, k, v, g, state) -> (o, state)


def library_text(size: int) -> np.ndarray:
    """uint8 [size]: the standard library's modules, one behind the other, in the order of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b""
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            return np.frombuffer(text[:size], np.uint8)
    raise SystemExit(f"{folder} has {len(text)} bytes of Python; {size} are needed")


def initial(key: jax.Array) -> Params:
    """Parameters: normal, as wide as keeps activations in size; norms of 1."""
    shapes = {
        "query": (WIDTH, WIDTH),
        "key": (WIDTH, WIDTH),
        "value": (WIDTH, WIDTH),
        "gate_in": (WIDTH, GATE_RANK),
        "gate_out": (GATE_RANK, WIDTH),
        "swish": (WIDTH, WIDTH),
        "output": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    *keys, first, last = jax.random.split(key, len(shapes) + 2)
    layers = {
        name: jax.random.normal(one, (LAYERS, *shape)) / math.sqrt(shape[0])
        for one, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    norms = {"mix_norm": WIDTH, "head_norm": WIDTH // HEADS, "mlp_norm": WIDTH}
    return {
        "layers": layers | {name: jnp.ones((LAYERS, size)) for name, size in norms.items()},
        "embedding": jax.random.normal(first, (VOCABULARY, WIDTH)),
        "last_norm": jnp.ones(WIDTH),
        "logits": jax.random.normal(last, (WIDTH, VOCABULARY)) / math.sqrt(WIDTH),
    }


def model(params: Params, text: jax.Array, states: jax.Array, mix: Mix) -> tuple[jax.Array, jax.Array]:
    """Logits for the byte after each, and the states after the last.

    text: int32 [B, T] where `mix` is tops_kernels.gla, [B] where it is tops_kernels.gla_step. states: [LAYERS, B, HEADS, K, V]. Everything but
    `mix` goes byte by byte anyway, so the same lines serve both.
    """
    x = params["embedding"][text]
    after = []
    for layer in range(LAYERS):
        p = {name: array[layer] for name, array in params["layers"].items()}
        h = tops_kernels.rms_norm(x, p["mix_norm"])
        q, k, v, gate = (
            _heads(y) for y in (h @ p["query"], h @ p["key"], h @ p["value"], h @ p["gate_in"] @ p["gate_out"])
        )
        o, state = mix(q, k, v, jax.nn.log_sigmoid(gate) / 16, states[layer])
        after.append(state)
        o = tops_kernels.rms_norm(o, p["head_norm"]).reshape(x.shape) * jax.nn.silu(h @ p["swish"])
        x, h = tops_kernels.add_rms_norm(o @ p["output"], x, p["mlp_norm"])[::-1]
        x = x + jax.nn.silu(h @ p["up"]) @ p["down"]
    return tops_kernels.rms_norm(x, params["last_norm"]) @ params["logits"], jnp.stack(after)


def _heads(x: jax.Array) -> jax.Array:
    return x.reshape(*x.shape[:-1], HEADS, -1)


def no_states(batch: int) -> jax.Array:
    """The states before the first byte."""
    return jnp.zeros((LAYERS, batch, HEADS, WIDTH // HEADS, WIDTH // HEADS))


def loss(params: Params, text: jax.Array) -> jax.Array:
    """Mean cross entropy of each byte given those before it, in nats; text int32 [B, T + 1]."""
    logits, _ = model(params, text[:, :-1], no_states(text.shape[0]), tops_kernels.gla)
    of_truth = jnp.take_along_axis(jax.nn.log_softmax(logits), text[:, 1:, None], axis=-1)
    return -jnp.mean(of_truth)


Adam = tuple[Params, Params, Params]  # parameters, first and second moments


@partial(jax.jit, donate_argnums=0)
def train_step(adam: Adam, text: jax.Array, count: jax.Array) -> tuple[Adam, jax.Array]:
    """One step of Adam (arXiv:1412.6980) with warm-up and clipped gradients; count from 1."""
    params, mean, square = adam
    value, gradients = jax.value_and_grad(loss)(params, text)
    norm = jnp.sqrt(sum(jnp.sum(one * one) for one in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda one: one * jnp.minimum(1.0, CLIP / norm), gradients)
    mean = jax.tree.map(lambda old, one: 0.9 * old + 0.1 * one, mean, gradients)
    square = jax.tree.map(lambda old, one: 0.99 * old + 0.01 * one * one, square, gradients)
    rate = LEARNING_RATE * jnp.minimum(1.0, count / WARMUP)

    def moved(old: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return old - rate * first / (1 - 0.9**count) / (jnp.sqrt(second / (1 - 0.99**count)) + 1e-8)

    return (jax.tree.map(moved, params, mean, square), mean, square), value


def train(params: Params, text: np.ndarray, steps: int) -> tuple[Params, list[float]]:
    """Trains on random stretches of the text; the loss of each step."""
    random = np.random.default_rng(0)
    adam: Adam = (params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))
    losses, start = [], time.perf_counter()
    for count in range(1, steps + 1):
        at = random.integers(0, len(text) - LENGTH - 1, BATCH)
        batch = np.stack([text[i : i + LENGTH + 1] for i in at]).astype(np.int32)
        adam, value = train_step(adam, batch, jnp.float32(count))
        losses.append(float(value))
        if count == 1 or count % 25 == 0 or count == steps:
            print(
                f"step {count:4d}  loss {losses[-1]:.3f} nats a byte  {time.perf_counter() - start:.0f} s", flush=True
            )
    return adam[0], losses


def write(params: Params, prompt: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """`count` bytes behind prompt [B, T], drawn by the model, and the logits that each was drawn from: [B, count], [B, count, VOCABULARY]."""
    logits, states = jax.jit(partial(model, mix=tops_kernels.gla))(params, prompt, no_states(prompt.shape[0]))
    # The states are given away, so each step updates them where they are.
    step = jax.jit(partial(model, mix=tops_kernels.gla_step), donate_argnums=2)
    last, text, seen = logits[:, -1], [], []
    for key in jax.random.split(jax.random.key(1), count):
        seen.append(last)
        text.append(jax.random.categorical(key, last / 0.7))
        last, states = step(params, text[-1], states)
    return jnp.stack(text, axis=1), jnp.stack(seen, axis=1)


def disagreement(params: Params, prompt: jax.Array, text: jax.Array, logits: jax.Array) -> float:
    """How far the logits of `write` are from one pass over prompt and text: relative, by norm."""
    whole = jnp.concatenate([prompt, text], axis=1)
    full, _ = jax.jit(partial(model, mix=tops_kernels.gla))(params, whole, no_states(len(whole)))
    truth = np.asarray(full[:, prompt.shape[1] - 1 : -1], np.float64)
    return float(np.linalg.norm(np.asarray(logits, np.float64) - truth) / np.linalg.norm(truth))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 where the loss did not fall or the two ways disagree."""
    parser = argparse.ArgumentParser(
        description="train a small language model with gated linear attention, and write with it"
    )
    parser.add_argument("--steps", type=int, default=250, help="of training (default 250)")
    args = parser.parse_args(argv)
    if args.steps < 2:
        parser.error(f"--steps is {args.steps}; expected at least 2: a loss that falls takes two")
    text = library_text(1_000_000)
    params, losses = train(initial(jax.random.key(0)), text, args.steps)
    prompt = jnp.asarray(text[None, :PROMPT], jnp.int32)
    with jax.default_matmul_precision("highest"):  # on a CPU it is anyway
        written, logits = write(params, prompt, WRITTEN)
        error = disagreement(params, prompt, written, logits)
    print("---", bytes(np.asarray(written[0], np.uint8)).decode("utf-8", "replace"), "---", sep="\n")
    few = max(1, min(10, args.steps // 2))
    first, last = float(np.mean(losses[:few])), float(np.mean(losses[-few:]))
    print(f"loss {first:.3f} -> {last:.3f}; prefill and decode against the full pass: {error:.1e} relative")
    if not last < first:
        print("the loss did not fall", file=sys.stderr)
        return 1
    if not error < AGREE:
        print(f"decoding is off by {error:.1e}; expected under {AGREE:g}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
