"""Thresholds of the planner for tiles of rows whose elements lie anywhere, with what each rests on.

"modelled": see thresholds.py.
"""

from __future__ import annotations

from typing import NamedTuple

# Bytes across a tile of a strided problem, widest first; 32 is what memory fetches at least.
TILE_BYTES = (128, 64, 32)
# A thread of a tile has at least this many steps, where rows are long enough: their loads are in flight together.
STEPS_PER_THREAD = 4
# Values of 32 bits that a thread holds of a tile in registers: 1024 threads of a multiprocessor then have 64 registers
# each, and no kernel of them spills. Rows of such a tile per access: each costs a thread some 60 instructions, and
# wider packs leave few steps to share them (16x150x128x128 bfloat16 takes 22 an element with packs of 4, 25 with 8).
HELD_REGISTERS = 40
# The same where nothing is written, of whole accesses: fewer threads, no more than four warps, which have less to tell
# each other. H200, November 2026, us, logsumexp float32, dim 1, 100x200x3000 76.0 for 90.8; but 31x1931x1356 168 by 16
# warps, 110 walked along, 4x2201x7948 137 and 91.
HELD_UNWRITTEN_REGISTERS = 64
# Such a tile is no wider than the rows that are neighbours, and narrower where tiles are fewer than so many for a
# multiprocessor. H200, November 2026, us: 1024x1000x3 float32, dim 1, 13.7 by 4 threads across, 21.8 by 16, bfloat16
# 11.0 for 48.6; 4096x100x5 float32 10.6 by 8, 14.1 by 32; 32x1000x3 5.4 by 2, 10.6 by 16; 8x256x128 6.1 by 2, 6.9 by
# 8; but 64x2000x9 13.6 by 4, 11.5 by 8.
HELD_TILES_PER_MULTIPROCESSOR = 0.5
# With more than that, a quarter of the blocks would have their threads spill: log_softmax of 512x300x49, dim 1, on
# sm_75 to sm_89, softmax with 39 on all but sm_75.
MOST_BESIDE_ALL_BLOCKS = 37
MOST_LOGARITHMS_BESIDE_ALL_BLOCKS = 36  # the same of log_softmax on sm_100 and later, in tiles 8 threads across
MOST_WIDENED = 28  # the same of log_softmax in pairs of 16 bits, but on sm_90
HELD_ALONE_REGISTERS = 48  # one thread to a row: nothing is needed of others
# The same of a plain reduction. H200, November 2026, us, dim 1, against threads that walk along their rows: sum
# 8x21x513x513 float32 54.4 for 62.2, bfloat16 36.0 for 48.4, 13046x9x699 float32 93.3 for 113.7.
HELD_REDUCED_REGISTERS = 40
# Rows of few steps: tiles of which a thread has rows at a time, at most, what it holds of all of them, and blocks that
# a multiprocessor is still to have. sum 846x3x6127 bfloat16 23.1 for 42.2, amax 49x3x63445 14.6 for 26.0.
MOST_HELD_TILES = 8
HELD_TILES_REGISTERS = 24
HELD_TILES_BLOCKS = 4
# Of rows that are written, of so many steps: softmax 76847x3x1123 float32 574 for 646; but logsumexp of 3257x4x465
# 20.7 for 17.6, and rows with few neighbours, softmax 4798151x3x5 bfloat16, 161 for 137.
MOST_WRITTEN_TILES_STEPS = 3
HELD_PACK = 4
# Tiles take threads until a multiprocessor has this many: measured on an H100 against 128 or 256 for all, 1.1x
# (8x21x512x512, 64x1000x196 float32) to 1.55x (16x150x128x128 bfloat16), 1.2x for the sum of 32x256x56x56; none lost
# more than 1%.
TILE_THREADS_PER_MULTIPROCESSOR = 1024
FEWEST_TILE_THREADS = 64
# Tiles whose columns are reduced and read once: threads for a multiprocessor in all, of logarithms of sums and of plain
# reductions; steps for each, at least; the most threads of a block; and tiles for a multiprocessor below which they are
# narrower. H200, November 2026, us: sum 1001x10001 float32, dim 0, 20.5 with 600 for a multiprocessor, 25.0 with 1200,
# 25.6 with 300; 512x300x49 bfloat16 11.9 with 760, 13.1 with 1500; 64x1000x196 bfloat16 17.9 for 28.0, 8x21x513x513
# bfloat16, a thread to a column, 48.1 for 111; logsumexp 4096x4096 float32 33.0 with 512 threads, 39.9 with 1024;
# 16x8400x80 bfloat16 30.2 for 112; 1000x1000 10.6 for 24.7.
# Of packs of 8, which leave a thread less to do beside, half as many: 8192x8192 bfloat16 47.7 for 52.4.
REDUCED_TILE_THREADS_PER_MULTIPROCESSOR = {"logsumexp": 1024, "plain": 768}
FEWEST_REDUCED_STEPS = 8
MOST_REDUCED_TILE_THREADS = {"logsumexp": 512, "plain": 1024}
REDUCED_TILES_PER_MULTIPROCESSOR = 0.45
# Plain reductions of columns that accesses take several of, or of no more elements for a multiprocessor than so many,
# which come an element at a time: columns lie side by side until a block has so many threads, or are so many, in packs
# so wide at most, each thread with so many steps at least. Of columns so many that fewer threads lie along each the
# packs are wide. H200, November 2026: of 181 random problems along dim 1, 2^16 to 2^28 elements, this cut is 1.05x of
# the fastest of up to 120 in the mean, wide packs for all and fewer blocks were 1.14x; of 237 others 127 are cut
# otherwise than before and take 0.91 of the time in the mean, 84 less, 8 more. us: sum bfloat16 64x1000x196 16.3 for
# 22.3, 5x2907x88 6.9 for 10.1, 1x163x6128 5.3 for 7.5, float32 1x5016x136 7.5 for 12.4; but bfloat16 2x2926x1104 16.2
# for 14.3, float32 8192x8192, dim 0, 78.0 for 73.8. With narrow packs sum 32x256x3136 bfloat16 takes 24.1, with wide
# ones 22.3.
REDUCED_TILE_THREADS = 256
FEWEST_REDUCED_ACROSS = 8
REDUCED_PACK = 2
FEWEST_ALONG_NARROW_PACKS = 4
FEWEST_SHORT_REDUCED_STEPS = 12
SMALL_REDUCED_ELEMENTS_PER_MULTIPROCESSOR = 1 << 13
# From so many steps on several blocks share them, or fewer columns have a block: sum 1x58630x528 bfloat16, dim 1, 34.2
# for 54.1, but 3x9648x672 float32 45.4 for 36.3; of columns that no access takes several of 1x27762x29 float32 10.1 for
# 18.2, but 1x5980x13 7.1 for 6.6.
LONG_REDUCED_STEPS = 1 << 14
LONG_SINGLE_REDUCED_STEPS = 1 << 13
# Columns whose steps are nearer in memory than other columns have a warp along each, if they have more steps than this;
# shorter ones lie side by side in a block, too: sum 13593x19x2 float32, dim 1, 6.1 for 12.5.
MOST_STEPS_SIDE_BY_SIDE = 32
# Where several blocks share a tile of a plain reduction, each reads the states of all: tiles are narrow, in packs of
# two rows, and are two or more. H200, November 2026, us, against tiles of 128 bytes in packs of 16: sum, dim 0,
# 65536x64 float32 14.0 for 17.3, bfloat16 12.3 for 29.2; 65536x32 11.0 for 16.1, 9.9 for 22.0; 32768x128 13.3 for 20.3,
# 11.8 for 23.1; 16384x256 14.0 for 18.8; 200000x8 10.9 for 15.4, 10.1 for 24.2.
SHARED_REDUCED_PACK = 2
SHARED_REDUCED_ACROSS = 16
# ---- tiles that several blocks share ----

