"""rms_norm and add_rms_norm: one family, the same kernels with and without the residual sum."""
