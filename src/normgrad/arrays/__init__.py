"""The callers' arrays as addresses and back: NumPy, torch, DLPack, host memory."""
