"""The Triton kernels, by the shape of what they read."""
