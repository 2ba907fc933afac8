import sys, os; sys.path.insert(0,"gpu")
from run import *
from comp import info
from normgrad.backends.cuda.launch import compile_step
seen=set()
for k in S:
    for name,p in programs(*k):
        for s in p.steps:
            if isinstance(s,Launch):
                key=(s.kernel,s.constants,s.warps,s.registers)
                if key in seen: continue
                seen.add(key)
                r,st,sm,n,c,_=info(compile_step(s,90,True))
                sz=dict(s.constants)
                print(k,name,s.kernel,s.grid[0],"regs",r,"stack",st,"smem",sm,"instr",n,"ring",sz.get("RING"),"BAR",c.get('BAR.SYNC.DEFER_BLOCKING'), {a:b for a,b in c.items() if 'LDL' in a or 'STL' in a}, flush=True)
