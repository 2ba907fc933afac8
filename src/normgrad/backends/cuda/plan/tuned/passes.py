"""Two passes, elements, the joins of parameter gradients; and what all schedules share."""

# All schedules

# Bytes of a batch that group norm's cuts are made for, however large it is: a sample's gradient may
# not depend on those around it. Large batches are where the speed of memory counts. [Nov 17]
TYPICAL_BYTES = 64_000_000
# Tiles of 16 bytes a thread that there are no registers for beside an activation's slope: 8 to 40
# bytes were spilled with one more. [Nov 19]
FEWER_TILES_WITH_SLOPE = {"relu": 1, "silu": 1}
FEWER_TILES_WITH_OTHERS = 2
CUT_WASTE = 1.02  # of a row in wider tiles, over that in narrower ones

# Sums: the first of two passes

# Pixels of planes that are added up as columns instead: 2048x128x3x3 takes 12 us instead of 61 in
# bfloat16, 64x512x7x7 11.1 instead of 12.1, 64x256x8x8 9.9 instead of 8.4. [Nov 16]
PIXELS_AS_COLUMNS = 63
SMALL_CHANNEL = 1024  # elements of one of group norm, several of which a block adds up
SMALL_TILE = 2048  # elements of a tile of those
PLANE_COLUMNS, PLANE_BYTES = 1024, 4096  # of a tile of planes: columns at most, and bytes
PLANE_BLOCKS = 4  # of a multiprocessor, as run at once
# Plain loads where planes start at no multiple of 16 bytes: asynchronous copies of 4 take 61 us
# instead of 19 for 32x2048x7x7 in float32. [Nov 16]
PLANE_STAGES, UNALIGNED_STAGES = 3, 1
# Columns: narrow tiles, all blocks along one front, two of them a multiprocessor that fetch three
# tiles ahead: 59.5 us for 64x256x56x56 in bfloat16, 64.2 with tiles of 256 channels and rows in one
# piece for each block; float32 102 instead of 106. [Nov 15]
COLUMN_COLUMNS, COLUMN_BYTES, COLUMN_BLOCKS, COLUMN_STAGES = 64, 8192, 2, 4

# Elements: the second of two passes, the element stage and inference

# Pixels of odd planes, by their itemsize, from which on windows are better than columns: 23x23
# images in float32 take 34.8 and 30.1 us so (64x256x23x23), 31x31 38.5 and 38.8; in bfloat16 9x9
# 26.3 and 20.9 (256x512x9x9), 15x15 27.3 and 27.0, 21x21 25.7 and 27.3 (64x512x21x21). [Nov 16]
PIXELS_IN_WINDOWS = {2: 256, 4: 900}
# Planes that start at multiples of 16 bytes are better as they are than as columns: 64x256x8x8
# takes 5.6 us so and 6.3 as columns, 64x512x7x7 14.5 and 6.9, 64x192x31x31 27.9 and 24.0
# (bfloat16). [Nov 16]

# Elements of a tile of planes, and its warps. 64x256x56x56 in bfloat16: 99.3 % with 1024 elements
# for 4 warps, 98.7 for one, 97 with 2048 for two; float32 103 % with any of them. [Nov 15]
PLANE_TILE, PLANE_WARPS = 1024, 4
# Channels last: warps and elements of a tile in 16 bits, by its columns. 64x256x56x56 takes 75.4 us
# with 4096 elements for 8 warps, 75.8 to 126 with others; 256x64x112x112 282.4 with 1024 for two,
# 283.4 with 512 for one, 292 to 329 with 1024 for one or 4096 for 4 or 8; 320 channels folded 92.3,
# 98.5, 107.5 with 4096, 2048, 1024 for 8, 4, 2. In float32 they are alike. [Nov 16]
COLUMN_TILES_16 = {64: (2, 1024), 256: (8, 4096)}
COLUMN_TILE = (1, 512)
# Rows side by side as fill so many columns: the element stage of 64x320x56x56 in bfloat16 takes 128
# us as it lies, 92 folded; in float32 rows that are multiples of 16 bytes take 1 % longer so. [Nov
# 16]
FOLDED_COLUMNS = 256
MOST_COUNTS = 1024  # counts of ranks that every block adds up itself

# Joins of parameter gradients

# Partials of a block: group norm 1x128x1024x1024 in float32 reads 85.6 %, 83.7 with 512. [Nov 15]
PARTIALS = 2048
# At the end of a layer norm kernel: a slice of columns for each block, 32 bytes at the least, 8
# elements a thread. Few blocks have wide ones, up to so many: 32 slices took one block half of 14
# us (1x4096). [Nov 16]
JOIN_LEAST, JOIN_ELEMENTS, JOIN_WIDE = 8, 8, 128
# Of its own: tiles (rows, columns, warps) for many columns or programs, else more blocks. [Nov 15]
FINISH_MANY, FINISH_FEW = (64, 32, 8), (32, 16, 4)
FINISH_MANY_COLUMNS, FINISH_MANY_PROGRAMS = 4096, 300
