"""Channels last with slabs on chip: how they are cut, and how long a cut takes (`column_cuts`)."""

from normgrad.backends.cuda.plan.tiles import Block

# Tiles and words

LEAST_ROW_BYTES = 128  # of a tile, unless there are fewer channels
MOST_ROW_BYTES = 512
LEAST_TILES = 4  # in shared memory: a ring of three, and one that stays
# A ring of 3, 4, 5 and 6 of 13 tiles gives 257, 260, 263 and 267 us for group norm 1x512x512x512.
# [Nov 18]
STREAM_DEPTH = 3
ONE_HOT = 32  # elements of a thread where the sums of columns become those of groups
# Words for a block, over the blocks of a multiprocessor: so many in large teams, or the most in
# others, take two steps. One step for 33 parts of 64 columns is 5 % faster, for 66 2 %, for 131 2 %
# slower; for 131 of 32 the same as two, but two leave time for more to be fetched (below). [Nov 18]
MANY_WORDS, MOST_WORDS, LARGE_TEAM = 1800, 4300, 96

# Microseconds of a cut, fitted to 511 measured cuts of 20 shapes and types: 5 % off on the average;
# the least estimate is 0 to 2.5 points behind the best of them. [Nov 15]
START_US = 10.5  # the launches, the first tiles, the last
EXCHANGE_US = 2.8  # of one block of a multiprocessor; others have something to do meanwhile
WORD_US = 0.3e-3  # for each word that a block reads
TWO_STEPS_US = 4.65  # instead of both where there are many words, whatever the block
TEAM_DOUBLED_US = 0.24  # each time that a team is twice as large: the last block is later
ACROSS_WARPS_US = 1.3e-3  # for each column and warp of a multiprocessor: sums across warps
TILE_US = 0.049  # for each tile of a multiprocessor: barriers
LEAST_WAIT = 0.62  # what is left of all this however many tiles arrive meanwhile
SPEED = 36.0e3  # bytes of a multiprocessor in a microsecond
# The same for 16-bit data whose rows are no multiples of 16 bytes: smaller copies. 64x100x56x56
# takes 97 us, in two passes (which fold rows) 62; 64x10x112x112 40 and 30, 128x60x28x28 21 and 24.
# [Nov 16]
NARROW_SPEED = 24.0e3
# In each of several rounds of a block that has neither partners nor others on its multiprocessor:
# nothing is read while it ends its sums. Group norm 512x14x14 in bfloat16, 512 samples: estimated
# 106 us without, seen 138; by four blocks of a multiprocessor 100. [Nov 17]
LONELY_BLOCK_US = 1.5
# Less for each further block of a multiprocessor, where there is one round and few words to read:
# group norm 4x1280x32x32 takes 19.5 us instead of 22.1, but batch norm 32x512x14x14 17.0 instead of
# 14.6, where a block would read 4224 words. [Nov 16]
SHARED_US, FEW_WORDS = 0.3, 2000
# Where less than a third stays on chip, streams take 5 to 17 % longer than this says: batch norm
# 256x256x56x56 in bfloat16 reads 56 % that way and 61 in two passes, 64x64x112x112 58 and 55 (in
# float32 58 and 59). [Nov 15]
MOSTLY_STREAMED = 1.14
# What a row of a slab costs besides its own bytes, where slabs lie side by side and end inside of a
# sector of memory, which is then written in part, twice; or batch norm's inside of a line. Less in
# one round, in which neighbours are written at about the same time. Group norm 4x960x128x128 takes
# 173 us in slabs of 240 bytes and 127 of 480, batch norm 64x728x37x37 202 and in two passes 166.
# [Nov 16]
IN_SECTOR, IN_SECTOR_AT_ONCE = 80, 15
IN_LINE = {2: 35, 4: 16}  # by the size of an element
TWO_PASSES_SPEED = 33.4e3
TWO_PASSES_US = 22.0  # what two passes take beside their traffic: 14 to 37 [Nov 15]

# What comes ahead of its round