# Dims that are shared have so many steps at least (modelled), and give each block so many.
SHARED_STEPS = 4096
FEWEST_STEPS = 256
# Where they give each thread of a plain reduction so many, there may be more blocks than threads along a tile: amax
# 10x401536x19 bfloat16, dim 1, 75.5 by 32 blocks for a tile, 89.7 by 16.
MANY_STEPS_PER_THREAD = 128
# A gradient's tile that is read twice: bytes of an element of both arrays -> the least steps from which on it beats one
# that waits in shared memory, and the most threads along it. The second read is served by L2 while tiles are narrow, a
# cache line, and blocks small: 8 steps for each thread. Two for shared memory's one, dim 1 of 16x150x128x128 bfloat16
# 77 for 107, 32x256x56x56 56 for 85, 16x2000x1024 90 for 102, 4096x8x128 12.4 for 13.8; of float32 32x256x56x56 84 for
# 105, 32x512x2048 123 for 143, 64x1000x196 70 for 75, but 16x150x128x128 143 for 133.
GRADIENT_READ_TWICE = {4: (8, 32), 8: (256, 64)}
# But not where every access to dy takes an element for each column, of so many steps at most: 23 random views of no
# more 0.86 of the time in shared memory, 18 of more 1.03, up to 2.0.
MOST_SCATTERED_STEPS = 128
GRADIENT_READ_TWICE_ACROSS = 8
GRADIENT_READ_TWICE_STEPS = 8
# Steps of a thread of a gradient's tile that blocks share, at least. Slices of both arrays in shared memory do not pay:
# 2x128256x16 bfloat16, dim 1, 29.0 read twice by 66 blocks, 43.6 kept by 132; 65536x16 float32, dim 0, 16.1 and 16.3,
# one block for a tile 192. Of 16 tiles, 8192x512 takes 26.6 by 8 blocks each, 62 by one.
SHARED_GRADIENT_STEPS = 12
# Tiles of a gradient that needs no sum: threads for a multiprocessor that are enough, and bytes of what a warp asks for
# that are to lie together (segment_cut.py). H200, November 2026: of 100 random problems along dim 1, 2^13 to 2^27
# elements, this cut is 1.05x of the fastest of up to 60 in the mean, tiles of 128 bytes by 1024 threads for a
# multiprocessor were 1.27x.
ENOUGH_SEGMENT_THREADS = 512
MOST_SEGMENT_THREADS = 512  # of a block; of doubles half of them, or they spill on sm_100 and sm_120
SEGMENT_RUN_BYTES = 256
# Of tiles that several blocks share: blocks of SPLIT_THREADS on a multiprocessor. Their slices fill its shared memory:
# 4096x4096 float32, dim 0, 57.4 with 6 blocks, 61.5 with 8; 8192x8192 206 with 10, 238 with 16. Fewer tiles than that
# have slices of so many bytes, unless that makes more blocks than threads along a tile, each of which then asks for the
# states of several: 2x128256x16 24.2 with 64 blocks, 24.6 with 50, 30.5 with 128. One block for a tile takes 81 and
# 1226; of 16-bit elements 41 at 4096x4096, where sharing takes 40 to 43.
STRIDED_SPLIT_RESIDENT = 2
SLICE_BYTES = 64 << 10


