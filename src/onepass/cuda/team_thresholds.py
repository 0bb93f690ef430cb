"""Thresholds of the planner for rows that several blocks share, with what each rests on.

Times were measured on an H200, November 2026, in microseconds. "modelled": see thresholds.py.
"""

from __future__ import annotations

from typing import NamedTuple

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
# element: 4096x131072 bfloat16 874 with 1 of 512, 915 with 3 of 256. Of 4 bytes rows of fewer packs than the first of
# these wait in registers, if these hold them and they are fewer than so many times what comes at once, or of fewer
# packs than the last: float32 16x262144 22.5 for 23.8, 4x230000 9.5 for 9.7, but in shared memory 16x300000 25.3 for
# 26.3, 64x230000 59.5 for 64.2, 512x262144 431 for 492, of log_softmax 411 for 498, 512x300000 480 for 579.
GRADIENT_STAGED_BLOCKS = {2: (512, 1), 4: (512, 2), 8: (512, 1)}
GRADIENT_STAGED_PACKS = 1 << 17
GRADIENT_STAGED_WAVES = 2
FEWEST_GRADIENT_STAGED_PACKS = 1 << 15
# Rows of up to so many bytes, of both arrays, have a block alone where rows are many: 8192x32000 bfloat16 406 against
# 418, but 4096x50257 415 against 352.
LONE_GRADIENT_BYTES = 160 << 10
# Gradients of rows that the registers of a block do not hold are for clusters, up to so many bytes of both arrays for
# each block of the largest. Measured on an H200, November 2026, against one block or blocks that meet in memory, us:
# float32 4096x20000 232 for 272, 2048x32768 190 for 223, 128x131072 55.9 for 65.3, 8x32768 6.7 for 7.8, but 128x262144
# 131 by either; bfloat16 8192x24000 277 for 300, 4096x32000 189 for 201, 4096x50257 312 for 354, 4096x131072 745 for
# 831, 64x262144 33.6 for 42.4, but 64x524288 73 by neither.
GRADIENT_CLUSTER_BYTES = 64 << 10
# Up to so many where rows are more than one for so many multiprocessors, by bytes of the wider element, by blocks of
# CLUSTER_THREADS, or of LONG_CLUSTER_THREADS where slices of whole packs are longer than the third number, against
# blocks that meet in memory: float32 66x180000 49.5 to 44.2, 264x220000 217 to 176, 16x140001 16.5 to 14.8, but
# 8x140001 10.4 for 9.8, 264x262144 265 for 253; bfloat16 132x289112 75.7 to 67.0, 264x423196 222 to 198, 33x351144 30.1
# to 28.1, but 16x423196 22.1 for 20.0.
LONG_GRADIENT_CLUSTER_BYTES = 108 << 10  # of which a multiprocessor has room for two blocks
MULTIPROCESSORS_PER_LONG_GRADIENT = {2: 8, 4: 16}
LONG_GRADIENT_SLICE_BYTES = 80 << 10
# The blocks are as many as leave each so many bytes of both arrays. Of many rows of 16-bit elements 8 blocks and more
# have ROW_EACH_THREADS, unless half of them leave each at most twice the second number: bfloat16 4096x50256 290 by 8 of
# 128, by 4 of 256 312, 512x32768 30.3 for 31.1, 4096x131072 738 by either; 64x128256 20.5 with 256, 22.0 with 128. Of
# more than the third number, too, 256: 132x200000 48.3 to 44.5, 264x262144 107.5 to 104.5. Each cluster has one row:
# none of these is faster with rows handed out.
GRADIENT_CLUSTER_SLICE_BYTES = 32 << 10
LEAST_GRADIENT_SLICE_BYTES = 24 << 10
MOST_SMALL_GRADIENT_SLICE_BYTES = 40 << 10
# Off the boundaries of packs log_softmax's of float32 have 8 blocks where 16 had less each than that: 838x40001 107 for
# 119, but softmax's of 700x45001 103 for 98. Those of 16 bits have 2 up to so many bytes each: 3355x20001 106 for 117,
# log_softmax 106 for 123, 2684x25001 106 for 111, 300x20001 16.4 for 18.0, but 1677x40001 109 for 107.
LEAST_UNEVEN_SLICE_BYTES = 24 << 10
PAIRED_SLICE_BYTES = 50 << 10
# Where rows are at most one for so many multiprocessors, so many elements wait in the registers of each thread of 8
# blocks, of ROW_EACH_THREADS to CLUSTER_THREADS; H200, November 2026, us, against 8 elements a thread of up to 512:
# float32 33x28001 9.5 to 7.9, 66x17001 11.7 to 8.3, 33x32768 8.5 to 8.2, bfloat16 33x20001 7.7 to 6.1, 33x32768 7.4 to
# 7.0, 8x20000 4.8 by either.
MULTIPROCESSORS_PER_FEW_GRADIENTS = 2
FEW_GRADIENTS_ELEMENTS = 16
# Of rows that are longer, and no more than leave each of 16 blocks a multiprocessor, as many: up to so many threads, by
# bytes of the wider element: bfloat16 2x40000 5.0 to 4.6, 8x50257 6.4 to 5.6, 8x65536 6.0 by either, but 32x50256 8.8
# for 8.1, 8x100001, with 512, 8.4 for 7.5; float32 2x128256 6.4 to 6.1, 8x100001 9.1 to 8.3, but 32x100000 16.5 for
# 15.7.
FEWEST_GRADIENTS_THREADS = {2: 256, 4: 512}
# Rows from this length on are for clusters where they are few, one for so many multiprocessors at most: against one
# block of 512, float32 1x7168 4.9 to 4.5, 16x7168 5.3 to 5.0, bfloat16 8x7168 4.5 to 4.3, 16x8192 4.6 to 4.5, but
# float32 33x7168 5.8 for 5.7, 16x6144 4.8 for 4.7.
SHORTEST_FEW_GRADIENTS = 7168
MULTIPROCESSORS_PER_FEWEST_GRADIENTS = 8
# Longer ones than this are, if they are few or float32: against a block that holds them in shared memory, or 1024
# threads of one in registers, float32 1x12288 6.6 to 4.7, 33x9001 7.3 to 5.8, 132x9000 9.5 to 8.7, 400x14336 26.8 to
# 22.5, 800x9001 33.6 to 29.1, 4000x16000 194 to 181, 8000x12288 276 by either; bfloat16 8x15001 6.4 to 4.7, 66x12289
# 7.0 to 6.4.
CLUSTERED_GRADIENT_LENGTH = 8192
# Rows of 16-bit elements that are not few, longer than the first of these and shorter than the last, have two blocks,
# in shared memory: between the first and the second if there are PAIRED_ROWS_PER_MULTIPROCESSOR rows, past the second
# however many; off the boundaries of packs that many past the second, before it the last of these. A row of just the
# second fills the registers of one block; of just the last, pairs were not measured. H200, November 2026, us, bfloat16,
# against one block: 1400x4504 21.9 to 17.1, 8000x5000 94.8 to 66.8, 8000x6288 105.2 to 77.4, but 400x4104 8.8 to 9.2;
# 1x9000 4.9, 32x12000 5.5 and 100x16000 7.9, by all others that were tried more; 132x9000 7.9 to 7.4, 1400x10000 34.5
# to 27.2, 8000x9000 147 to 112, 8000x12000 160.7 to 139.7, 1400x14000 42.0 to 35.0; off the boundaries of packs
# 8000x9001 129 to 116, 1400x15001 42.8 to 39.8, but 200x12289 9.9 for 10.8; 13419x5001 126.7 to 119.4, its log_softmax
# 129 to 111, 10924x6143 116 to 109, but 2000x5001 25.8 for 25.0, 1056x8191 21.2 for 19.9, and 4000x4097, whose packs
# one block of 512 has, 37.7 for 29.7.
PAIRED_GRADIENT_LENGTHS = (4096, 8192, 16384)
PAIRED_ROWS_PER_MULTIPROCESSOR = 8
UNEVEN_PAIRED_ROWS_PER_MULTIPROCESSOR = 32
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
# Rows of no more elements are for one block, but of the longest float32 the most, so many for each multiprocessor, by
# two blocks of CLUSTER_THREADS: 4096x8192 70.1 for 69.9, 16384x8192 262 for 267, 49152x8192 772 for 789.
BLOCK_LENGTH = 8192
LONGEST_BLOCK_LENGTH = 7168
MOST_ROWS_PER_MULTIPROCESSOR = 96
# And but for few, one for so many multiprocessors at most, of more elements than that, by bytes of an element, which 8
# blocks have: float32 1x5120 5.1 to 4.6, 33x6144 5.6 to 5.2, 8x8192 5.5 to 5.1, log_softmax 8x7001 5.7 to 4.8, 33x8191
# 6.1 to 5.3, 1x4097 4.6 to 4.5, but 66x5001 5.7 for 5.6; bfloat16 1x7168 4.8 to 4.4, 33x8191 5.6 by either, log_softmax
# 1x8191 4.8 to 4.4, but 33x6144 4.8 by either.
MULTIPROCESSORS_PER_SHORT_ROW_EACH = 4
LONGEST_LONE_ROW = {2: 6144, 4: 4096}
# Of more elements than a cluster's registers hold, those of 16 bits are for others where rows are so few: one for so
# many multiprocessors at most.
MULTIPROCESSORS_PER_FEWEST_ROWS_EACH = 8
# Clusters are made larger until a multiprocessor has so many blocks, or (beyond what is portable) that, as long as
# each thread has so many packs: 64x16384 bfloat16 6.3 by 8 blocks, 6.5 by 4, 256x16384 9.1 by 2 and by 4; 8x32768
# float32 6.1 by 16, 6.4 by 8; 8x8192 5.1 by 8, 5.3 by 4.
FEW_BLOCKS_PER_MULTIPROCESSOR = (4, 1)
SPREAD_PACKS = (2, 4)
PORTABLE_CLUSTER = 8
LARGE_CLUSTER = 16
# Rows of float32 are for 16 blocks only if these have so many elements, or CLUSTER_BLOCKS_PER_MULTIPROCESSOR or fewer
# come together: 4096x57344 459 for 467, but 4096x48000 413 for 404, 4096x50257 435 for 425; 1024x50257 116 for 120.
# Else 8 blocks have them in shared memory, all asked for at once: 4096x50256 402 for 413 handed out, 4096x45000 360 for
# 368, 1024x50256 105 for 111, 300x43000 31.6 for 33.9, its log_softmax 32.0 for 35.2, but 64x43000 11.9 for 11.1. Off
# the boundaries of packs 4096x50257 394 for 411 handed out, its log_softmax 394 for 415, 200x45001 23.6 for 24.5; where
# input and result start differently more than so many rows for a multiprocessor are handed out.
FEW_CLUSTERED_PER_MULTIPROCESSOR = 8
LARGE_CLUSTER_SLICE = 3328
# Beside an edge more elements a thread than that wait in shared memory: 1200x17001 44.4 for 46.2, 1200x75001 178 for
# 199, its log_softmax 189 for 198, 60x75001 14.6 for 15.8; but 200x40001 21.5 for 21.2.
MOST_HELD_BESIDE_EDGE = 32
# Slices of more 16-bit elements a thread wait in shared memory, where a row has more than 4 blocks and rows are many:
# bfloat16 4096x50256 207 for 217 (in registers 214), 4096x65536 265 for 273 (267), 4096x128256 512 for 526 (573),
# 512x128256 70.5 for 73.1; 4096x48000 193 in registers, 199 not. Few rows of 8 blocks have more in registers: 128x50256
# 12.2, in shared memory 12.6, but 128x65536 14.4 and 13.9.
SMALL_CLUSTER = 4
ROW_EACH_HALVES = 48
FEW_ROWS_EACH_HALVES = 56
# Of log_softmax, which computes exponentials twice, in 2, 4 or 8 blocks, of so many elements at least and at most, from
# the length on that 2 blocks do not hold in registers, where more than CLUSTER_BLOCKS_PER_MULTIPROCESSOR come together:
# 4096x18000 77.6 for 83.5, 4096x25000 108 for 117, 600x36000 27.2 for 29.8, 4096x36000 146 for 164 by one block,
# 600x50000 35.8 for 40.2, 300x52000 22.3 for 24.4, 132x75000 16.9 for 18.3; but 270x25000 13.7 for 12.7, 133x30000 9.6
# for 9.3.
LOG_SLICE_HALVES = (5120, 12800)
# Many such rows off the boundaries of packs are for 4 blocks, of up to so many bytes each; longer ones wait in 8, asked
# for at once: bfloat16 4096x40001 169.5 for 203 by one block each, 4096x50257 212 for 224, 4096x56001 234 for 248,
# 1024x50257 60.1 for 63.1; 4096x128257 514 for 534 by 16 blocks. Those of 4 wait in two or three parts, a row each:
# 4096x50257 205 for 211 handed out, its log_softmax 202 for 210, 1200x40001 51.9 for 54.6, log_softmax of 600x33001
# 26.7 for 29.9 in registers. Softmax's in 16 blocks do up to the last of these elements each: 1200x151643 182 for 205
# handed out, 200x202049 46.7 for 50.3, but 600x230001 148 for 147, 40x140001 13.1 for 12.6, log_softmax of 600x165001
# 106 for 105.
OFF_BOUNDARIES_SLICE_BYTES = 28 << 10
OFF_BOUNDARIES_LONG_SLICE_BYTES = 32 << 10
OFF_BOUNDARIES_SLICE_HALVES = 13312
# Packs of a thread, at most, of 16-bit rows that begin elsewhere than their results do: the smallest clusters that have
# them in shared memory, all asked for at once. Times of a copy's: 13420x10001 bfloat16 1.07 by 2 blocks, in registers
# 1.11, its log_softmax 1.20 and 1.31; 6710x20001 1.04 and, by 4, 1.16; 2670x50257 1.23 by 8 blocks, handed out 1.35, by
# 4 of 13 packs 1.20, but 11 packs spill, and 13 of float16. Those of float32 are in registers of 16 blocks also where
# rows are many: 1335x50257 1.09, handed out 1.63.
MOST_APART_PACKS = 10
# Slices of up to so many elements a thread are for 8 blocks, others for 16: 4096x80000 328 (by 16 blocks 377),
# 2048x100000 217 (221), but 4096x128256 522 (512). All asked for at once, part by part 132x75000 18.3 for 16.8,
# 300x110000 40.3 for 39.0, 4096x75000 312 for 310.
PORTABLE_HALVES = 112
# Longest rows: of 16-bit elements in shared memory, 512x262144 139 for 144, 4096x262144 1066 for 1124, 2048x200000 442
# for 447; of float32 in registers by blocks of CLUSTER_THREADS, 1x128256 7.5 for 8.0, 16x128256 11.5
# for 11.9, 32x128256 15.1 for 16.0, 128x131072 40.2 for 41.5, 512x128256 135.7 for 136.4 handed out.
# The fewest, which leave each of 16 blocks a multiprocessor, are in registers as long as those of CLUSTER_THREADS hold
# them: bfloat16 1x140000 6.4 to 5.6, 8x180001 8.1 to 7.5, 3x262144 7.6 to 7.1, but 16x200000 11.5 for 9.6; float32
# 3x140001 8.0 to 7.2.
LONGEST_ROW_EACH = {2: 1 << 18, 4: 1 << 17}
# Those of float32 that are whole packs are in shared memory where more than CLUSTER_BLOCKS_PER_MULTIPROCESSOR come
# together: by blocks of ROW_EACH_THREADS whose slices are no longer than the first of these, 600x84000 102.7 for 118.1,
# its log_softmax 104.2 for 127.7, 2400x100000 467 for 519, 1200x110000 261 for 275, but 128x131072 40.6 for 39.5,
# 64x100001 22.3 for 20.0; and past LONGEST_ROW_EACH by blocks of CLUSTER_THREADS, up to the second, against rows handed
# out: 300x160000 100 for 105, log_softmax 384 for 408 of 1200x160000, 502 for 536 of 1200x200000, 1200x212992 512 for
# 527, but 1200x240000 588 for 572, 64x140000 25.3 for 24.3. Off the boundaries of packs also those between, and fewer:
# 1200x90001 212 for 249, log_softmax 212 for 261, 60x90001 16.8 for 18.2, 1200x128257 303 for 311, 1200x151643 371 for
# 447, 60x151643 26.0 for 29.0, but 20x90001 10.6 for 9.4, 45x110001 17.2 for 16.8, 60x125001 22.5 for 22.0.
SMALL_BLOCKS_SLICE = 7168
LARGE_BLOCKS_SLICE = 13312

