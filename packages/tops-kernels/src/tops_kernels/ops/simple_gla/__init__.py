"""Gated linear attention with a scalar gate for each head."""