class Walk(NamedTuple):
    """Blocks that share a tile and meet in scratch memory; width and rounds, where they keep nothing of it."""

    threads: int  # of a block
    resident: int  # blocks on a multiprocessor
    width: int = TILE_BYTES[0]  # bytes across
    rounds: int = 1  # of tiles: with two, each has twice the blocks


# Logarithms of sums of many neighbours that go by element, and of few: 10000x1001 float32, dim 0, 25.6 for 30.4 in
# tiles of 128 bytes that are all at work at once; 64x50176x3, dim 1, 25.7 for 29.1 by blocks of 256, 128x60000x2 32.9
# by three blocks, 39.1 by four, whose threads have 32 registers each and spill.
WALK_OF_MANY = Walk(256, 2, width=64, rounds=2)
WALK_OF_FEW = Walk(512, 3)
MOST_NEIGHBOURS_OF_THREE = 16
# What is written and goes by element, by its bytes: read twice by blocks that fill the GPU. H200, November 2026, us,
# for slices in shared memory, dim 1: softmax float32 3x678102x43 764 for 1211, 3x678102x7 98.5 for 124, 8x60000x25 80.8
# for 114, 1x50000x999 262 for 328, 19x23712x219 518 for 582; log_softmax 2x100000x101 124 for 198, 32x39880x105 782 for
# 840; bfloat16 softmax 2x100000x101 87.2 for 132, log_softmax 1x118429x181 85.8 for 143, 1x50000x999 166 for 270.
WALK_BY_ELEMENT = {2: Walk(256, 3), 4: Walk(256, 2)}
# Rows that lie apart and have more steps than that are shared by several blocks in their registers, where these hold
# them: 128x256x256 float32, dim 1, 22.1 for 22.5 by one block, 128x384x256 30.2 for 34.9.
HELD_ALONE_STEPS = 256
MOST_SHARED_HELD = 64  # elements that a thread holds then: with more, kernels spill


class SharedTile(NamedTuple):
    """A tile that a cluster shares, and how many elements each of its threads holds at most, and at least."""

    columns: int
    threads: int  # of a block
    blocks: int
    most_held: int
    fewest_held: int = 0
    pack: int = 0  # rows per access at most, where fewer than usual are better


