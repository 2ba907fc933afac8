"""From which sizes on the CPU backend does things differently: docs/contributors/log-cpu.md."""

# A task should take about 10 us, so that handing it out (50 ns) is nothing.
TASK_ELEMENTS = 32768
SOME_TASKS = 16
# Fewer slabs than this cannot keep many cores busy: large ones are split.
FEW_SLABS = 32
# Slabs of group norm whose x and dy are so small are written while they are in a cache, if there
# are some: 16x96x28x28 in one group takes 230 us so in float32, 262 otherwise.
NEAR_SLAB = 2 << 20
# Group norm of so few pixels, in groups of so many bytes, is taken as rows of layer norm: on one
# thread in float32 64x512x4x4 takes 0.33 ms so, 0.49 otherwise, 16x512x5x5 0.08 and 0.14,
# 1x1280x4x4 0.030 and 0.016. (7x7 would be 0.58 and 0.75 for 64 samples, 0.029 and 0.011 for one,
# 2.4 and 1.4 in groups of one channel.) One pixel is always: 4096x512 takes 4.3 ms, 38 otherwise.
TINY_CHANNEL, TINY_GROUP = 31, 64 << 10
# A block of rows adds at most this many numbers in float32 before float64 takes over.
BLOCK_ROWS = 128
# Vectors of a segment whose lanes are added up with those of three others; slabs of one such are
# taken eight at a time.
FEW_VECTORS = 16
EIGHT = 64  # bytes that eight numbers of theirs have
# Columns of a strip of few rows that have no gradients, whose sums stay in the nearest cache, and
# the least such rows: 8x100000 in bfloat16 takes .21 to .25 ms so, .31 in blocks of rows.
ROW_STRIP = 2048
ROW_STRIP_LEAST = 8
# Sums of so many float32 terms are made of float64 products: independent ones add up to so little
# that the roundings of ten million float32 products were up to 31 units of it, now half a unit. The
# data come from memory then; 10000000x1 takes as long, 10x4x1000000 10 to 60 % longer.
MANY_TERMS = 1 << 21
# The same for a channel of a sample in group norm, whose gradient has a share in those sums: no
# other sample may have a say in how they are made.
MANY_PIXELS = 1 << 20
JOINED_COLUMNS = 64
# Past this size of x, dy and dx together the results will not be found in a cache anyway.
STREAM_BYTES = 12 << 20
STREAM_SEGMENT = 1024
# Segments up to this size come too slowly when they are first read: 8x256x56x56 in float32 2.55 ms,
# 2.33 where the next channel is asked for while one is written. Long runs gain nothing.
ASKED_SEGMENT = 64 << 10
# Copies between orders take squares of so many elements a side (of 8 bytes half as many).
SQUARE = 16
LAST_CACHE = 32 << 20
MOST_TURNS = 6  # of large slabs, three phases each
# Four rows are summed side by side where they have few columns, or all of x and dy fits a cache.
NARROW_COLUMNS = 64
NEAR_BYTES = 4 << 20
# Samples of group norm up to this size are written while they are in a cache, where there are some.
SAMPLE_BYTES = 6 << 20
SOME_SAMPLES = 8
# In L2 four rows of them are written side by side too; from L3 that takes longer than row by row:
# 8x640x32x32 bf16 1.33 ms against 1.24.
SMALL_SAMPLE = 1 << 20
# Dense rows of fewer channels are taken several as one.
FOLD_COLUMNS = 128
# Planes of up to this many bytes are taken several as one, in rows of at least STRIP_ROW, where a
# strip of all samples stays in the cache.
SHORT_PLANE = 256
STRIP_ROW = 512
STRIP_BYTES = 1 << 20
STRIP_SAMPLES = 8
