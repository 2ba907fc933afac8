"""The ring in Triton's interpreter against float64."""
import os; os.environ["TRITON_INTERPRET"] = "1"
import sys; sys.path.insert(0, "gpu")
import numpy as np
from kit import *
from normgrad.backends.cuda.device import INTERPRETER
from normgrad.backends.cuda.interpret import interpret
rng = np.random.default_rng(1)
def go(shape, ring):
    spec, g = request(shape, "f32")
    p = ring_program(shape, "f32", ring, device=INTERPRETER)
    R, C = shape
    a = {"dy": rng.standard_normal(shape), "x": 100 + 3*rng.standard_normal(shape), "mean": np.full(R, 100.0), "rstd": rng.random(R)+.3, "gamma": rng.standard_normal(C)}
    a = {k: v.astype("f4") for k, v in a.items()}
    a |= {"dx": np.full(shape, np.nan, "f4"), "dgamma": np.full(C, np.nan, "f4"), "dbeta": np.full(C, np.nan, "f4")}
    ws = np.full(p.workspace_bytes + 256, 77, np.uint8); base = -(-ws.ctypes.data//256)*256
    interpret(p, spec, [a[r].ctypes.data if r in a else None for r in ROLES], base)
    d = {k: v.astype("f8") for k, v in a.items()}
    xh = (d["x"]-d["mean"][:, None])*d["rstd"][:, None]; gg = d["dy"]*d["gamma"]
    want = {"dx": d["rstd"][:, None]*(gg-gg.mean(1, keepdims=True)-xh*(gg*xh).mean(1, keepdims=True)), "dgamma": (d["dy"]*xh).sum(0), "dbeta": d["dy"].sum(0)}
    print(shape, ring, {k: float(np.abs(a[k]-want[k]).max()/np.abs(want[k]).max()) for k in want}, flush=True)
if __name__ == "__main__":
    go((9, 256), Ring(1, 256, 1))
    go((9, 512), Ring(1, 128, 1, lag=1, per=2, vector=4))
    go((23, 500), Ring(1, 128, 2, lag=2, rows=2, per=2))
    go((37, 96), Ring(4, 32, 3, rows=16, across=1, lanes=8, vector=4))
    go((3, 1000), Ring(1, 128, 4, lag=2, per=2))
    go((3, 1000), Ring(1, 128, 4, lag=1, per=1, keep=False))
    go((5, 1000), Ring(1, 128, 8, keep=False))