# By bytes of an element, the first that holds a tile. Measured on an H200, November 2026, us, against slices in shared
# memory or one block: float32 64x1000x196, dim 1, 38.7 for 43.5; 2048x4096, dim 0, 24.1 for 27.9; 4096x4096 45.1 for
# 52.4, its log_softmax 46.9 for 63.3; 8192x8192 167 for 202; 16384x1024 55.1 for 64.4, in tiles of 32 columns 61.7;
# 32768x512 71.0 for 81.7, but 20000x1024 84.9 for 81.0; bfloat16 128x512x256 25.5 for 28.8, with 4 blocks 27.8;
# 64x1000x196 26.7 for 37.7; 16x2000x1024 52.9 for 61.4; 4096x4096 33.2 for 39.0; 8192x8192 114 for 120, in tiles of 32
# columns 122; 32768x512 47.5 for 51.8, but 30000x300 40.2 for 37.0.
_WIDE = (SharedTile(32, 128, 4, 48), SharedTile(32, 256, 4, 48))
_LONG = SharedTile(16, 256, 16, 64)
SHARED_TILES = {
    2: [
        SharedTile(32, 128, 2, 64),
        *_WIDE,
        SharedTile(32, 256, 8, 64),
        SharedTile(16, 256, 8, 64),
        _LONG,
        SharedTile(16, 512, 16, 64, fewest_held=64),
    ],
    4: [
        SharedTile(32, 128, 2, 48),
        *_WIDE,
        SharedTile(32, 256, 8, 48),
        SharedTile(32, 512, 8, 32),
        SharedTile(32, 256, 16, 48),
        SharedTile(32, 512, 16, 32),
        _LONG,
        SharedTile(16, 512, 16, 64, fewest_held=52),
    ],
}
# Of 16-bit elements that wait as they were read (held_steps.h), most_held in registers: for each multiprocessor twice
# as much is under way. H200, November 2026, us, for what they took widened: softmax 4096x4096, dim 0, 26.5 for 31.2,
# 8192x8192 91.6 for 111, 16x2000x1024, dim 1, 44.3 or less for 51.1; log_softmax 24x394x6656 71.0 for 83.5, 100x9334x68
# 154 for 164. With more than 32 registers held they take twice as long.
MOST_AS_READ = 32
MOST_AS_READ_IN_PAIRS = 24  # 32 of no more than a pair each are an array in memory to the compiler
MOST_LOGARITHM_PAIRS = 21  # of log_softmax 22 are one, on sm_90
# Of more a thread needs more registers beside them, or it spills: but in clusters of eight on sm_90, and of logsumexp.
FEW_AS_READ = 28
FEWEST_RESIDENT_THREADS = 768  # of a multiprocessor: tiles that leave room for fewer are the last choice
AS_READ_TILES = [
    *(SharedTile(32, 128, 2, 32), SharedTile(32, 256, 4, 16), SharedTile(32, 128, 8, 32)),
    *(SharedTile(32, 256, 8, 32), SharedTile(32, 512, 8, 32), SharedTile(32, 256, 16, 32)),
    *(SharedTile(16, 256, 16, 32), SharedTile(16, 512, 16, 32)),
]
# The same where steps are not whole sectors: log_softmax 150x808x1972 310 for 429 widened, 400 in tiles of 32 columns.
AS_READ_TILES_ACROSS_SECTORS = [
    *(SharedTile(64, 256, blocks, 32) for blocks in (2, 4, 8)),
    SharedTile(64, 512, 8, 32),
    *AS_READ_TILES,
]
# Logarithms of 16 bits in pairs, not packs of four, more of them a thread: H200, November 2026, of 170 random problems
# along dim 1, 40 to 1500 steps, 78 are cut otherwise and take 0.85 of the time in the mean, 70 less, 5 by 3% or more
# longer. us: 420x536x128 42.5 for 69.6, 256x570x256 50.8 for 84.7, 25x181x6376 48.1 for 70.1, 348x147x2512 162 for 223,
# 1x427x840 5.7 for 7.1; but float16 4x1346x856 18.5 for 14.1. Of fewer than FEWEST_AS_READ_STEPS packs of four stay:
# 476x56x40 6.8 for 8.9.
LOGARITHM_HALVES_PACK = 2
LOGARITHM_TILES = [SharedTile(32, 256, blocks, 24, pack=2) for blocks in (2, 4)]
FEW_LOGARITHM_TILES = [SharedTile(16, 128, 4, 16, pack=2)]
# One block's: columns in pairs, 64 by four warps at least, or 32 by more than eight, of so many steps at least, each
# thread with no more registers than that. logsumexp 165x82x5928, dim 1, 57.2 for 109; softmax 16x150x128x128 44.2 for
# 48.0, 32x256x56x56 33.0 for 37.0.
FEWEST_AS_READ_STEPS = 64
MOST_AS_READ_ALONE = 22
# Steps that are not whole sectors: at the edges of a tile are some that its neighbours have, too, and of a wider one
# they are fewer. Of 4 bytes: float32, dim 1, 64x1000x196 35.3 for 39.8, 64x1000x198 37.2 for 43.4, 128x500x100 21.0
# for 23.6, 16x1000x2002 78.9 for 105, 32x2000x300 53.3 for 56.0; but 64x1000x200, whose steps are whole sectors, 34.4
# for 32.3. Twice the states to merge cost log_softmax more: 64x1000x196 40.4 for 39.6, but 16x1000x2002, whose steps
# are not whole halves either, 89.6 for 104. bfloat16 64x1000x196 27.8 for 26.5.
SECTOR_BYTES = 32
SHARED_TILES_ACROSS_SECTORS = [
    SharedTile(64, 256, 4, 32),
    SharedTile(64, 256, 8, 32),
    SharedTile(64, 512, 8, 32),
    *SHARED_TILES[4],
]
# Tiles that are read once and not written are held by several blocks, too, if these meet in memory, are few, or rows
# have no more steps than this, or it takes as many blocks of 16-bit elements: logsumexp float32 65536x64, dim 0, 16.0
# for 35.0 walked along, 64x1000x196, dim 1, 26.5 for 32.1, 8x1024x1024 18.9 for 24.7; bfloat16 65536x16 8.6 for 28.0,
# 10000x1000 23.8 for 33.6; but float32 10000x1000 39.0 for 29.2, 4096x4096 38.9 for 32.2.
MOST_UNWRITTEN_STEPS = 2048
MOST_UNWRITTEN_BLOCKS = 16
# But not where clusters would follow each other so many times: 20000x2000 bfloat16, dim 0, 46.2 walked along for 64.2,
# 17140x4840 81.5 for 139; 31x1931x1356 float32, dim 1, 110 for 141.
MOST_UNWRITTEN_ROUNDS = 4
# Logarithms of sums of no more elements than this for a multiprocessor, or of no more columns than that, whose steps
# are more than those above, are held by clusters in tiles of 8 or 16 columns; columns that no access takes several of
# only up to so many steps. H200, November 2026, us, dim 0, against tiles of 32 columns or one block's walk: float32
# 1000x1000 7.4 for 8.5, 2000x1000 9.6 for 11.2, 3000x300 7.6 for 14.0, 4096x1024 13.8 for 15 or more, 5000x1501 21.6
# for 25.1, 16384x1024 38.0 for 40.0, 20000x500 29.0 for 42.8, but 20000x2000 80.7 for 66.2, 10000x1001 28 or more for
# 25.6; bfloat16 1000x1000 6.7 for 7.5, 2000x1000 7.9 for 9.9, 4096x1024 10.4 for 11.9, 16384x1024 26.2 for 30.4;
# 16x8400x80, dim 1, 29.4 for 31.6 and 20.6 for 22.6.
UNWRITTEN_ELEMENTS_PER_MULTIPROCESSOR = 1 << 14
UNWRITTEN_COLUMNS_PER_MULTIPROCESSOR = 12
MOST_UNWRITTEN_SINGLE_STEPS = 5120
UNWRITTEN_TILES = {
    2: [SharedTile(16, threads, blocks, 64, pack=2) for blocks in (2, 16) for threads in (256, 512)],
    4: [
        *(SharedTile(8, 256, blocks, 16, pack=1) for blocks in (2, 4)),
        *(SharedTile(16, 256, blocks, 40, pack=1) for blocks in (8, 16)),
        SharedTile(8, 256, 16, 40, pack=1),
    ],
}
# Logarithms of sums of so many steps and neighbours at least are walked along, not held: in packs of so many columns,
# so many across at least, by so many threads for a multiprocessor at least and at most, each with so many elements.
# From LONG_WALK_STEPS on also what was not held: no wider packs, no runs. H200, November 2026, us, dim 1, bfloat16:
# 262x1000x64 19.5 for 25.4, 8x1000x2000 20.3 for 25.2, 2x1000x8192 19.0 for 25.4, 22x3000x64 11.5 for 17.1, 34x10000x49
# 26.2 for 51.5, 99x10000x17 25.5 for 34.3, but 1x1000x4863, of which there are 589 threads, 12.3 for 10.5, 29x3000x49
# 11.5 for 10.3 and 7x1094x311, 17 elements each, 11.2 for 8.3; float32: 155x1177x166 50.2 for 73.2, 99x10000x17 33.1
# for 57.5, 3x10000x501 33.8 for 44.8, 8x10000x200 33.5 for 38.2, but 55x1519x80 21.4 for 19.4, and of those walked
# along 28x3000x200 36.7 for 34.4.
FEWEST_WALK_STEPS = 1000
FEWEST_WALK_NEIGHBOURS = 16
WALK_PACK = {2: 2, 4: 1}
FEWEST_WALK_ACROSS = 8
FEWEST_WALK_THREADS = 600
MOST_WALK_THREADS = 1100
FEWEST_WALK_ELEMENTS = 20
LONG_WALK_STEPS = 8192
# Rows that are neighbours, at least, for those: of 4, 2000x1000x4 float32, dim 1, took 29.8 for 25.7 by one block.
FEWEST_SHARED_NEIGHBOURS = 8
# Of fewer neighbours, rows of so many steps, at least, in tiles as wide as these and so many columns at least, an
# element at a time. Dim 1, float32: softmax 64x50176x3 40.8 for 65.0 in shared memory, with blocks of 256 42.9;
# 1000x8192x2 37.9 by 4 columns, 65.9 by 2; log_softmax 128x8192x5 23.9 for 36.3 by one block, 32x16384x4 10.9 for 12.8
# in packs of 2; bfloat16: softmax 64x50176x3 25.8 for 43.1, with blocks of 512 30.8, log_softmax 128x8192x5 17.1 for
# 22.7. What is not written only up to so many steps, or of 16-bit elements: logsumexp 64x50176x3 bfloat16 17.0 for
# 25.7, 32x16384x4 float32 9.7 for 17.1, but 64x50176x3 24.4 read once.
FEWEST_NARROW_SHARED_STEPS = 8192
FEWEST_NARROW_COLUMNS = 4
MOST_UNWRITTEN_NARROW_STEPS = 32768
_NARROW = SharedTile(4, 128, 8, 32), SharedTile(4, 128, 16, 32)
NARROW_SHARED_TILES = {
    2: [*_NARROW, SharedTile(4, 256, 16, 64), SharedTile(4, 512, 16, 64)],
    4: [*_NARROW, SharedTile(4, 256, 16, 32), SharedTile(4, 512, 16, 64)],
}
# Columns that no access takes several of: more threads, which hold less each. Softmax, dim 1, float32: 512x300x49
# 31.6 for 33.8, 256x500x49 25.1 for 29.3, 128x1000x49 26.3 for 29.8, 128x700x81 28.6 for 31.6, but 512x400x25 21.8 for
# 21.4; bfloat16 512x300x49 18.1 for 19.3, but 128x1000x49, four blocks of 256 for a tile, 17.2, with eight 19.0;
# log_softmax 256x500x49 float32 25.5 for 29.2; softmax 24x394x6655 bfloat16 115 for 126. The longest that registers
# hold: softmax bfloat16 17x16395x37 33.7 for 46.1 read twice, 64x20000x33 112 for 146, 16x30000x63 102 for 112.
SINGLE_TILES = {
    2: [SharedTile(32, 256, 2, 28), SharedTile(16, 512, 16, 64, fewest_held=33)],
    4: [SharedTile(32, 256, 2, 24), *(SharedTile(32, 256, blocks, 16) for blocks in (4, 8))],
}
# Tiles where those of SHARED_TILES would leave a quarter of the multiprocessors idle: 1024x64 float32, dim 0, 5.9 for
# 7.7; 4096x32 6.9 for 12.0; 8192x16 7.5 for 12.2; 16384x64 10.3 for 14.3.
FEW_SHARED_TILES = [
    *(SharedTile(16, threads, blocks, 16) for threads, blocks in ((128, 8), (256, 8), (256, 16), (512, 16))),
    _LONG,
    SharedTile(16, 512, 16, 64),
]
# Few long columns: of no more elements for a multiprocessor, of so many steps and neighbours. Clusters hold tiles of
# them an element per access, so many of each thread, in blocks of so many threads or more: of all cuts the one of least
# cost (tile_cut.py), if it costs less than this. H200, November 2026, of random problems along dim 1 99 are cut
# otherwise than before and take 0.91 of the time in the mean, 64 less, 7 by 3% or more longer. us: log_softmax bfloat16
# 2x5390x6 5.1 for 10.5, float32 26x6591x4 8.0 for 12.7, softmax float32 6x4290x3 5.3 for 7.7, logsumexp bfloat16
# 1x29802x24 6.1 for 8.5, gradient bfloat16 8x16118x2 5.6 for 8.1; but softmax float32 3x11378x25 11.1 for 10.0. 127
# with more elements, columns or steps, or fewer steps than 2048, took 1.01 of the time.
FEW_ELEMENTS_PER_MULTIPROCESSOR = 1 << 13
FEW_STEPS = range(2048, 32768)
FEW_NEIGHBOURS = range(2, 128)
FEW_HELD = 8, 16
FEWEST_CLUSTER_THREADS = 128
MOST_FEW_COST = 5
# Columns of so many neighbours and steps, other than those, of so many elements at least: a tile of the tables that
# costs so much more than the cheapest is cut as that (tile_cost.py); what is not written with more neighbours, too.
# H200, November 2026, of some 700 random problems along dim 1, 2^14 to 2^26 elements, drawn after the rule was fixed,
# 202 are: they take 0.91 of the time in the mean, 150 by 3% or more less, 16 more; logarithms of sums 0.89, 58 less, 3
# more, softmax and log_softmax 0.89, 52 and 8, gradients 0.94, 40 and 5. us: log_softmax bfloat16 3836x830x14 73.9 for
# 136, float32 41x7263x7 14.5 for 26.7, logsumexp float16 1661x626x35 36.9 for 65.6, softmax's gradient float32
# 165x8045x8 36.6 for 54.4; but log_softmax float32 1037x1728x11 89.8 for 71.1, its gradient 7148x850x10 244 for 194.
# Softmax, log_softmax and gradients of 32 to 63 neighbours took 0.99, 17 of 40 less, 13 more; and cut at the least cost
# whatever the tables' costs, 231 others took 0.99, 96 less, 57 more.
COSTED_NEIGHBOURS = range(2, 32)
COSTED_STEPS = range(64, 1 << 15)
FEWEST_COSTED_ELEMENTS = 1 << 14
TOO_DEAR = {"logsumexp": 1, "softmax": 4, "log_softmax": 4, "softmax_backward": 5, "log_softmax_backward": 5}
# Cheap are threads that hold no more registers than these, of what is read once and of what is written, too; so many
# bytes that lie together; no larger blocks; no more columns. No cut has threads that hold more than MOST_CHEAP_HELD, or
# more columns, unless there are more neighbours.
CHEAP_HELD = 32, 16
CHEAP_RUN_BYTES = 32, 128
CHEAP_BLOCK_THREADS = 256
MOST_CHEAP_HELD = 48
CHEAP_COLUMNS = 16
# Of packs of 16 bits, that wait as they were read, no more: blocks of their own spill on sm_90 and later, clusters do
# not. H200, November 2026: with 24 in clusters, not 20, 68 problems took 0.84 of the time, the slowest 1.09.
MOST_CHEAP_HALVES = {2: 21, 4: 20}
MOST_CHEAP_HALVES_OF_CLUSTERS = 24
MOST_CHEAP_HALVES_OF_GRADIENTS = 28
# Logarithms of sums that several blocks walk along together are held instead, if clusters follow each other no more
# often: bfloat16 7x29918x19 12.8 for 24.2, 1x27758x166 13.9 for 20.8, but float32 115x20627x15, six times, 87.9 for
# 63.9.
MOST_WALKED_ROUNDS = 2
# And what is written, instead of a run, which is read twice: of so many neighbours, if an access takes several of them,
# or three of a gradient's, where the tile holds them all. H200, November 2026, random problems, of the time of runs in
# the mean: 2 neighbours 0.71, gradients 0.64; 4 of gradients 0.67; 6 0.85, 0.76; 8 0.89, 0.91; 3 of gradients 0.93; 262
# in all, 244 faster, 8 slower. Where tiles are narrower 6 neighbours take 1.02, 5 to 15 1.1 to 1.5. Of 2^15 to 2^17
# steps 14 problems took 0.81, one more; of more steps three took 1.14.
MOST_HELD_OF_RUNS = 8
COSTED_STEPS_OF_RUNS = range(64, 1 << 17)

