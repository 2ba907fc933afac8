"""What to measure: (shape, type) -> name -> Ring."""
from normgrad.backends.cuda.ring_plan import Ring as R
LONG = {
    "a4x4096L1": R(4, 1024, 4, per=2, lag=1),
    "a4x4096L2": R(4, 1024, 4, per=2, lag=2),
    "a4x4096L3": R(4, 1024, 4, per=2, lag=3),
    "b8x8192L2": R(8, 2048, 4, lag=2),
    "b8x8192L3": R(8, 2048, 4, lag=3),
    "c8x4096L2": R(8, 2048, 2, per=2, lag=2, keep=False),
    "c8x4096L3": R(8, 2048, 2, per=2, lag=3, keep=False),
    "d8x4096r2L2": R(8, 2048, 2, rows=2, lag=2),
    "e16x8192L2": R(16, 4096, 2, lag=2, keep=False),
    "f4x3072L2": R(4, 1024, 3, per=3, lag=2, keep=False),
}
LONGF = {
    "w8x2048L2": R(8, 1024, 2, per=2, lag=2),
    "w8x2048L3": R(8, 1024, 2, per=2, lag=3),
    "w8x4096L1": R(8, 1024, 4, per=1, lag=1),
    "w8x4096L2": R(8, 1024, 4, per=1, lag=2),
    "w4x2048L2": R(4, 512, 4, per=2, lag=2),
    "w4x2048L3": R(4, 512, 4, per=2, lag=3),
    "w4x1536L2": R(4, 512, 3, per=3, lag=2),
    "w16x4096L2": R(16, 2048, 2, per=1, lag=2),
}
def some(table, names): return {n: table[n] for n in names.split()}
S = {}
def add(shape, dt, **v): S.setdefault((shape, dt), {}).update(v)
for shape in ((4096, 16384), (2048, 32768), (1024, 12288)):
    add(shape, "bf16", **LONG); add(shape, "f32", **LONGF)
add((1024, 12288), "bf16", s16x12288=R(16, 4096, 3, keep=False), s8x12288=R(8, 2048, 6, keep=False))
add((8192, 8192), "bf16", s8=R(8, 2048, 4), s16=R(16, 4096, 2), **some(LONG, "a4x4096L2 a4x4096L3 c8x4096L2"))
add((8192, 8192), "f32", s8=R(8, 1024, 8), s16=R(16, 2048, 4), **some(LONGF, "w8x2048L2 w8x2048L3 w4x2048L2"))
add((8192, 5120), "bf16", s4p2=R(4, 1024, 5, per=2), s8v4=R(8, 1024, 5, vector=4), s8x6144=R(8, 2048, 3), s8v4p2=R(8, 1024, 5, vector=4, per=2, keep=False),
    t2x3072=R(4, 1024, 3, per=3, lag=2, keep=False), t5x1024=R(4, 1024, 1, per=4, lag=3))
add((8192, 5120), "f32", s8=R(8, 1024, 5), s8v2=R(8, 512, 10, vector=2), s4p2=R(4, 512, 10, per=2), s16x6144=R(16, 2048, 3), t3x2048=R(8, 1024, 2, per=2, lag=2))
for shape in ((16384, 4096), (4096, 4096)):
    add(shape, "bf16", s8p2=R(8, 2048, 2, per=2), s8r2=R(8, 2048, 2, rows=2), s4p2=R(4, 1024, 4, per=2), s8=R(8, 2048, 2), s16=R(16, 4096, 1), s16r2=R(16, 4096, 1, rows=2), x8r2=R(8, 1024, 4, rows=2, across=4))
    add(shape, "f32", s8=R(8, 1024, 4), s8p2=R(8, 1024, 4, per=2), s4p2=R(4, 512, 8, per=2), s8r2=R(8, 1024, 4, rows=2), s16=R(16, 2048, 2))
for dt, v in (("bf16", 8), ("f32", 4)):
    c = 32 * v  # columns of a warp at 16 bytes
    k = 256 // c
    add((65536, 768), dt, n8=R(8, c, 3 * k, rows=8, across=1), n4p2=R(4, c, 3 * k, rows=4, across=1, per=2), n4p3=R(4, c, 3 * k, rows=4, across=1, per=3),
        n16=R(16, c, 3 * k, rows=16, across=1, keep=False), n8p2=R(8, c, 3 * k, rows=8, across=1, per=2, keep=False), n2p4=R(2, c, 3 * k, rows=2, across=1, per=4))
    add((16384, 1024), dt, n8=R(8, c, 4 * k, rows=8, across=1), n4p2=R(4, c, 4 * k, rows=4, across=1, per=2), a2=R(8, 2 * c, 2 * k, rows=4, across=2), a2p2=R(8, 2 * c, 2 * k, rows=4, across=2, per=2),
        a4p4=R(4, 4 * c, k, per=4), a4r2p2=R(4, 4 * c, k, rows=2, per=2), a4r4p2=R(4, 4 * c, k, rows=4, per=2))
    add((131072, 128), dt, l8p2=R(8, 128, 1, rows=16 * v // 4, lanes=128 // v, across=1, per=2), l8p4=R(4, 128, 1, rows=8 * v // 4, lanes=128 // v, across=1, per=4),
        l8=R(8, 128, 1, rows=16 * v // 4, lanes=128 // v, across=1), l8h=R(8, 128, 1, rows=8 * v // 4, lanes=128 // v, across=1, per=2), l4h=R(4, 128, 1, rows=4 * v // 4, lanes=128 // v, across=1, per=4))
    add((32768, 256), dt, l8p2=R(8, c, k, rows=8, across=1, per=2), l4p4=R(4, c, k, rows=4, across=1, per=4), l8r2=R(8, c, k, rows=16, across=1, per=2), l4r2=R(4, c, k, rows=8, across=1, per=4))
