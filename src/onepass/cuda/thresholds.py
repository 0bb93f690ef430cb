"""Every threshold of the planner for GPUs, with what it rests on.

"modelled": from registers, occupancy and Little's law, not measured one against the other yet.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# Bytes of one access. 256-bit accesses of sm_100 are not used yet.
ACCESS_BYTES = 16
# Elements that a thread may hold of a row, in registers of 32 bits: a lane of a group ... (modelled: 32 values and what
# exponentials need leave 48 warps on a multiprocessor)
WARP_REGISTERS = 32
# ... or a thread of a block; the larger number where 1024 threads are not enough otherwise, and where nothing is
# written: logsumexp of 32768x4096 bfloat16 measured 1.09x on an H100.
BLOCK_REGISTERS = 16
MOST_BLOCK_REGISTERS = 32
# Rows that a warp could hold, but with so many packs a lane, are for a block where there are no more of them than this:
# what one warp does in turn, several do at once, and fetch a quarter of the instructions. Each thread holds one pack of
# them, or two where rows are more than the second number. Measured on an H200, November 2026, float32 rows of 1000 by
# blocks of 256 and 128 against warps: 64 rows 4.6 for 5.2 us, 512 5.6 for 5.9, 2048 8.4 for 8.7, 4096 13.1 for 12.4; 8
# rows of 512 4.3 for 4.5; bfloat16, 64 rows of 1000, 4.1 for 4.4.
LONG_LANE_PACKS = 4
FEW_ROWS_PER_MULTIPROCESSOR = 16
FEWER_ROWS_PER_MULTIPROCESSOR = 4
# What `algorithm=` and tuning may ask for.
FORCED_WARP_REGISTERS = 64
# A thread of a block that holds a row of a gradient, of two arrays: 16 elements of each in float32, which takes 55
# registers in all and leaves a multiprocessor 64 KB of loads in flight (modelled).
GRADIENT_BLOCK_REGISTERS = 32
GRADIENT_BLOCK_REGISTERS_OF_DOUBLES = 24  # with 32, 1024 threads spill on sm_100
# Packs of a row that a lane takes where groups of lanes need nothing of each other (modelled: 64 bytes in flight for
# each of 2048 threads), and steps of a tile.
GRADIENT_SEGMENT_PACKS = 4
STRIDED_SEGMENT_STEPS = 16  # gradient_tile.h's kStepsPerThread
# Rows up to this many elements that do not start on pack boundaries are read with narrower packs that they do start on:
# a head and a tail would be most of the row (modelled); but of 16-bit ones that are many and written only up to the
# second number, where elements are the only packs that rows are whole ones of: softmax 103819x101 bfloat16 17.9 for
# 23.6, 136178x77 20.7 for 27.7 (H200, November 2026).
NARROW_LENGTH = 128
NARROW_HALVES = 96
# Of more short rows than this for a multiprocessor, few lanes take each, so that most of what they do is for its
# elements and not for telling each other; of fewer, more lanes are done sooner. Elements that a lane takes then, of
# rows of whole packs, and bytes that a group of lanes reads side by side, at least. H200, November 2026, us, against as
# many lanes as a row has packs: 104857x100 float32, log_softmax 25.8 for 33.8, logsumexp 20.2 for 32.0, sum 20.8 for
# 25.8, softmax 25.3 for 27.9; 81920x128 bfloat16, logsumexp 11.2 for 13.9; 16896x100 float32, log_softmax 7.9 for 9.0,
# 8000x100 the same.
MANY_SHORT_ROWS_PER_MULTIPROCESSOR = 120
LANE_ELEMENTS = {"softmax": 8}
OTHER_LANE_ELEMENTS = 16
LANE_GROUP_BYTES = {2: 32, 4: 64, 8: 64}
# The same of rows whose heads and tails go by element, by bytes of one, and lanes at least where each is not to have an
# edge of its own. H200, November 2026, us, against as many lanes as a row has packs: log_softmax 65536x197 bfloat16
# 19.4 for 27.4, float32 31.0 for 34.6; 43691x301 20.1 for 25.5, 30.7 for 32.3; 26214x501 bfloat16 18.7 for 19.4;
# 16384x197 8.4 for 10.6; logsumexp 65536x197 float32 22.6 for 31.6; sum 16384x197 bfloat16 7.7 for 9.9, 65536x197
# float32 21.9 for 24.9. Softmax gains 0 to 2% in float32, and in bfloat16 only up to 200 elements.
PEELED_LANE_ELEMENTS = {
    **{(op, size): elements for op in ("log_softmax", "logsumexp") for size, elements in ((2, 32), (4, 25))},
    **{("plain", size): 32 for size in (2, 4)},
}
FEWEST_PEELED_LANES = 8
# Short rows that no accesses divide come by way of shared memory if they are more than so many for a multiprocessor, up
# to so many elements: by bytes of one, of rows that are whole packs of 1, 2 and 4 of them. H200, November 2026, us,
# against lanes that read an element, a narrow pack, or the edges of a row each: 3495253x3 softmax float32 27.1 for
# 70.6, bfloat16 17.4 for 70.3, its gradient 23.0 for 69.8; 317750x33 softmax float32 26.1 for 56.1, log_softmax
# bfloat16 18.2 for 73.7, sum 13.0 for 60.5; 136178x77 log_softmax float32 27.0 for 46.3, gradient of bfloat16 24.5 for
# 38.3; 69905x150 log_softmax bfloat16 17.9 for 28.4; 80659x130 sum bfloat16 12.4 for 16.3; but softmax 53227x197
# float32 27.6 for 26.1, bfloat16 103819x101 20.6 for 17.9, 41943x250 17.1 for 15.8, 104857x100 17.6 for 16.8; 16896x33
# float32 6.4 for 5.6; sum 80659x65 float64 20.1 for 18.5; gradients of 80659x130 bfloat16 24.2 for 21.8; of 81920x157
# float32 log_softmax 32.4 for 30.6, logsumexp 26.6 for 22.2, bfloat16 17.6 for 15.6; sum 65536x197 bfloat16 17.1, 15.7.
WARP_SMEM_ROWS_PER_MULTIPROCESSOR = 192
MOST_WARP_SMEM = {
    "softmax": {2: (96, 192, 320), 4: (176, 160), 8: (128,)},
    "log_softmax": {2: (96, 128, 320), 4: (144, 128), 8: (128,)},
    "logsumexp": {2: (144, 128, 320), 4: (144, 128), 8: (128,)},
    "plain": {2: (176, 320, 320), 4: (144, 128), 8: (0,)},
    "softmax_backward": {2: (128, 128, 0), 4: (64, 64), 8: (64,)},
    "log_softmax_backward": {2: (128, 128, 0), 4: (64, 64), 8: (64,)},
}
# Elements that a lane holds of them, of a gradient of both arrays; bytes that a warp asks for at a time, rows of a lane
# at a time, and blocks that must be left for a multiprocessor where lanes have several: 3495253x3 float32 45.4 with one
# row, 33.8 with two, 27.0 with four; 64000x3 5.6 with eight, 4.9 with one.
WARP_SMEM_HELD = 40
WARP_SMEM_HELD_OF_BOTH = 66
# Of a plain reduction a lane holds nothing, and takes more: sum 104857x125 bfloat16 16.4 with two lanes, 17.9 with 4.
WARP_SMEM_REDUCED = 64
WARP_SMEM_BYTES = 2304
MOST_WARP_SMEM_ROWS = 8
WARP_SMEM_BLOCKS_PER_MULTIPROCESSOR = 16
# Rows longer than this are reduced by a block, shorter ones by a group of lanes: a warp then reads 8 packs a lane.
WARP_REDUCE_PACKS = 32 * 8
# Of more rows than this, longer ones too. Measured on an H200, sums of bfloat16, against the best block: 65536 rows of
# 2560 1.0x and 1.6x over a block of 256, 8192 of 16384 and 4096 of 128256 0.99x.
MANY_ROWS_PER_MULTIPROCESSOR = 48
# Loads of a thread in one go, kInFlight of row.h: threads of a block are as many as leave them that much. On an H200,
# the sum of 32768x4096 bfloat16 by 128 threads 1.22x over 256, which had 2.
PACKS_IN_FLIGHT = 4
FEWEST_REDUCE_THREADS = 64
WARP_THREADS = 128  # 64 and 256 measured within 1% on an H100
LOOP_THREADS = 512
# A multiprocessor that has one block to run wants it large. Measured on an H100: online of 128 rows of 65536 to 1048576
# float32, 1.06x to 1.15x over 512 threads; block_smem of 16384 rows of 32768 float32, of which one fits at a time,
# 1.18x, but 0.72x to 0.74x where several fit; strided tiles, 2x128256x16 float32, 2.3x over 256.
LONE_THREADS = 1024
# Rows of more bytes than that, by bytes of an element, that are read once and not written are walked with a running
# maximum, not held. Measured on an H200, logarithms of sums by blocks of the threads that follow, against a block that
# holds the row: 32768x8192 bfloat16 1.09x, 4096x32768 1.6x, 8192x16384 float32 1.08x, 8192x8192 0.94x.
MOST_HELD_LOGSUMEXP = {2: 8 << 10, 4: 32 << 10, 8: 128 << 10}
# Threads for such a row: 8192x50257 bfloat16 1.31x over 512, 4096x128256 1.02x, and of fewer rows as many as leave no
# block waiting for its turn: 2048x16384 float32 1.25x with 64 over 128, 512x128256 bfloat16 1.17x with 256 over 512.
ONLINE_THREADS = 128
ONLINE_PACKS = 16  # per thread, at least: 32768x8192 bfloat16 1.07x over 8
ONLINE_THREADS_PER_MULTIPROCESSOR = 1536
SEED_THREADS = 256  # the textbook kernel's
# Bytes across a tile of a strided problem, widest first; 32 is what memory fetches at least.
TILE_BYTES = (128, 64, 32)
# A thread of a tile has at least this many steps, where rows are long enough: their loads are in flight together.
STEPS_PER_THREAD = 4
# Values of 32 bits that a thread holds of a tile in registers: 1024 threads of a multiprocessor then have 64 registers
# each, and no kernel of them spills. Rows of such a tile per access: each costs a thread some 60 instructions, and
# wider packs leave few steps to share them (16x150x128x128 bfloat16 takes 22 an element with packs of 4, 25 with 8).
HELD_REGISTERS = 40
# Such a tile is no wider than the rows that are neighbours, and narrower where tiles are fewer than so many for a
# multiprocessor. H200, November 2026, us: 1024x1000x3 float32, dim 1, 13.7 by 4 threads across, 21.8 by 16, bfloat16
# 11.0 for 48.6; 4096x100x5 float32 10.6 by 8, 14.1 by 32; 32x1000x3 5.4 by 2, 10.6 by 16; 8x256x128 6.1 by 2, 6.9 by
# 8; but 64x2000x9 13.6 by 4, 11.5 by 8.
HELD_TILES_PER_MULTIPROCESSOR = 0.5
HELD_ALONE_REGISTERS = 48  # one thread to a row: nothing is needed of others
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
# Of fewer columns than this for a multiprocessor, of so many steps, which no access takes several of, each has a block
# of its own where they are added up or compared: sum 32x1000x3 float32 5.5 for 6.7, bfloat16 5.3 for 7.6; 8x4000x7 6.5
# for 9.6, 6.0 for 11.2; 16x2000x3 6.2 for 8.1, 5.8 for 9.3.
LONE_REDUCED_COLUMNS_PER_MULTIPROCESSOR = 1
FEWEST_LONE_STEPS = 512
# Where several blocks share a tile of a plain reduction, each reads the states of all: tiles are narrow, in packs of
# two rows, and are two or more. H200, November 2026, us, against tiles of 128 bytes in packs of 16: sum, dim 0,
# 65536x64 float32 14.0 for 17.3, bfloat16 12.3 for 29.2; 65536x32 11.0 for 16.1, 9.9 for 22.0; 32768x128 13.3 for 20.3,
# 11.8 for 23.1; 16384x256 14.0 for 18.8; 200000x8 10.9 for 15.4, 10.1 for 24.2.
SHARED_REDUCED_PACK = 2
SHARED_REDUCED_ACROSS = 16
# ---- rows that several blocks share; times measured on an H200, November 2026, in microseconds ----

# Elements of its slice that a thread holds, as they are computed with, by registers that one takes.
SPLIT_HELD = {1: 32, 2: 8}
# Threads of a block, and of rows that would take more blocks of those than there are multiprocessors: 1x4194304 float32
# 19.3 against 20.6, 1x1048576 10.9 against 11.1; 32x128256 16.9 against 17.4 the other way.
SPLIT_THREADS = 256
LONG_SPLIT_THREADS = 512
# Rows are spread over that many threads before these hold more than two packs each: 1x128256 float32 8.1 (63 blocks of
# 2 packs), 8x128256 10.3 (32 of 4); 16 blocks each 9.0 and 10.5, one pack each 8.2 and 11.0.
SPLIT_THREADS_PER_MULTIPROCESSOR = 512
# Slices wait in registers unless that makes more launches' worth of blocks than this: 128x65536 float32, 2, 27.1
# against 28.6 in shared memory; 128x131072, 4, 47.1 against 43.2, 4096x65536 625 against 577. Those of rows that do not
# start on pack boundaries stay there: 4096x50257 481 against 496. 16-bit ones never do then.
HELD_WAVES = 3
# Threads of blocks whose slices wait in shared memory, and how many on a multiprocessor, by bytes of an element:
# 4096x65536 float32 577 with 3 of 256, 591 with 1 of 1024; 8192x262144 bfloat16 2447 against 2524.
STAGED_BLOCKS = {2: (256, 3), 4: (256, 3), 8: (512, 1)}
# The same of rows of more packs than that: 128x262144 float32 86.3 with 2 of 512, 87.4 with 3 of 256, 128x524288 162.2
# against 167.4; 128x131072 46.9 against 43.2. Slices are whole parts: 128x524288 166.2 with 22 blocks, whose threads
# have 12 packs, 173.2 with 20, whose threads have 13.
# 64x4194304 bfloat16 345 with 2 of 512, 365 with 3 of 256, 256x1048576 316 against 328.
LONG_STAGED_PACKS = 1 << 15
LONG_STAGED_BLOCKS = {2: (512, 2), 4: (512, 2), 8: (512, 1)}
# A row that one block holds has it alone, if there are so many for a multiprocessor: 32768x65536 bfloat16 2213 against
# 2375 by two blocks, 8192x40000 float32 681 against 704, 4096x50257 479 against 481, but 512x50257 76.5 against 67.4.
ALONE_ROWS_PER_MULTIPROCESSOR = 8
# Bytes that a thread works on at a time of such a slice: the 64 registers that 1024 threads have each hold no more.
PART_BYTES = 64
# Rows that one block could hold are shared if they are at most one for so many multiprocessors, and longer than so many
# packs: 32x32768 float32 10.2 against 11.5 by blocks, 66x32768 11.9 against 12.3; 16x16384 8.0 against 7.9.
FEW_ROWS_SHARE = 2
FEW_ROWS_PACKS = 4096
# The same of rows that are read once and not written: sums of 16x131072 10.7 against 15.3, logarithms of sums of
# 16x32768 8.9 against 8.6.
FEW_REDUCED_PACKS = 8192
# Times over that of a copy, of rows that no multiprocessor holds. `online`, all multiprocessors at work; `split`, so
# many rows on the chip at once; `stream`. 128 rows of float32: 131072 elements 59.3 against 47.6 shared, 2097152 800
# against 770, 4194304 1584 against 1807; 32x4194304 950 by online, 474 by split, one row at a time, 419 by stream.
ONLINE_COST = 1.58
SPLIT_COST = ((8, 1.35), (3, 1.53), (1, 1.85))
STREAM_COST = 1.7
# Of gradients, `split`: their arithmetic hides behind their loads, that of exponentials did not (modelled). The others
# cost the bytes that they move.
GRADIENT_SPLIT_COST = ((8, 1.1), (3, 1.25), (1, 1.5))
# Threads of blocks whose slices of both arrays wait in shared memory, and how many on a multiprocessor, by bytes of an
# element: 4096x131072 bfloat16 874 with 1 of 512, 915 with 3 of 256. Rows of fewer packs than that wait in registers,
# if these hold them and elements have 4 bytes: 128x262144 float32 125 to 130, in shared memory 129.
GRADIENT_STAGED_BLOCKS = {2: (512, 1), 4: (512, 2), 8: (512, 1)}
GRADIENT_STAGED_PACKS = 1 << 17
# Rows of up to so many bytes, of both arrays, have a block alone where rows are many: 8192x32000 bfloat16 406 against
# 418, but 4096x50257 415 against 352.
LONE_GRADIENT_BYTES = 160 << 10
# Gradients of rows that the registers of a block do not hold are for clusters, up to so many bytes of both arrays for
# each block of the largest. Measured on an H200, November 2026, against one block or blocks that meet in memory, us:
# float32 4096x20000 232 for 272, 2048x32768 190 for 223, 128x131072 55.9 for 65.3, 8x32768 6.7 for 7.8, but 128x262144
# 131 by either; bfloat16 8192x24000 277 for 300, 4096x32000 189 for 201, 4096x50257 312 for 354, 4096x131072 745 for
# 831, 64x262144 33.6 for 42.4, but 64x524288 73 by neither.
GRADIENT_CLUSTER_BYTES = 64 << 10
# The blocks are as many as leave each so many bytes of both arrays. Of many rows of 16-bit elements 8 blocks and more
# have ROW_EACH_THREADS, unless half of them leave each at most twice the second number: bfloat16 4096x50256 290 by 8 of
# 128, by 4 of 256 312, 512x32768 30.3 for 31.1, 4096x131072 738 by either; 64x128256 20.5 with 256, 22.0 with 128.
# Each cluster has one row: none of these is faster with rows handed out.
GRADIENT_CLUSTER_SLICE_BYTES = 32 << 10
LEAST_GRADIENT_SLICE_BYTES = 24 << 10
# Where rows are at most one for so many multiprocessors, so many blocks have a row, and threads for so many elements,
# up to so many threads: 8x32768 float32 6.66 by 8 blocks of 512, 6.75 by 16 of 128; bfloat16 5.47, in shared memory
# 5.73.
MULTIPROCESSORS_PER_FEW_GRADIENTS = 2
FEW_GRADIENTS_BLOCKS = 8
FEW_GRADIENTS_ELEMENTS = 8
FEW_GRADIENTS_THREADS = 512
# Rows that a block just holds are for clusters, if they are few or float32: float32 64x16384 8.5 for 8.8, 512x16384
# 28.9 for 30.7, 4096x16384 189.9 for 190.5; bfloat16 64x16384 7.2 for 7.5.
CLUSTERED_GRADIENT_LENGTH = 16384
# Threads of the blocks of a cluster, and of those whose slices have more packs than that; blocks of a multiprocessor
# that the planner wants room for (modelled).
CLUSTER_THREADS = 256
LONG_CLUSTER_THREADS = 512
LONG_CLUSTER_PACKS = 1 << 12
CLUSTER_RESIDENT = 2

# ---- clusters of small blocks with one row each; H200, November 2026, us, against what was planned before: one block,
# larger ones, or clusters that are there for many rows ----

ROW_EACH_THREADS = 128
# Elements that a thread holds, as they are computed with, by bytes of an element as it is read: float32 64x32768 9.9
# for 10.5, 128x32768 13.3 for 15.4, 512x10000 14.7 for 17.0, 4096x14000 117 for 151, 4096x17000 139 for 156,
# 4096x28000 227 for 283, 4096x40000 323 for 335, 4096x65536 520 for 542; bfloat16 64x16384 6.3 for 7.7, 4096x10000 44.6
# for 56.6, 512x24000 17.5 for 19.3, 4096x32768 133.7 for 139.1, odd 4096x32769 138 for 147, 512x50257 32.5 for 37.6.
# 16-bit elements are loaded two to a register, so more of them can be on their way.
ROW_EACH_HELD = {2: 64, 4: 40, 8: 8}
# Rows of no more elements are for one block, but of the longest float32 the fewest, one for so many multiprocessors,
# and the most, so many for each, by two blocks of CLUSTER_THREADS: 8x8192 5.1 for 5.5, 32x8192 5.9 for 5.8, 4096x8192
# 70.1 for 69.9, 16384x8192 262 for 267, 49152x8192 772 for 789.
BLOCK_LENGTH = 8192
LONGEST_BLOCK_LENGTH = 7168
MULTIPROCESSORS_PER_FEWEST_ROWS_EACH = 8
MOST_ROWS_PER_MULTIPROCESSOR = 96
# Clusters are made larger until a multiprocessor has so many blocks, or (beyond what is portable) that, as long as
# each thread has so many packs: 64x16384 bfloat16 6.3 by 8 blocks, 6.5 by 4, 256x16384 9.1 by 2 and by 4; 8x32768
# float32 6.1 by 16, 6.4 by 8; 8x8192 5.1 by 8, 5.3 by 4.
FEW_BLOCKS_PER_MULTIPROCESSOR = (4, 1)
SPREAD_PACKS = (2, 4)
PORTABLE_CLUSTER = 8
LARGE_CLUSTER = 16
# Many rows of float32, more than so many for a multiprocessor, are for 16 blocks only if these have so many elements:
# 4096x57344 459 for 467, but 4096x48000 413 for 404, 4096x50257 435 for 425; 1024x50257 116 for 120. Else 8 blocks have
# them in shared memory, all asked for at once: 4096x50256 402 for 413 handed out, 4096x45000 360 for 368, 1024x50256
# 105 for 111; off the boundaries of packs they are handed out, 4096x50257 425 for 438.
FEW_CLUSTERED_PER_MULTIPROCESSOR = 8
LARGE_CLUSTER_SLICE = 3328
# Slices of more 16-bit elements a thread wait in shared memory, where a row has more than 4 blocks and rows are many:
# bfloat16 4096x50256 207 for 217 (in registers 214), 4096x65536 265 for 273 (267), 4096x128256 512 for 526 (573),
# 512x128256 70.5 for 73.1; 4096x48000 193 in registers, 199 not. Few rows of 8 blocks have more in registers: 128x50256
# 12.2, in shared memory 12.6, but 128x65536 14.4 and 13.9.
SMALL_CLUSTER = 4
ROW_EACH_HALVES = 48
FEW_ROWS_EACH_HALVES = 56
# log_softmax computes exponentials twice: with so many elements or fewer, 4096x40000 takes 180 for 172.
FEWEST_LOG_HALVES = 40
# Many such rows off the boundaries of packs are handed out to 4 blocks, of up to so many bytes each; longer ones wait
# in 8, asked for at once: bfloat16 4096x40001 169.5 for 203 by one block each, 4096x50257 212 for 224, 4096x56001 234
# for 248, 1024x50257 60.1 for 63.1; 4096x128257 514 for 534 by 16 blocks.
OFF_BOUNDARIES_SLICE_BYTES = 28 << 10
OFF_BOUNDARIES_LONG_SLICE_BYTES = 32 << 10
# Slices of so many packs come part by part, and 8 blocks do: 4096x80000 328 (by 16 blocks 377), 2048x100000 217 (221),
# but 4096x128256 522 (512).
PARTED_PACKS = 14
# Longest rows: of 16-bit elements in shared memory, part by part, 512x262144 139 for 144, 4096x262144 1066 for 1124,
# 2048x200000 442 for 447; of float32 in registers by blocks of CLUSTER_THREADS, 1x128256 7.5 for 8.0, 16x128256 11.5
# for 11.9, 32x128256 15.1 for 16.0, 128x131072 40.2 for 41.5, 512x128256 135.7 for 136.4 handed out.
LONGEST_ROW_EACH = {2: 1 << 18, 4: 1 << 17}

# Few rows that are read once, of so many packs at least, and not too long, are for clusters of 8, longer and fewer ones
# of 16: logsumexp float32 1x65536 5.8 by 16, 6.7 by 8, 6.7 by blocks that meet in memory, but 1x128256 7.8 for 7.1,
# 16x16384 5.5 by 8, 6.3 by 16; bfloat16 1x16384 4.7 for 6.3 by one block, 1x32000 4.9 for 8.5, 8x128256 7.1 for 8.7,
# 64x50257 8.8 by 8 of 128 threads, 11.3 by 8 of 256; sum float32 1x128256 5.9 for 6.8, 32x128256 10.7 for 12.6,
# bfloat16 8x262144 6.6 for 8.4. Longer rows of float32 give logsumexp too much to do for so few threads.
FEWEST_CLUSTER_REDUCED_PACKS = 2048
LARGE_CLUSTER_REDUCED_PACKS = 8192
MOST_CLUSTER_REDUCED_BYTES = 512 << 10

# ---- slices that blocks claim as they are ready; H200, November 2026, us, against what was planned before ----


class ClaimedSlices(NamedTuple):
    """Where the elements of a slice wait, at most."""

    threads: int  # of a block
    held: int  # elements in registers of a thread, as they are read
    waiting: int  # and in shared memory
    resident: int  # blocks on a multiprocessor


# By bytes of an element: softmax 128x2097152 float32 620 for 669 by blocks that have equal slices in shared memory,
# 8x4194304 100 for 111 by `stream`, 64x524289 81 for 103, 128x1000003 284 for 407 by `online`; bfloat16 128x2097152 310
# for 323, 32x8388608 352 for 437. Registers alone, or shared memory alone: 730 and 728 of 128x2097152. More of either,
# in 3 blocks, of 128x2097152 612 to 619, 128x4194304 1314 for 1329, but 64x524289 86.5 for 81.0.
CLAIMED_SLICES = {
    2: ClaimedSlices(256, 32, 96, 4),
    4: ClaimedSlices(256, 32, 32, 4),
    8: ClaimedSlices(256, 8, 16, 2),
}
# Registers of a thread besides those that hold its slice, by bytes of an element: what leaves no kernel of
# tools/nvrtc_matrix.py with a spill. And an edge, beside more packs of a slice than that.
OTHER_CLAIMED_REGISTERS = {2: 48, 4: 32, 8: 80}
CLAIMED_EDGE_REGISTERS = 16
MOST_CLAIMED_BESIDE_EDGE = 32
# Shortest rows, by bytes of an element, and slices for each block, at least: float32 128x400000 120 for 122, 64x524288
# 83.9 for 83.6, 16x1048576 50.4 for 47.0; bfloat16 512x1048576 576 for 602, 64x1048576 83.9 for 84.4, 32x2097152 86.3
# for 85.6, 512x524288 294 for 289. Off the boundaries of packs, where blocks with equal slices have fewer of them,
# shorter rows, too, and more slices than one are enough: 64x262145 float32 45.2 for 57.6, 64x700001 bfloat16 59.2 for
# 61.3, 128x1000003 149 for 155. So they are of the longest rows, of which few fit the chip: 4x4194304 float32 56.8 for
# 60.3.
CLAIMED_ROW_BYTES = {2: 2 << 20, 4: (1 << 20) + 1}
FEWEST_CLAIMED_BYTES = (1 << 20) + 1
CLAIMED_WAVES = {2: 5, 4: 3}
LONGEST_ROW_BYTES = 8 << 20
# Of rows of more slices than a block has threads, one on the chip at a time: 32x8388608 float32 774, 829 by `stream`.
MANY_SLICES_WAVES = 15
# log_softmax of 16-bit elements computes exponentials twice, and gains nothing below that: 256x1048576 306 for 305,
# 32x4194304 178 for 178, but 32x8388608 372 for 451.
CLAIMED_LOG_HALVES_BYTES = 16 << 20
# Slices that take turns at their packs, of rows of whole packs: what they share comes and goes in the order of memory.
# H200, November 2026, us: 128x524288 float32 143 for 145, 512x524288 538 for 543, 128x2097152 582 for 582; copies by
# slices 526 for 550.
CLAIMED_SPREAD = 8
# Every block reads the states of a row of so few slices; of more of them one block does, and tells the others:
# 128x2097152, 74 slices, 604 for 626, 512x524288, 32 slices, 576 for 598, but 8x128256, 16 slices, 9.1 for 8.6.
EACH_READS_SLICES = 16


# ---- clusters that take rows as they are ready for them ----

# As SPLIT_HELD: beside more of them the states of its warps spill.
CLUSTER_HELD = {1: 24, 2: 6}
# Longer rows, and many of them, are for clusters that take rows as they are ready for them. Their blocks are small, so
# that a multiprocessor has many, and while one waits for its cluster others load: 4 of 128 threads each, 8 or 16, of no
# more bytes of a row than that, else 16 of 256. H200, November 2026, us, against blocks that meet in memory, or one
# block: float32 128x262144 78.9 for 86.3, 512x128256 139 for 151, 4096x128256 1052 for 1159, 4096x50257 449 for 470;
# bfloat16 4096x50257 231 for 228.
HANDED_THREADS = 128
HANDED_SLICE_BYTES = {4: 24 << 10, 8: 28 << 10, 16: 32 << 10}  # 4096x128256 bfloat16 526 by 16, 534 by 8
# Rows of fewer bytes, by those of an element, are for others: 4096x32768 bfloat16 140.6 by one block, 141.5 by 4.
FEWEST_HANDED_BYTES = {2: 76 << 10, 4: 96 << 10}
# Of longer ones 16 blocks leave a multiprocessor room for one of them: 128x524288 float32 179 for 167.
MOST_HANDED_BYTES = 1 << 20
# Rows that are one for so many multiprocessors, or fewer, have more threads: 64x128256 float32 25.1 with 256 each, 27.2
# with 128, but of bfloat16 17.1 and 15.2. Of the fewest, float32 rows and longer ones are for more blocks, which meet
# in memory; 8x128256 bfloat16 takes 7.8 by a cluster, 8.4 by those.
MULTIPROCESSORS_PER_HANDED_ROW = {2: 4, 4: 2}
MULTIPROCESSORS_PER_FEWEST_HANDED_ROWS = 8
MOST_BYTES_OF_FEWEST_HANDED_ROWS = {2: 256 << 10, 4: 0}
# As many blocks share a row as make so many on a multiprocessor, all of them at work at once.
CLUSTER_BLOCKS_PER_MULTIPROCESSOR = 8
# 16-bit rows of which a multiprocessor has room for more are for a block.
ROWS_HANDED_THAT_FIT = 2
# Few rows that are reduced: threads of a block, most blocks of a row, a pack for each thread at least; with more packs
# for each than REDUCED_PACKS, blocks of as many threads as a multiprocessor has. H200, November 2026, us, against the
# planner before, blocks of 256, two or four on a multiprocessor: logsumexp float32 1x524288 8.8 for 10.8, 1x1048576
# 10.0 for 13.5, 1x4194304 14.7 for 17.8, 1x16777216 29.8 for 35.8, 1x100000000 108 for 118, 8x1048576 18.9 for 23.3,
# 32x1048576 46.2 for 47.5; bfloat16 1x4194304 11.9 for 15.0; sum float32 1x4194304 12.8 for 13.3.
REDUCED_THREADS = 512
MOST_REDUCED_BLOCKS = 128
REDUCED_PACKS = 16
REDUCED_THREADS_PER_MULTIPROCESSOR = 1024
# A power of two of them, unless that leaves more of the multiprocessors idle: logsumexp float32 1x4194304 14.6 by 128
# blocks of 1024, 15.8 by 132, whose threads have as many packs, but not all of them.
REDUCED_SHARE = 7 / 8
# Dims that are shared have so many steps at least (modelled), and give each block so many.
SHARED_STEPS = 4096
FEWEST_STEPS = 256
# A gradient's tile that is read twice: bytes of an element of both arrays -> the least steps from which on it beats one
# that waits in shared memory, and the most threads along it. The second read is served by L2 while tiles are narrow, a
# cache line, and blocks small: 8 steps for each thread. Two for shared memory's one, dim 1 of 16x150x128x128 bfloat16
# 77 for 107, 32x256x56x56 56 for 85, 16x2000x1024 90 for 102, 4096x8x128 12.4 for 13.8; of float32 32x256x56x56 84 for
# 105, 32x512x2048 123 for 143, 64x1000x196 70 for 75, but 16x150x128x128 143 for 133.
GRADIENT_READ_TWICE = {4: (8, 32), 8: (256, 64)}
GRADIENT_READ_TWICE_ACROSS = 8
GRADIENT_READ_TWICE_STEPS = 8
# Steps of a thread of a gradient's tile that blocks share, at least. Slices of both arrays in shared memory do not pay:
# 2x128256x16 bfloat16, dim 1, 29.0 read twice by 66 blocks, 43.6 kept by 132; 65536x16 float32, dim 0, 16.1 and 16.3,
# one block for a tile 192. Of 16 tiles, 8192x512 takes 26.6 by 8 blocks each, 62 by one.
SHARED_GRADIENT_STEPS = 12
# Of tiles that several blocks share: blocks of SPLIT_THREADS on a multiprocessor. Their slices fill its shared memory:
# 4096x4096 float32, dim 0, 57.4 with 6 blocks, 61.5 with 8; 8192x8192 206 with 10, 238 with 16. Fewer tiles than that
# have slices of so many bytes, unless that makes more blocks than threads along a tile, each of which then asks for the
# states of several: 2x128256x16 24.2 with 64 blocks, 24.6 with 50, 30.5 with 128. One block for a tile takes 81 and
# 1226; of 16-bit elements 41 at 4096x4096, where sharing takes 40 to 43.
STRIDED_SPLIT_RESIDENT = 2
SLICE_BYTES = 64 << 10
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
# Threads across a tile of rows whose steps are neighbours in x and columns in the result, or the other way: each reads
# and writes a part of a sector. Where both lie along the rows, one. H200, November 2026, us: softmax of x.t(),
# 4096x4096 float32, 59.8 for 301 by 32 across, 32x512x768 with the last two dims swapped 45.0 for 201; of x[:, ::2],
# 8192x4096, 98.9 for 665, bfloat16 53.4 for 375; 64x256x56x56 channels last, dim 1, 120 for 227.
CROSSED_COLUMNS = 8
# Tiles that are read once and not written are held by several blocks, too, if these meet in memory, are few, or rows
# have no more steps than this, or it takes as many blocks of 16-bit elements: logsumexp float32 65536x64, dim 0, 16.0
# for 35.0 walked along, 64x1000x196, dim 1, 26.5 for 32.1, 8x1024x1024 18.9 for 24.7; bfloat16 65536x16 8.6 for 28.0,
# 10000x1000 23.8 for 33.6; but float32 10000x1000 39.0 for 29.2, 4096x4096 38.9 for 32.2.
MOST_UNWRITTEN_STEPS = 2048
MOST_UNWRITTEN_BLOCKS = 16
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
# The same where those would leave a quarter of the multiprocessors idle: 1024x64 float32, dim 0, 5.9 for 7.7; 4096x32
# 6.9 for 12.0; 8192x16 7.5 for 12.2; 16384x64 10.3 for 14.3.
FEW_SHARED_TILES = [
    *(SharedTile(16, threads, blocks, 16) for threads, blocks in ((128, 8), (256, 8), (256, 16), (512, 16))),
    _LONG,
    SharedTile(16, 512, 16, 64),
]

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
# bfloat16 43.5 for 46.3, 8x50176x3 11.8 for 14.4, 9.5 for 13.2, 128x8192x5 float32 28.4 for 47.9.
TINY_GRADIENT_TILES = [
    *(SharedTile(4, threads, 1, 64) for threads in (128, 256, 512)),
    *(SharedTile(4, threads, 16, 64) for threads in (256, 512)),
]
# 1024x64 float32, dim 0, 5.2 for 8.0, 4096x32 5.9 for 13.4, 100x1000 5.6 for 7.1, 300x40 5.0 for 7.6.
FEW_GRADIENT_TILES = [
    *(SharedTile(16, 128, 1, 32), SharedTile(16, 128, 8, 32), SharedTile(16, 256, 16, 24)),
    SharedTile(16, 512, 16, 64),
]
# Steps, at least: 65536x4x64 float32, dim 1, took 90.9 for 52.1, 4096x8x128 18.7 for 17.7.
FEWEST_GRADIENT_STEPS = 16


def ceil_power(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def floor_power(n: int) -> int:
    """The largest power of two that is not above n; 1 at least."""
    return 1 << max(1, n).bit_length() - 1


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def near_power(n: float) -> int:
    """The power of two that is nearest to n, as a factor; 1 at least."""
    return 1 << max(0, round(math.log2(max(1.0, n))))