# The same of gradients: by bytes of an element of both arrays, in registers of both. Measured against tiles in shared
# memory or read twice: float32 32x256x56x56, dim 1, 77.3 for 87.6, 16x150x128x128 116 for 174, 64x1000x196 47.5 for
# 69.6, 2048x4096, dim 0, 31.7 for 51.4, 4096x4096 59.8 for 90.0, with 8 blocks of 512 threads 64.1, 8192x8192 250 for
# 332, 16384x1024 82.8 for 90.4; bfloat16 32x256x56x56 43.1 for 56.4, 64x1000x196 30.6 for 54.1, with 4 blocks of 256
# threads 32.5, 2048x4096 21.8 for 32.5, 4096x4096 37.6 for 56.8, in tiles of 64 columns 38.4, 8192x8192 138 for 169,
# 16384x1024 45.8 for 57.3, in tiles of 32 columns 49.5.
GRADIENT_TILES = {
    4: [
        *(SharedTile(64, 128, 1, 16), SharedTile(64, 256, 1, 64), SharedTile(64, 256, 2, 64)),
        *(SharedTile(64, 128, 8, 64), SharedTile(64, 256, 8, 64), SharedTile(32, 128, 16, 64)),
        *(SharedTile(32, 256, 16, 64), SharedTile(16, 256, 16, 64)),
    ],
    8: [
        *(SharedTile(32, 128, 1, 32), SharedTile(32, 256, 1, 64), SharedTile(32, 256, 2, 64)),
        *(SharedTile(32, 256, 4, 64), SharedTile(32, 128, 16, 64), SharedTile(32, 256, 16, 64)),
        *(SharedTile(32, 512, 16, 64), SharedTile(16, 512, 16, 64)),
    ],
}
# Of so few neighbours that they fill no more than an access, or of few that have as many steps as above; as wide as
# there are neighbours: 1024x1000x3 float32, dim 1, 17.0 for 23.9, bfloat16 12.0 for 24.1; 32x1000x3 5.2 for 9.8;
# 2000x1000x4 float32 28.1 for 39.0, 8192x128x8 bfloat16 17.3 for 23.6; 64x50176x3 float32 59.6 for 61.6 read twice,
# bfloat16 43.5 for 46.3, 8x50176x3 11.8 for 14.4, 9.5 for 13.2, 128x8192x5 float32 28.4 for 47.9. Of 16-bit elements
# smaller blocks: 64x10000x3 9.9 for 10.9, 256x5000x3 14.6 for 16.8; float32 13.6 for 13.0, 20.7 for 20.5.
_TINY = [
    *(SharedTile(4, threads, 1, 64) for threads in (128, 256, 512)),
    *(SharedTile(4, threads, 16, 64) for threads in (256, 512)),
]
TINY_GRADIENT_TILES = {
    4: [*_TINY[:3], *(SharedTile(4, 128, blocks, 40) for blocks in (8, 16)), *_TINY[3:]],
    8: _TINY,
}
# 1024x64 float32, dim 0, 5.2 for 8.0, 4096x32 5.9 for 13.4, 100x1000 5.6 for 7.1, 300x40 5.0 for 7.6.
FEW_GRADIENT_TILES = [
    *(SharedTile(16, 128, 1, 32), SharedTile(16, 128, 8, 32), SharedTile(16, 256, 16, 24)),
    SharedTile(16, 512, 16, 64),
]
# Of 32 bits, that a thread has of both arrays where it holds the whole of its columns, needing no other; and beside how
# many of them all blocks have room. log_softmax 73x2x61825 float32 34.7 for 90.0 in shared memory, 6768x6x1387 bfloat16
# 102 for 217, 32x3x10191 6.8 for 11.3; softmax 4557x15x117 float32 31.7 for 42.7. Of few columns the shorter ones only:
# 2x16x1947 takes 5.2 for 4.3.
GRADIENT_ALONE_REGISTERS = 32
MOST_GRADIENT_BESIDE_ALL_BLOCKS = 24
# Steps, at least: 65536x4x64 float32, dim 1, took 90.9 for 52.1, 4096x8x128 18.7 for 17.7.
FEWEST_GRADIENT_STEPS = 16

