"""Every measured constant of a CUDA plan, by schedule, with the shape, the figure and the day.

Measured on one NVIDIA H200 (132 multiprocessors, torch 2.11, Triton 3.6). `[Nov 16]` is the
day of 2026 on which a figure came into the sources, that of its run or the next. Times are of
a call's kernels; per cents are shares of the time that memory takes to move the data once:
docs/contributors/log-gpu.md has what else was tried. What is no measurement, the sizes of the
hardware and of the kernels' numbers, stands where it is used.
"""
