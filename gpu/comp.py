"""Compile variants offline: registers, spills, shared memory, instruction counts."""
import collections, os, re, subprocess, sys, tempfile, itertools
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource


def info(k):
    f = tempfile.NamedTemporaryFile(suffix=".cubin", delete=False); f.write(k.asm["cubin"]); f.close()
    base = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin")
    out = subprocess.run([base + "/cuobjdump", "-res-usage", f.name], capture_output=True, text=True).stdout
    m = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", out)
    s = subprocess.run([base + "/cuobjdump", "-sass", f.name], capture_output=True, text=True).stdout
    os.unlink(f.name)
    c = collections.Counter(re.findall(r"\b(LDG\S*|STG\S*|LDL\S*|STL\S*|BAR\S*|LDGSTS\S*|LDS\S*|STS\S*|SHFL\S*)", s))
    n = len(re.findall(r"/\*[0-9a-f]{4,}\*/  ", s))
    return int(m.group(1)), int(m.group(2)), k.metadata.shared, n, dict(c), s

def comp(dt="bf16", lag=0, nregs=None, gamma="fp32", rows=1, cols=2048, chunks=2, ring=6, warps=8, even=True, keep=True, sass=None, cap=90, wants=True, lanes=32, across=0, v=0):
    from normgrad.backends.cuda.kernels.ring import layer_ring
    from count import count
    solo = lag == 0
    v = v or (8 if dt != "fp32" else 4)
    sig = dict.fromkeys(("dy", "x", "dx"), "*" + dt) | dict.fromkeys(("mean", "rstd"), "*fp32") | {"gamma": "*" + gamma}
    sig |= dict.fromkeys("rows cols width team teams dy_row x_row dx_row".split(), "i32")
    consts = dict(ROWS=rows, COLS=cols, CHUNKS=chunks, RING=ring, LAG=lag, LANES=lanes, ACROSS=across or warps, VECTOR=v, WARPS=warps,
                  SOLO=solo, KEEP=keep, EVEN=even, ALIGN=8 if dt != 'fp32' else 4, EARLY=cap>=90 and not solo, NEXT=cap>=90, PHASE=0)
    if wants: sig["partials"] = "*fp32"
    else: consts["partials"] = None
    if solo: consts["words"] = None
    else: sig["words"] = "*u64"
    names = layer_ring.arg_names
    attrs = {(names.index(n),): [["tt.divisibility", 16]] for n in sig if sig[n][0] == "*"}
    src = GluonASTSource(layer_ring, {n: sig.get(n, "constexpr") for n in names}, consts, attrs)
    opts = dict(num_warps=warps, launch_cooperative_grid=not solo)
    if nregs: opts["maxnreg"] = nregs
    k = triton.compile(src, target=GPUTarget("cuda", cap, 32), options=opts)
    r, st, sm, n, c, s = info(k)
    L, pe, h = count(s, rows*cols*chunks//(32*warps))
    print(dt, f"lag{lag} {rows}x{cols}x{chunks} ring{ring} W{warps} even{int(even)} keep{int(keep)} a{across} l{lanes}", "->", f"regs {r} stack {st} smem {sm} loop {L} per {pe:.1f} BAR {c.get('BAR.SYNC.DEFER_BLOCKING')}", h.most_common(30), flush=True)
    if sass: open(sass, "w").write(s)
    return k

if __name__ == "__main__":
    for a in sys.argv[1:]: eval(f"comp({a})")
