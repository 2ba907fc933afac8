import sys; sys.path.insert(0,"gpu")
from kit import *; from comp import info; from count import count
from normgrad.backends.cuda.launch import compile_step
for a in sys.argv[1:]:
    sh,dt=a.split(","); p=old_program(tuple(map(int,sh.split("x"))),dt)
    for s in p.steps:
        if isinstance(s,Launch) and "layer_rows" in s.kernel:
            r,st,sm,n,c,sass=info(compile_step(s,90,True)); d=dict(s.constants)
            el=d["ROWS"]*d["CHUNK"]*d["CHUNKS"]//(32*s.warps)
            L,pe,h=count(sass,el); print(a,s,"\n regs",r,"stack",st,"smem",sm,"loop",L,"el",el,"per %.1f"%pe,h.most_common(26),flush=True)
            open("/tmp/old.sass","w").write(sass)