# Runs of memory: threads of a block by bytes of an element, usually the first; of a multiprocessor, but for some blocks
# of which it has room for more; elements of a pack. H200, November 2026, us, two blocks of 384 and of 512 threads, one
# of 768 and of 1024, dim 1: softmax float32 3x678102x43 318, 323, 303, 314; 675x65410x5 709, 684, 770, 730; 64x50176x3
# 34.9, 37.2, 35.6, 38.8; bfloat16 2x204613x392 344, 307, 317, 302; 3x678102x43 192, 181, 179, 172; 8x200000x12 36.8,
# 38.3, 37.3, 40.3; its gradient 300x70000x7 396, 380, 386, 395; logsumexp 2x204613x392 142, 115, 124, 110; amax
# 4x1010660x23 70.7, 63.3, 69.5, 63.8. By packs of 2 float32 lost 3% to 13%, bfloat16 by packs of 8 18%. Where few
# walk: log_softmax float32 1x60000x301 79.0 by 301 of 384, 73.9 by 602 of 768, 75.8 by 903 of 1024; softmax float32
# 1x60000x219 53.1 by 657 of 768, 56.6 by 219 of 256; 1x40000x295 49.1 by 590 of 768, 50.1 by 885 of 1024, gradient
# 2x50000x1100 580 and 608; but bfloat16 1x60000x1100 148 and 136.
# Of other GPUs, where the larger ones spill, and of doubles nothing was measured.
RUN_THREADS = {4: (384, 768), 2: (512, 384, 768, 1024)}
LARGEST_RUN_THREADS = 1024  # where too few of those walk; of log_softmax they take all 48 KB of static shared memory
OTHER_RUN_THREADS = 384, 256, 768
RUN_THREADS_PER_MULTIPROCESSOR = 768
RUN_BLOCKS = {512: 2}
# What is read once gains nothing by larger blocks, but logarithms of 16 bits: dim 1, logsumexp 1x60000x801 float32 76.2
# by 1024, 68.3 by tiles, bfloat16 58.1 for 88.9; sum float32 66.4 for 65.1, 2x40000x801 bfloat16 60.6 for 53.0.
MOST_READ_ONCE_THREADS = 768
MOST_RUN_PACK = 4
MOST_RUN_COLUMNS = 3072  # as many as threads of a block have in packs; it has scratch memory for the states of all
MOST_RUN_PACKS = 1 << 30  # a thread counts them by 32 bits
ENOUGH_BUSY_WALKERS = 0.8  # of the threads, whose packs are a whole number of steps
FEWEST_BUSY_WALKERS = 0.6
# Tiles that wait in the registers of so many threads, in packs of one, lose to runs if they are so many bytes: softmax,
# dim 1, float32 16x30000x63 111 for 165, 675x65410x5 764 for 965, 64x50176x3 38.3 for 40.6; bfloat16 16x30000x63 70.8
# for 102, 64x20000x33 99 for 110, 675x65410x5 473 for 637; but 1x20000x99 20.3 for 15.2. Those of gradients only of no
# more columns: 64x50176x3 float32 51.1 for 59.6, bfloat16 30.9 for 44.0, but 152x5661x107 475 for 458.
LONG_HELD_THREADS = 512
LONG_HELD_BYTES = 20_000_000
MOST_HELD_GRADIENT_COLUMNS = 8
# And of so many steps whatever their threads: softmax float32 28966x181, dim 0, 28.4 for 37.4, 13074x401 29.9 for 33.7,
# 14958x701 48.2 for 59.1, 10475x1001 49.4 for 58.2, bfloat16 20929x501 33.4 for 47.9, 10000x1001 32.3 for 37.3;
# log_softmax float32 14958x701 54.5 for 60.4; gradient float32 14958x701 64.6 for 73.3; but 8723x601 32.0 for 29.8.
# H100: 16x10000x181, dim 1, 136 for 173, bfloat16 76.7 for 112. H200, of short runs: 17x16395x37 41.8 for 65.5,
# bfloat16 27.6 for 32.4, 3000x17702x3 492 for 507. Of more elements than these also tiles in packs of two, if steps are
# not whole sectors. H100: softmax float32 26083x402 56.4 for 76.4, 10464x1002 60.7 for 63.9, but 10485x1000 65.8 for
# 44.2; bfloat16 20971x500 36.0 for 44.6, 20929x1002 68.0 for 94.5; gradient bfloat16 10464x1002 53.5 for 58.1; but
# log_softmax float32 13981x750 70.7 for 64.4, of twice as many steps 119 for 140.
LONG_HELD_STEPS = 10_000
MOST_HELD_PAIRS = {"softmax": 10_000_000, "softmax_backward": 10_000_000}
MOST_OTHER_HELD_PAIRS = 20_000_000
# What several blocks read twice, or what comes to shared memory, loses to any run: log_softmax, dim 1, float32
# 2x207377x84 135 for 1356, 1x60000x3000 632 for 2880, bfloat16 2x204613x392 427 for 3834, 1x314052x124 95.5 for 512;
# softmax float32 3x678102x43 330 for 775, 8x200000x12 68.7 for 116; gradients 361x177020x3 891 for 1400, bfloat16
# 300x70000x7 396 for 658. But not steps of so few bytes in shared memory: softmax 16x2521712x2 bfloat16 187 for 161,
# 28x738824x2 93.4 for 83.2; nor tiles of whole lines there, of so few blocks that merging takes no time: softmax
# float32 16x20000x1024 1261 for 995, 1x20000x2048 166 for 152, but its log_softmax 170 for 239, and 1x40000x1024, by
# 65 blocks, 149 for 168. Nor gradients of as many columns whose tiles are whole lines: 4x65536x1024 bfloat16 732 for
# 666, 1x40000x1024 float32 216 for 206. Tiles of one block each that are read twice, an element at a time or of no
# whole lines, lose to runs of so many bytes: softmax's gradient of 188x70630x19 bfloat16 713 for 1544, 2x50000x1100
# float32 578 for 787, but 16x20000x1024 1783 for 1573.
FEWEST_STEP_BYTES = 8
FEW_STAGED_BLOCKS = 40
MANY_GRADIENT_COLUMNS = 1000
RUN_BYTES_OF_TWO_READS = 1 << 20


