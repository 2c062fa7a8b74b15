"""Ahead-of-time analysis: compile for a chip that is not here, and read the schedule the compiler made (docs/aot.md)."""
