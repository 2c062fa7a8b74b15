"""gla_step and simple_gla_step: one step of gated linear attention, states in place or in a pool."""
