"""Launching a plan: compiled on a GPU, or in Triton's interpreter."""