# Batch norm with blocks that have room for more tiles than their share of at most so many, and up
# to so many partners, waits so much less in each round: 256x2048x7x7 in float32 reads 80.3 instead
# of 79.0 %, 64x1024x14x14 in bfloat16 59.3 instead of 56.6. [Nov 15]
PREFETCH_TILES, SMALL_TEAM, PREFETCH_GAIN_US = 17, 16, 0.7
# Small teams with more tiles than there is room for in shared memory ask for the next slab only
# when the sums of this one are published: asking early takes bandwidth from partners that it then
# waits for. Batch norm 256x2048x7x7 in float32 takes 88 us instead of 91, group norm 64x256x56x56
# in bfloat16 88 instead of 90; but with two blocks of a multiprocessor or large teams 1 to 6 %
# more, and in float32 with tiles of 4 KB, where it spills. [Nov 18]

# Streams of the whole device in rows of so many bytes find what they read again in the L2 cache, if
# it is no more than this, and wait so much longer. Batch norm 131072x256 takes 67 us in two such
# rounds, 71 in four of whole slabs in rows of 128 bytes; in float32 129 and 137. Smaller teams and
# shorter rows gain less than they lose. [Nov 18]
REREAD_BYTES, REREAD_ROW_BYTES, REREAD_US = 26e6, 256, 0.5
# Tiles of the next slab that the L2 cache is to fetch during the wait, where there is no room for
# any; so many in two steps of float32. Batch norm 256x512x28x28 in float32 takes 386 us so instead
# of 405 (with 8 of them 399, with 24 421), in bfloat16 194 instead of 201 (with 16 195);
# 64x512x28x28 in float32 91 instead of 95. And what is left of the wait then. [Nov 18]
L2_TILES, L2_TILES_IN_TWO_STEPS, WAIT_WITH_L2 = 8, 16, 0.85
# The same in streams, of groups of whole vectors: group norm 1x512x512x512 takes 256 us so instead
# of 260 (with 8 of them 266), in float32 513 instead of 522. Others, and batch norm, lose 1 %. [Nov
# 18]
L2_TILES_IN_STREAMS = 3

# Blocks to choose from: four on a multiprocessor of an H200, two, or one.
FOUR = Block(warps=4, chunk_bytes=4 << 10, chunks=6, registers=128, held=2)
TWO = Block(warps=8, chunk_bytes=8 << 10, chunks=6, registers=128, held=2)
LARGE = Block(warps=8, chunk_bytes=8 << 10, chunks=13, registers=255, held=8)
# Tiles of one vector a thread, whose sums take few registers: slabs of 51 MB fit. It does not
# stream (5 to 7 points behind). With more tiles held, by the size of an element, it spills, in 16
# bits and with fewer than 48 of them with 21. [Nov 15]
FINE_TILES = 48  # of a share, at most
FINE_WARPS, FINE_BYTES = 8, 4 << 10
FINE = Block(FINE_WARPS, FINE_BYTES, chunks=27, registers=255, most=FINE_TILES)
FINE_HELD = {2: 20, 4: 21}
# Fewer with an activation's slope, three numbers more of each column: 56 bytes are spilled for ReLU
# in 16 bits, 144 for SiLU. [Nov 19]
FINE_FEWER_WITH_SLOPES = {2: 5, 4: 2}
# For small teams of batch norm.
PREFETCH = Block(warps=8, chunk_bytes=8 << 10, chunks=13, registers=255, most=PREFETCH_TILES)
PREFETCH_HELD = {2: 9, 4: 10}
# Where x is all that is read.
OF_ONE_TENSOR = (
    Block(warps=4, chunk_bytes=4 << 10, chunks=12, registers=128, held=2),
    Block(warps=8, chunk_bytes=8 << 10, chunks=12, registers=128, held=2),
    Block(warps=8, chunk_bytes=8 << 10, chunks=26, registers=255, held=4),
)
# The same with a shortcut, whose tiles take the place of some: 40 to 48 KB of a multiprocessor are
# on their way. No more tiles are held than that. Nothing is spilled; not timed yet. [Nov 20]
OF_ONE_TENSOR_AND_SHORTCUT = (
    Block(warps=4, chunk_bytes=4 << 10, chunks=9, registers=128, held=2, beside=3),
    Block(warps=8, chunk_bytes=8 << 10, chunks=9, registers=128, held=2, beside=3),
    Block(warps=8, chunk_bytes=8 << 10, chunks=21, registers=255, held=4, beside=5),
)
# Tiles that streams hold: the second number in several groups of whole vectors, and in float32 in
# batch norm; one group in a block takes more registers. Each tile that stays is 1 % of group norm
# 1x512x512x512; one more that is held is spilled, and 8 bytes of spills cost 4 %. [Nov 18]
STREAM_HELD = {2: (9, 10), 4: (9, 11)}
