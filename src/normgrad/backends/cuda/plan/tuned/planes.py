"""Channels first with slabs on chip: blocks, teams, how tiles come (`plane_blocks`, `planes`)."""

from dataclasses import replace

from normgrad.backends.cuda.plan.tiles import Block

# Planes

SHORT = 512  # elements of a channel in an image: less is small, several make a plane or a line
MOST_COLUMNS = 1024  # of a tile
LEAST_BYTES = 256  # of a plane, if there are channels enough: shorter ones are read slower
# In float32 planes are whole sectors of 32 bytes, where slabs are larger than a block's share and
# lines of 8 KB filled so far: 256x2048x7x7 reads 86 % with 8 channels, 82 with 4. Not where 4 lie
# in one block, or for 16 bits (69, 72). [Nov 16]
ONE_BLOCK_BYTES = 104 << 10  # of a slab in one block of two on a multiprocessor
FILLED = 0.9
# Short planes lie side by side in a line where it is so much better filled than rows of their own.
BETTER_FILLED = 1.05
# Elements from which on planes at multiples of 8 bytes are better in windows: 32x256x30x30 in
# bfloat16 takes 25.8 us so and 22.8 by copies of 8 bytes, 16x512x1500 31.0 and 32.1. [Nov 16]
LONG = 1024

# Blocks. One block for a slab has nobody to wait for. Else many small ones overlap best: while some
# wait for their partners, others copy. But a team of more blocks than there are multiprocessors
# waits longer than it wins: 256x64x112x112 in bfloat16 reads 71 % with small blocks, 78 with large.
# [Nov 15]
SMALL = Block(warps=4, chunk_bytes=4 << 10, chunks=6, registers=128, held=2, most=6)
SMALL_FLOAT32 = Block(warps=4, chunk_bytes=4 << 10, chunks=6, registers=128, held=3)
# Group norm: rows of 1024 16-bit elements for each warp.
SMALL_OF_GROUPS = Block(warps=4, chunk_bytes=8 << 10, chunks=3, registers=128, held=2, most=4)
# Tiles held in registers make room for what arrives during the wait, or for two teams where there
# was room for one: 2x64x128x128x128 in bfloat16 reads 65 % without, 93 with three. [Nov 15]
LARGE = Block(warps=8, chunk_bytes=8 << 10, chunks=7, registers=128, held=3)
LARGE_OF_GROUPS_HELD = {2: 4, 4: 3}  # by the size of an element
# With 9 tiles and 3 teams 256x64x112x112 in bfloat16 reads 77 %, with 8 and 2 teams 87. [Nov 15]
LARGE_MOST = 8
# One block a multiprocessor; group norm in float32: 1x256x512x512 takes 222 us instead of 234,
# 1x320x512x512 267 instead of 288, 2x256x400x400 252 instead of 265. [Nov 16]
WHOLE = Block(warps=8, chunk_bytes=8 << 10, chunks=13, registers=255, held=9)
# Batch norm in float32: two teams of blocks, two on a multiprocessor, are better than either:
# 8x32x512x512 takes 205 us instead of 227, 150x32x112x112 189 instead of 220. With room to spare:
# in three teams of 10 tiles 2x32x96x96x96 takes 187 us, in two of 7 175. [Nov 16]
TWO_FLOAT32 = replace(LARGE, most=9)
# Slabs that fit in shared memory prefer larger tiles: 256x64x112x112 in float32 reads 86 % instead
# of 83. [Nov 15]
WHOLE_FLOAT32 = replace(WHOLE, most=WHOLE.chunks)
# Tiles of one vector a thread take few registers for their sums, so that more are held:
# 2x64x128x128x128 in float32 reads 87 % instead of 84. 36 of them spill. [Nov 15]
FINE = Block(warps=8, chunk_bytes=4 << 10, chunks=27, registers=255, held=22, most=33)
# Blocks alone: small ones, four on a multiprocessor, where slabs are small, 16x1280x16x16 in
# bfloat16 reads 45 % instead of 40, batch norm 1x4096x32x32 takes 16.8 us instead of 26.7. In group
# norm with two tiles held 64x256x56x56 reads 84.6 instead of 83.6. [Nov 15]
ALONE = Block(warps=8, chunk_bytes=8 << 10, chunks=7, registers=128)
ALONE_OF_GROUPS = replace(ALONE, held=2)
# Statistics a round ahead win 0 to 5 points in float32 and 1 in small blocks of batch norm; other
# blocks have no registers left for them: -8 to 1. [Nov 15]
SMALL_AHEAD = replace(SMALL, ahead=True)
MOST_TEAMS = 32  # times the multiprocessors: blocks of the largest teams