class FewestOfRuns(NamedTuple):
    """What runs that are read once must be, to be better than tiles, which are, too."""

    run_bytes: int  # of one
    bytes: int  # of all
    most_columns: int = 1000


# By what is made of them, and bytes of an element. logsumexp, dim 1, float32 3x678102x43 122 for 264, 8x200000x12 38.1
# for 55.6, 4x65536x30 24.8 for 40.8, 1x60000x300 47.2 for 55.5, but 16x30000x63 54.1 for 52.5, 2x128256x16 20.2 for
# 16.4; bfloat16 1x169255x48 21.7 for 61.0, 11x1245213x18 203 for 519, 1x809726x311 245 for 989. sum float32 3x678102x43
# 97.5 for 142, 675x65410x5 228 for 420, 13x121734x56 96.7 for 161; amax 152x5661x107 103 for 120, 1x82081x704 74.5 for
# 102; but sum 17x16395x37 25.2 for 24.1, 1x60000x300 36.6 for 35.3; bfloat16 13x40852x164 64.6 for 93.6, amax
# 4x1010660x23 65.4 for 106, 34x67665x28 51.5 for 59.1, but 4x31562x515 62.3 for 52.7, sum 1x67521x440 39.5 for 32.3,
# 675x65410x5 147 for 145.
# Plain ones must have as many steps, too, as tiles are shared from: amax 35x1142x672 float32, dim 1, 52.9 for 37.4 by
# tiles, sum 69x1965x293 70.3 for 52.2.
# Of no more tiles than so many for each multiprocessor, one block each, the chip is idle: logsumexp float32
# 64x100000x12, dim 1, 93.3 for 117, 1x81920x512 68.9 for 107, bfloat16 1x81920x1024 80.6 for 103; sum bfloat16
# 1x83886x1000 67.9 for 81.8; but logsumexp 1x41943x1000 71.0 for 66.6.
IDLE_WALKS = 0.9
READ_ONCE_RUNS = {
    ("logsumexp", 4): FewestOfRuns(7 << 19, 15 << 20),
    ("logsumexp", 2): FewestOfRuns(7 << 19, 15_000_000),
    ("plain", 4): FewestOfRuns(1 << 20, 64 << 20),
    ("plain", 2): FewestOfRuns(2 << 20, 80 << 20, 256),
}
