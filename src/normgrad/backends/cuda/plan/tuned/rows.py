"""Rows that stay on chip, of layer norm and of small groups; and long ones, which do not.

`rows` (registers), `row_ring` and `group_ring` (bulk copies), `row_teams`, `long_rows`.
"""

# Which schedule

# More columns than these go to teams, where there can be any: 8192x12288 in bfloat16 reads 90 %
# instead of 74, 4096x10240 77 instead of 62 (float32 90 and 87), 1024x12288 48 and 46 (70 and 64);
# 512x12288 the same, 128x12288 takes 19.0 us instead of 17.5 (float32 18.3 and 19.5). [Nov 16]
TEAM_COLUMNS = 8192
LONGEST = 12288  # columns that a block of 16 warps keeps in registers with their sums
LONGEST_FORWARD = 32768

# Rows in registers. 4 warps up to 1024 columns (and for uneven rows), 8 up to 8192, with 32
# elements a thread; more programs a multiprocessor only where there is much to do. Each has partial
# sums: 8192x5120 in float32 reads 93 % with one, 89 with two (bfloat16: 73, 81). [Nov 15]
FOUR_WARPS_COLUMNS, EIGHT_WARPS_COLUMNS = 1024, 8192
VECTORS = 4  # of 16 bytes that a thread holds
MANY_ELEMENTS = 1 << 25  # of all data, from which on a multiprocessor has three programs, not two
THREE_PROGRAMS_REGISTERS = 168  # of a thread: the compiler would take 180
# In 16 bits rows that fill three quarters of a tile have three small ones, 48 elements a thread:
# 16384x3072 reads 85 % instead of 77, 8192x6144 84 instead of 77. [Nov 16]
VECTORS_IN_THREE = 6
# A row is one tile, unless that would waste more than two fifths; long ones are cut. Two tiles for
# 8192 columns of 16 bits: 88.7 % instead of 87.9 for 8192x8192. [Nov 15]
LONG_CHUNK, MOST_CHUNKS, WASTE = 4096, 8, 1.4
# Rounds from which on the next rows come to registers by plain loads, past shared memory, in
# float32 of up to 1024 columns or 8192: 131072x128 takes 55.7 us instead of 58.8, 65536x512 102.5
# instead of 108.7, 8192x8192 198 instead of 205. Rows of 4096 take 236 us instead of 199: too
# little is under way. So it is with 16 bits (16384x4096: 121 instead of 107), and in few rounds
# (4096x1024: 21.2 instead of 19.8). With an activation rows of 8192 spill 96 bytes. [Nov 15]
AHEAD_ROUNDS, AHEAD_COLUMNS, AHEAD_COLUMNS_TOO = 8, 1024, 8192
# Rows that are fetched ahead: by two, if they fit shared memory twice. By three or four nearly
# everything takes 1 to 5 us more: that many rows are written at the end, when nothing is left to
# read. [Nov 15]
STAGES = (3, 2)
# Blocks of so many warps join parameter gradients by a launch of its own: they have few registers
# left, and 1024x12288 takes 5 us less so. [Nov 15]
WARPS_WITHOUT_JOIN = 16
# Rows of a program, at least, where each sample has weights of its own: their sums are 4 % of what
# is read and written in 16 bits. How many samples there are has no say: a sample's gradients are
# made alike in all batches. [Nov 19]
SAMPLE_ROWS = 32
# Forward: elements of a thread, and programs of a multiprocessor: each takes its rows once.
# 16384x4096 takes 93.8 us so in bfloat16, 108 to 132 in 4 or 8 that go on; 65536x768 70.5, 87 to
# 90. [Nov 19]
FORWARD_ELEMENTS, FORWARD_PROGRAMS, FORWARD_STAGES = 32, 1 << 20, 1
FORWARD_RING_BYTES = 16 << 10  # of a row, at least, that comes through a ring