# Lines of whole planes: blocks of 8 warps, two a multiprocessor, a vector of 16 bytes for each
# thread, and as much as there is room for: 64 images of 784 bytes lie in one block, 256 in four. In
# float32 a team is better made of four small blocks a multiprocessor (256x256x14x14 reads 78 %
# instead of 75), or where channels are taken together of two with longer lines (256x512x13x13 81
# instead of 79, 256x2048x7x7 86). Warps, bytes of a tile, blocks of a multiprocessor, tiles held.
# [Nov 16]
LINE = {2: (8, 4 << 10, 2, 2), 4: (8, 4 << 10, 2, 5)}  # by the size of an element
LINE_TOGETHER = (8, 8 << 10, 2, 2)
LINE_SMALL = (4, 4 << 10, 4, 2)
# Larger planes have one block a multiprocessor with two vectors a thread: 256x64x21x21 in bfloat16
# 43 %; 16 warps 42. Blocks alone hold tiles too where they have several rounds: 64x1024x14x14 reads
# 61 % instead of 59 in bfloat16, 77 instead of 74 in float32. [Nov 15]
LARGE_PLANE_BYTES = 4 << 10
LINE_OF_LARGE = (8, 8 << 10, 1, 4)

# Times the tiles of x where there are none of dy: forward 128x256x56x56 in bfloat16 takes 114.8 us
# so as batch norm, 121.3 with as many, 256x64x112x112 234 and 260; as group norm 119.8 and 114.2.
# [Nov 19]
MORE_OF_ONE_TENSOR = 2

# Teams

# Words of each block, where that many blocks would read the same one: 3 points for 256x64x112x112
# and 20x6x65536 in bfloat16, nothing or less for teams up to 80. [Nov 15]
WORD_COPIES, LARGE_TEAM = 8, 96
# The two blocks of a multiprocessor had better be of different teams: a cooperative launch puts
# both of up to 20 multiprocessors into one. Two teams over the whole device suffer if so little of
# the next slab arrives during the wait: 2x64x128x128x128 in bfloat16 takes 402 us, 428 to 442 by
# numbers. Others lose the 2 to 4 us that it takes to find a place. [Nov 15]
SM_COUNTERS = 256  # counters for multiprocessors
LITTLE_AHEAD = 3  # times that is less than a share

# Bulk copies, which need a barrier for each tile, against those of 16 bytes: group norm with blocks
# of 8 warps (bfloat16 64x256x56x56 86.8 us instead of 87.7, 1x512x512x512 212 and 215, float32 438
# and 451) and in one round or two (2x320x64x64 10.3 and 12.1), else 3 % less to 7 % more
# (4x512x128x128 59.0 and 56.4). Batch norm with one block a multiprocessor: float32
# 2x64x128x128x128 830 and 916; other blocks 2 % less to 14 % more. [Nov 16]
BULK_WARPS, BULK_ROUNDS = 8, 2  # group norm: of such blocks, or at most so many rounds
BULK_REGISTERS, BULK_LEAST_ROUNDS = 128, 16  # batch norm: more than these, in float32
# When the next slab is asked for: when the sums of this one are published, since asking early takes
# bandwidth from partners that it then waits for. Batch norm by bulk copies takes 650 us instead of
# 674 (256x64x112x112), unless more tiles than there is room for leave no registers for it
# (2x64x128x128x128: 1043 instead of 834); group norm without them up to 2 % less. Others gain
# nothing or lose, most 1 to 5 %: `planes._requests_after_publish`. [Nov 18]
