"""The obvious versions of kernels, in plain Python."""