# A ring of rows. Bytes of x and dy that a multiprocessor is to have under way: 8192x5120 in
# bfloat16 takes 78.9, 69.4, 70.7 us with 40, 60, 80 KB, 16384x4096 109.9, 105.3, 105.2 with 48, 64,
# 96, 8192x8192 106.6, 111.1, 112.0 with 64, 96, 128: what is asked for too early is written late,
# when nothing is left to read. [Nov 16]
RING_BYTES = 64 << 10
# Of short rows: 131072x128 in float32 takes 62, 55.6, 56.7 us with 40, 48, 64 KB. [Nov 16]
SHORT_RING_BYTES = 48 << 10
MOST_SETS = 8  # in the ring
STATISTICS_ROWS = 2048  # rows of a block whose statistics are fetched at once
RING_LONGEST, RING_LONGEST_FORWARD = 8192, 16384  # columns
# Elements of a thread in a row: its sums and weights take three registers for each.
RING_ELEMENTS, RING_ELEMENTS_FORWARD = 40, 64
# Columns of float32 that come better straight to registers: 262144x64 takes 55.3 us so and 57.1
# from a ring, 65536x256 56.2 and 57.3, 65536x512 102.9 and 104.8, 8192x8192 198.7 and 201.8. [Nov
# 16]
WIDTHS_WITHOUT_RING = (64, 256, 512, 8192)
# Columns of 16 bits that are better across a block: 21.7 us against 22.3 for 32768x256. [Nov 16]
WIDTHS_ACROSS_BLOCK = (256, 384)
# Rows of at most so many columns lie in a warp, without a barrier for their sums, so many elements
# a thread as far as a warp goes, or twice as many; warps and blocks of a multiprocessor. In
# bfloat16 65536x300 takes 40 us, 62 by the other kernel, 50176x192 23 and 30, 262144x32 21 and 27;
# in float32 65536x300 66 and 94. More warps or blocks take 0 to 10 % longer. Twice the threads are
# a little better where they cut a row exactly (50176x192 24.0 instead of 25.3 us), else worse
# (65536x200 35.5 instead of 29.2). [Nov 16]
WARP_COLUMNS, WARP_ELEMENTS, WARP_BLOCK = 511, 12, (4, 2)
# All threads of a block share longer rows: warps, and blocks of a multiprocessor. In bfloat16
# 65536x512 takes 75, 56, 59 us with 8, 4, 2 warps, 65536x256 39 and 35 with 4 and 2, 16384x2000
# 59.3 and 57.3 with 8 and 4. Vectors of 8 bytes are a little better than of 16 (8192x8192 104.8 us
# against 107.1), and cut more rows. Exact cuts are better than others, and an eighth of a row for
# nothing does not show: 16384x1920 takes 55.9 us with 2 warps, 54.1 with 4. [Nov 16]
BLOCKS = ((8, 1), (4, 2), (2, 4))
TWO_WARPS_COLUMNS, FEW_WARPS_COLUMNS, FEW_WARPS_COLUMNS_16 = 384, 1024, 2048
UNSEEN_WASTE = 8  # the part of a row
# Rows of a set: elements of a thread in rows of up to 4 each, and of more. 65536x512 in bfloat16
# takes 63.6 us with 16 of a thread in a set, 56.3 with 32; 16384x2048 55.0 with 16, 56.2 with 32.
# [Nov 16]
SET_ELEMENTS, SET_ELEMENTS_OF_MORE = 32, 24
# Forward, rows of 16 bits of so many bytes, from and below: 65536x768 in bfloat16 takes 55.3 us so,
# 69.2 in the blocks of gradients, 70.9 in registers; 16384x1024 22.3, 30.0, 23.9. [Nov 19]
SHORT_FORWARD_BYTES = (1 << 10, 4 << 10)
SHORT_FORWARD_BLOCKS = ((4, 4),)

# Small groups as rows of a ring

GROUP_WARP_COLUMNS = 1024  # of slabs that lie in a warp
# Else all threads of a block share a slab. Small blocks are better: 256x256x14x14 in bfloat16 takes
# 33.1, 29.0, 27.8 us with 8, 4, 2 warps, 256x512x14x14 51.3 and 46.0 with 8 and 4. [Nov 16]
GROUP_BLOCKS = ((2, 4), (4, 2), (8, 1))
# Elements of a thread in a row. 40 spill, and 16x1280x16x16 takes 18.7 us instead of 15.4 so. In
# instance norm a row has one gamma, and its sums are two numbers. [Nov 16]
GROUP_ELEMENTS, INSTANCE_ELEMENTS = 32, 64

# Rows that teams of blocks share. Steps between the sums and the gradient of a row: an exchange
# takes 2 to 3 us, and a step 1.7: with 3 and 4 4096x16384 in bfloat16 reads 79 and 84 %. Blocks of
# 4 warps with 1 to 5: 49, 61, 80, 80, 80 %, in float32 with 3 to 5 90, 94, 94 %. [Nov 16]
LAG, LEAST_LAG = 4, 3
MOST_STEPS = 12  # that a block has room for
# Warps and tiles of a block, blocks of a multiprocessor. Blocks of one warp need no barrier:
# 4096x16384 in bfloat16 reads 85 % with eight of them a multiprocessor, 84 with four of two warps
# and 79 with two of four (2048x32768: 85, 83, 79). In float32 two warps are better (95 % against 93
# and 94). [Nov 16]
TEAM_BLOCK_16 = (1, 4, 8)
TEAM_BLOCKS = ((2, 4, 4), (4, 4, 2))
# Tiles fewer with an activation's slope: beta takes as many registers as gamma, and with 4 tiles
# 300 bytes are spilled. [Nov 19]
FEWER_WITH_SLOPES = 2

# Long rows, in two passes

# Elements of a tile: 16x1048576 in bfloat16 takes 67 us with one row of 1024, 83 with four of 512,
# 159 with 16 of 256; without dx 26, 39 and 93. [Nov 16]
LONG_TILE, LONG_STAGES = 1024, 3
LONG_BLOCKS = 4  # of a multiprocessor
# Without dx nothing is joined where all blocks go down all rows. Few rows want 2 KB of each: in
# bfloat16 16x200000 takes 9.6 us so, 22.6 with 512 bytes of all rows, 33 in parts; 3x100000 takes
# 5.3, 11 and 18. Some rows come without a loop, or nearly: 100x65536 in 17.8, 20.3 in tiles of 32;
# in float32 22.5 and 24.9. Many are as sums of channels last: 1024x12288 in 22.7, 28.0 in tiles of
# 64. Rows and columns of a tile, blocks of a multiprocessor, stages. [Nov 16]
SOME_ROWS, MANY_ROWS = 64, 512
FEW_STRIPS = (4, 2048, 0.0, 3)  # bytes of a row, not columns
SOME_STRIPS = (64, 64, 0.5, 1)
MANY_STRIPS = (128, 64, 2.0, 4)  # bytes of a column, not rows
# The two sums of a row by several blocks, so many columns each, in tiles: with one block for each
# row 16x1048576 in bfloat16 takes 1076 us. [Nov 16]
SUM_COLUMNS, SUM_TILE = 8192, 2048
