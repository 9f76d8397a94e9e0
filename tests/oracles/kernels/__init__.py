"""The obvious versions of kernels, in plain Python; one module for each of `icestream.kernels`."""
