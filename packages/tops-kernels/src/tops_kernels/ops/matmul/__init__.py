"""matmul with an epilogue: bias and activation in float32, before the one rounding."""