# ---- clusters for few rows that are read once; H200, November 2026, us ----


class ReducedCluster(NamedTuple):
    """What LARGE_CLUSTER blocks have, each of so many threads."""

    multiprocessors: int  # for each row, at least
    packs: int  # of the row, at least
    threads: int


# The first that serves; none of them, 8 blocks of 256, or of 128 where these would be two or more for a multiprocessor,
# three or more where rows are summed and have LONG_REDUCED_PACKS. sum float32 4x150000 6.7 for 8.6 by blocks that meet
# in memory, 16x262144 11.1 for 12.4, 33x100000 9.8 for 10.1 by 8, 1x32768 4.8 for 5.0 by 256 threads, 1x65536 5.2 by
# 256, 5.4 by 512; bfloat16 1x524288 6.5 for 8.0, 1x262144 5.6 for 5.9; amax float32 16x100000 7.5 for 8.0; logsumexp
# float32 1x100000 6.2 for 7.2, 33x100000 10.8 for 11.8, bfloat16 4x524288 9.3 for 10.2.
LARGE_REDUCED_CLUSTERS = (
    ReducedCluster(16, packs=16385, threads=512),  # not of logsumexp: 1x100000 float32 6.9, by 256 6.2
    ReducedCluster(16, packs=8193, threads=256),
    ReducedCluster(8, packs=16385, threads=256),
    ReducedCluster(4, packs=8192, threads=128),
)
MULTIPROCESSORS_PER_SPREAD_ROW = 4  # rows of which each has fewer are crowded
# amax float32 45x228837 18.8 for 21.1 by 128 threads, bfloat16 45x504004 20.2 for 23.4, but 66x150000 13.9 for 12.1.
LONG_REDUCED_PACKS = 8192
# Longest rows: sum float32 4x524288 9.2 for 10.3, but 1x1048576 10.9 for 9.0; logsumexp bfloat16 16x524288 12.8 for
# 13.6, but 1x524288 8.6 for 8.4 and 1x1048576 11.6 for 9.0, float32 1x262144 8.5 for 7.9. Of rows that crowd them half
# as much: logsumexp bfloat16 66x524288 30.8 for 29.4.
MOST_CLUSTER_REDUCED_BYTES = 2 << 20  # a quarter of it where clusters have 8 blocks (modelled)
MOST_CLUSTER_LOGSUMEXP_BYTES = {2: 1 << 20, 4: 768 << 10}
# Sums and extremes of 512 threads with four packs each, the second of these, come in one go, and so do, nearly, those a
# little longer: 33x8192 float32 5.7 by 8 blocks, 5.2 by one. Those between the first and the second come in several,
# and are for 8 blocks of 128 where rows are few, else for 2 of 256 if that leaves each thread MOST_UNEVEN_PACKS, else
# 4; those from the third to the last for 4 of 256 where rows are not few: float32 1x6144 5.3 to 4.5, 33x6144 5.8 to
# 5.1, 66x12288 6.9 to 6.3, 132x6144 6.8 to 6.4; bfloat16 33x12288 5.9 to 5.2, 132x24576 7.9 to 7.6, 45x13560 5.3 by 4,
# 5.9 by 2. Few rows of the second, and others of the last, are the least for which logsumexp gains.
UNEVEN_REDUCED_PACKS = (1024, 2048, 2560, 4096)
MOST_UNEVEN_PACKS = 3

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
# Of gradients, elements of each array: float32 512x600000 972 for 1026, 32x1048576 123 for 132, 256x1048576 882 for
# 1024, 128x2097152 959 for 1178, 64x4194304 1041 for 1278 read twice, 1x4194304 22.0 for 25.7; bfloat16 128x4194304
# 1030 for 1223, its log_softmax 982 for 1038. Of 4 bytes 2 blocks of 512 threads are as fast, of 2 bytes 4 of 256 take
# 1.3 to 1.5 times as long.
GRADIENT_CLAIMED_SLICES = {
    2: ClaimedSlices(512, 8, 56, 2),
    4: ClaimedSlices(256, 16, 24, 4),
    8: ClaimedSlices(256, 2, 8, 2),
}
OTHER_GRADIENT_CLAIMED_REGISTERS = {2: 48, 4: 32, 8: 80}  # as OTHER_CLAIMED_REGISTERS
# Off the boundaries of packs all that would be shared out in equal slices are claimed: float32 512x225001 354 for 409,
# 16x225001 19.2 for 21.1, 512x350001 560 for 629, 128x1000003 423 for 532, bfloat16 128x450001 108 for 123, 128x800001
# 179 for 205, 16x1500001 55.7 for 58.2, log_softmax of 128x1500001 332 for 389. Whole rows from these lengths on, by
# bytes of an element, but log_softmax of 2 bytes: 16x8388608 281 for 264; and those of 4 bytes up to the last:
# 512x262144 409 for 433, 16x262144 20.7 for 22.6, 64x230000 55.0 for 58.3, but 16x400000 31.3 for 28.9, log_softmax of
# 512x400000 643 for 628. Slices are as many as so much of those at work at once: 4x1048576 21.9 for 24.7, 8x524288 21.7
# for 25.1, but 4x524288 14.1 for 13.6, 1x2097152 14.1 for 13.7. Of fewer bytes of both arrays than the first rows are
# for clusters.
FEWEST_CLAIMED_GRADIENT_BYTES = 16 * LONG_GRADIENT_CLUSTER_BYTES
CLAIMED_GRADIENT_LENGTH = {2: 1 << 22, 4: 500_000}
LONGEST_SHORT_CLAIMED_GRADIENT = 1 << 18
CLAIMED_GRADIENT_WAVES = 0.65
# So few rows at once, or fewer, have slices for all blocks at work, shorter than they might be: 32x4194304 520 by 528
# slices, by 208 longer ones of blocks twice as large 606, 32x2097153 249 and 255.
CLAIMED_GRADIENTS_THAT_FILL = 2
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
