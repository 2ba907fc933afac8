"""Registers, spills and instructions an element of all variants, offline."""
import sys; sys.path.insert(0,"gpu")
from kit import *; from variants import S; from comp import info; from count import count
from normgrad.backends.cuda.launch import compile_step
from concurrent.futures import ProcessPoolExecutor
def one(j):
    k,name=j
    try: p=ring_program(*k,S[k][name])
    except Exception as e: return f"{k} {name} FAIL {type(e).__name__} {e}"
    for s in p.steps:
        if isinstance(s,Launch) and "layer_ring" in s.kernel:
            try: r,st,sm,n,c,sass=info(compile_step(s,90,True))
            except Exception as e: return f"{k} {name} FAIL {type(e).__name__} {str(e)[:200]}"
            d=dict(s.constants); el=d["ROWS"]*d["COLS"]*d["CHUNKS"]//(32*s.warps)
            L,pe,h=count(sass,el)
            return f"{k} {name} regs {r} stack {st} smem {sm} ring {d['RING']} el {el} per {pe:.1f} grid {s.grid[0]} w {s.warps}"+(" SPILL" if st else "")
if __name__=="__main__":
    only=sys.argv[1:]
    jobs=[(k,n) for k in S for n in S[k] if not only or f"{k[0][0]}x{k[0][1]}" in only or k[1] in only]
    with ProcessPoolExecutor(2) as pool:
        for o in pool.map(one,jobs): print(o,flush=True)
