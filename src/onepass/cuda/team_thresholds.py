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
# Gradients of 16-bit elements whose rows are longer than the first of these have two blocks, in shared memory: between
# the first and the second if there are PAIRED_ROWS_PER_MULTIPROCESSOR rows, past the second however many. A row of just
# the second fills the registers of one block. H200, November 2026, us, bfloat16, against one block: 1400x4504 21.9 to
# 17.1, 8000x5000 94.8 to 66.8, 8000x6288 105.2 to 77.4, but 400x4104 8.8 to 9.2; 1x9000 4.9, 32x12000 5.5 and 100x16000
# 7.9, by all others more; 132x9000 7.9 to 7.4, 1400x10000 34.5 to 27.2, 8000x9000 147 to 112, 8000x12000 160.7 to
# 139.7, 1400x14000 42.0 to 35.0; off the boundaries of packs 8000x5001 98.2 to 84, by one block of 1024 80.5.
PAIRED_GRADIENT_LENGTHS = (4096, 8192)
PAIRED_ROWS_PER_MULTIPROCESSOR = 8
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
# Rows of float32 are for 16 blocks only if these have so many elements, or CLUSTER_BLOCKS_PER_MULTIPROCESSOR or fewer
# come together: 4096x57344 459 for 467, but 4096x48000 413 for 404, 4096x50257 435 for 425; 1024x50257 116 for 120.
# Else 8 blocks have them in shared memory, all asked for at once: 4096x50256 402 for 413 handed out, 4096x45000 360 for
# 368, 1024x50256 105 for 111, 300x43000 31.6 for 33.9, its log_softmax 32.0 for 35.2, but 64x43000 11.9 for 11.1. Off
# the boundaries of packs that many, more than so many for a multiprocessor, are handed out, 4096x50257 425 for 438.
FEW_CLUSTERED_PER_MULTIPROCESSOR = 8
LARGE_CLUSTER_SLICE = 3328
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
# Many such rows off the boundaries of packs are handed out to 4 blocks, of up to so many bytes each; longer ones wait
# in 8, asked for at once: bfloat16 4096x40001 169.5 for 203 by one block each, 4096x50257 212 for 224, 4096x56001 234
# for 248, 1024x50257 60.1 for 63.1; 4096x128257 514 for 534 by 16 blocks.
OFF_BOUNDARIES_SLICE_BYTES = 28 << 10
OFF_BOUNDARIES_LONG_SLICE_BYTES = 32 << 10
# Slices of up to so many elements a thread are for 8 blocks, others for 16: 4096x80000 328 (by 16 blocks 377),
# 2048x100000 217 (221), but 4096x128256 522 (512). All asked for at once, part by part 132x75000 18.3 for 16.8,
# 300x110000 40.3 for 39.0, 4096x75000 312 for 310.
PORTABLE_HALVES = 112
# Longest rows: of 16-bit elements in shared memory, 512x262144 139 for 144, 4096x262144 1066 for 1124, 2048x200000 442
# for 447; of float32 in registers by blocks of CLUSTER_THREADS, 1x128256 7.5 for 8.0, 16x128256 11.5
# for 11.9, 32x128256 15.1 for 16.0, 128x131072 40.2 for 41.5, 512x128256 135.7 for 136.4 handed out.
LONGEST_ROW_EACH = {2: 1 << 18, 4: 1 << 17}
# Those of float32 that are whole packs are in shared memory where more than CLUSTER_BLOCKS_PER_MULTIPROCESSOR come
# together: by blocks of ROW_EACH_THREADS whose slices are no longer than the first of these, 600x84000 102.7 for 118.1,
# its log_softmax 104.2 for 127.7, 2400x100000 467 for 519, 1200x110000 261 for 275, but 128x131072 40.6 for 39.5,
# 64x100001 22.3 for 20.0; and past LONGEST_ROW_EACH by blocks of CLUSTER_THREADS, up to the second, against rows handed
# out: 300x160000 100 for 105, log_softmax 384 for 408 of 1200x160000, 502 for 536 of 1200x200000, but 1200x240000 588
# for 572, 64x140000 25.3 for 24.3. Off the boundaries of packs, where 1200x90001 takes 218 for 251, a kernel spills.
SMALL_BLOCKS_SLICE = 7168
LARGE_BLOCKS_SLICE = 12800

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
