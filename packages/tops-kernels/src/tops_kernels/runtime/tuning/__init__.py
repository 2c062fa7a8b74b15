"""Tuning on the machine at hand: what `tops_kernels.tune` is made of. Nothing of it is imported until it is called."""
