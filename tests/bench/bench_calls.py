"""Calls of `normgrad bench` for its tests."""

# One row that takes no time.
SMALL = [
    "bench",
    "--op",
    "layer_norm_backward",
    "--shape",
    "16x32",
    "--repeats",
    "2",
    "--run-seconds",
    "0",
]
