"""What a forward pass keeps for its backward pass, under a name that checkpoint policies can see."""

import jax
from jax.ad_checkpoint import checkpoint_name


def named(array: jax.Array, name: str) -> jax.Array:
    """The array, named "<op>.<what>" for `jax.checkpoint_policies.save_only_these_names` and the like."""
    kept: jax.Array = checkpoint_name(array, name)  # type: ignore[no-untyped-call]  # jax has no types for it
    return kept
