"""Thresholds of the planner for GPUs where a row is for lanes of a warp, a warp or a block, with what each rests on.

Those of rows that several blocks share are in team_thresholds.py, those of tiles in tile_thresholds.py.

"modelled": from registers, occupancy and Little's law, not measured one against the other yet.
"""

from __future__ import annotations

# Bytes of one access. 256-bit accesses of sm_100 are not used yet.
ACCESS_BYTES = 16
# Elements that a thread may hold of a row, in registers of 32 bits: a lane of a group ... (modelled: 32 values and what
# exponentials need leave 48 warps on a multiprocessor)
WARP_REGISTERS = 32
# ... or a thread of a block; the larger number where 1024 threads are not enough otherwise, and where nothing is
# written: logsumexp of 32768x4096 bfloat16 measured 1.09x on an H100.
BLOCK_REGISTERS = 16
MOST_BLOCK_REGISTERS = 32
# Elements of a lane where a warp has a longer row, of many rows (WARP_SMEM_ROWS_PER_MULTIPROCESSOR), by operation and
# bytes of one: H200, November 2026, us, against blocks of 64 and 128, 26000 rows of 1153, softmax bfloat16 15.7 for
# 17.0, log_softmax 16.5 for 18.8, float32 29.0 for 33.8, logsumexp 11.9 for 13.4; 100000 rows and more, softmax of 1032
# and 1281 0.90 and 0.94 of the time, log_softmax of 1409 0.93, logsumexp of 1153, 1281 and 1537 0.77, 0.78 and 0.88,
# float32 of 1281 0.95; of one pack more than that 1.0 and more.
WIDE_WARP_REGISTERS = {
    ("softmax", 2): 40,
    ("log_softmax", 2): 48,
    ("log_softmax", 4): 36,
    ("logsumexp", 2): 48,
    ("logsumexp", 4): 44,
}
# Of more rows than FEW_ROWS_PER_MULTIPROCESSOR logsumexp and log_softmax of 16 bits have no more warps than hold a
# row with MOST_BLOCK_REGISTERS. H200, November 2026, bfloat16, times over a power of two: 4000, 16000 and 58000 rows of
# 2305, log_softmax 0.89, 0.86 and 0.87, logsumexp 0.93, 0.82 and 0.77; 4000 and 16000 of 5001, log_softmax 0.91 and
# 0.87, of 7001 0.98 and 0.97.
# Elements of a thread where half as many threads have a row, of more rows than so many for a multiprocessor, by
# operation and bytes of one: of the larger block a thread in two or three would have the last pack. H200, November
# 2026, us: softmax bfloat16 8000x2056 24.3 to 21.1, 8000x4104 44.9 to 36.8, 1400x5000 12.8 to 12.0, 30000x5001 204 to
# 146, but 8000x3504, of 32 elements, 31.7 to 32.0; log_softmax float32 8000x2056 40.7 to 36.3, 8000x4104 79.9 to 67.7,
# 1400x5001 22.8 to 18.7, 8000x6288 109.5 to 100.5, 270x2056 6.1 to 6.0, 528x5001 11.6 to 10.0; softmax float32
# 1400x3000 13.1 to 12.5, 1400x5001 20.1 to 19.1, 30000x5001 292 by either; of rows that are whole thirds, 3072 and 6144
# float32, 0.96 to 1.02 of the time, one of sixteen 1.07. Few rows lose by it up to 8%; blocks of 64 threads gain
# nothing.
HELD_BY_HALF = {("softmax", 2): (24, 4), ("softmax", 4): (24, 4), ("log_softmax", 4): (28, 2)}
# And of so many threads, up to full: 800x8000 18.8 to 17.5, 1056x8192 22.6 to 21.4, 4000x8192 68.4 to 67.7, but 128 x
# 8192 7.3 to 7.5.
HELD_BY_HALF_OF = {("log_softmax", 4, 512): 32}
# Rows of float32 that have a multiprocessor each are for so many threads, unless each has no more packs than that: what
# one thread does in turn is what they wait for. H200, November 2026, us, by 256 threads against 128: 1x2048 softmax
# 4.42 to 4.06, log_softmax 4.59 to 4.19, 128x2048 5.06 to 4.80, 5.07 to 4.91, logsumexp, against 64, 5.47 to 5.12; of
# 1100 to 1500 columns 0.96 to 1.04 of the time, and of twice as many rows as there are multiprocessors, too.
LONE_ROW_THREADS = 256
LONE_ROW_PACKS = 3
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
# registers in all and leaves a multiprocessor 64 KB of loads in flight (modelled). Of 16 bits half as many, where not
# all threads would have all of them: H200, November 2026, us, bfloat16 400x1304 5.7 to 5.1, 8000x1304 24.3 to 21.6,
# 1400x2504 12.7 to 10.9, 8000x3000 46.5 to 41.5, 1400x5001 23.0 to 20.0, 400x5568 10.3 to 9.3, 8000x7001 0.9 of the
# time, but 8000x1032 1.02 to 1.05.
GRADIENT_BLOCK_REGISTERS = 32
GRADIENT_BLOCK_REGISTERS_OF_DOUBLES = 24  # with 32, 1024 threads spill on sm_100
# Of 16 bits a thread has one pack of each where a power of two of threads would have some to spare: as many warps as
# those are, up to so many, and where they are more than the first and no more than the second number; or half of that
# with two packs each, of softmax and of whole packs, of more rows than FEWER_ROWS_PER_MULTIPROCESSOR. H200, November
# 2026, bfloat16, softmax, log_softmax, 256 MiB, times over a power of two's: x 1153 0.87, 0.88, x 1409 0.93, 0.93, x
# 2305 0.86, 0.87, x 3001 0.93, 0.93, but x 3585 1.01, 1.02; 1000 rows of 1032 to 3001 0.89 to 1.05, 400 0.92 to 1.04;
# 4000x4105 0.74 with two, 0.83 with one, x 5001 0.81, 0.86; over clusters of two blocks, x 4105 and 5001 0.81 and 0.86
# with two, 0.97 and 0.99 with one, whole x 4200 and 5120 0.93 to 1.00 with two.
MOST_GRADIENT_WARPS = 12
LONG_GRADIENT_WARPS = (16, 20)
# Of 16 bits and many rows (WARP_SMEM_ROWS_PER_MULTIPROCESSOR) 16 lanes of a warp for a row of up to so many packs of
# each, where it has no whole packs, and else where they have less left over, up to six packs of a lane: the fewest
# lanes, the most packs, and by how many packs there must be less room. H200, November 2026, bfloat16, softmax, 256 MiB
# and 26000 rows, times over 32 lanes': x 145 0.86 and 0.93, x 197 0.91 and 0.98, x 257 0.99 and 1.02, x 321 0.91 and
# 0.95, but x 417 to 513 1.00 to 1.02; x 264 0.92; over a block's, x 545 0.91 and 0.94, x 641 0.89 and 0.94, x 520 0.92.
MOST_PEELED_GRADIENT_PACKS = 48
FULL_GRADIENT_LANES = (16, 6, 1)
# A pack each for up to so many threads, of log_softmax float32, which waits for its exponentials, of no more rows than
# that for a multiprocessor: H200, November 2026, us, against 128 or 256 threads, 1x1100 4.3 to 3.7, 64x1500 4.9 to 4.6,
# 132x2048 5.2 to 4.9, 264x1500 5.8 to 5.5, 64x4096 5.4 to 5.0, but 264x4096 7.6 to 7.5; softmax 0.96 to 1.03.
LONE_GRADIENT_THREADS = 512
LONE_GRADIENT_ROWS_PER_MULTIPROCESSOR = 2
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
# elements and not for telling each other. Elements that a lane takes then, of rows of whole packs, and bytes that a
# group of lanes reads side by side, at least. H200, November 2026, us, against as many lanes as a row has packs:
# 104857x100 float32, log_softmax 25.8 for 33.8, logsumexp 20.2 for 32.0, sum 20.8 for 25.8, softmax 25.3 for 27.9;
# 81920x128 bfloat16, logsumexp 11.2 for 13.9; 16896x100 float32, log_softmax 7.9 for 9.0, 8000x100 the same.
MANY_SHORT_ROWS_PER_MULTIPROCESSOR = 120
LANE_ELEMENTS = {("softmax", 2): 8, ("softmax", 4): 8, ("softmax", 8): 8, ("plain", 4): 8}
OTHER_LANE_ELEMENTS = 16
LANE_GROUP_BYTES = {2: 32, 4: 64, 8: 64}
# Half of those lanes, and half again, of full accesses, where they have room for fewer packs, or no more: by
# operation and bytes of an element, the fewest lanes, the most packs of one, and by how many packs there must be less
# room. H200, November 2026, us, 120000 rows of bfloat16: log_softmax x 136, 8 lanes of 3 packs for 16 of 2, 28.8 to
# 22.1, x 264, 8 of 5 for 32 of 2, 52.5 to 36.0, x 360, 16 of 3, 55.4 to 45.9, x 520, 16 of 5 for 32 of 3, 71.7 to
# 64.8; logsumexp 23.8 to 18.4, 42.9 to 26.4, 44.8 to 33.0 and 54.9 to 45.0, and with as much room, x 200, 8 of 4,
# 25.4 to 22.3, x 456, 16 of 4, 45.5 to 39.2; softmax float32 x 132 41.4 to 36.0, x 188 47.8 to 48.8; with 6 packs of
# a lane and more, log_softmax x 664 to x 1000 takes 1.01 to 1.1 of the time. logsumexp's gradient x 136 26.8 to 22.3,
# float32 x 68 29.6 to 23.4. Once more with shorter kernels, every number of lanes of 460 shapes: softmax bfloat16
# 131072x80, 4 of 3 for 16 of one, 17.2 to 16.0, 49152x96 9.8 to 9.3, 131072x160, 8 of 3 for 16 of 2, 27.1 to 25.2,
# 131072x32 8.6 to 8.2, but 16384x80 6.1 to 6.4; log_softmax 131072x72 18.3 to 15.5, of 136 to 160 by 4 of 5 for 8 of
# 3 0.98 to 1.04; logsumexp 131072x88 15.6 to 13.1, of 104 to 160 by 4 0.92 to 0.99 of 131072 rows, 1.0 to 1.04 of
# 16384 and 49152; sum 80000x80 9.9 to 8.9, float32, 8 elements of a lane for 16, 16384x240 10.8 to 9.3, 131072x112
# 26.1 to 23.2, but 131072x200 36.2 to 37.4.
FULL_LANES = {
    ("softmax", 2): (2, 3, 0),
    ("softmax", 4): (16, 4, 0),
    ("log_softmax", 2): (4, 5, 1),
    ("log_softmax", 4): (16, 5, 1),
    ("logsumexp", 2): (4, 5, 0),
    ("logsumexp", 4): (16, 5, 0),
    ("plain", 2): (2, 3, 0),
    ("plain", 4): (8, 3, 0),
    ("logsumexp_backward", 2): (16, 2, 0),
    ("logsumexp_backward", 4): (16, 2, 0),
}
# Of so many rows for a multiprocessor those lanes, a half or a quarter of them that have room for the fewest packs: by
# operation and bytes of an element, the fewest lanes, the most packs of one, and whose packs are nearest to how many
# where rooms are equal. H200, November 2026, 256 MiB, times over FULL_LANES' alone: logsumexp bfloat16 x 24, 40 and 200
# 0.68, 0.54 and 0.88, float32 x 12, 20, 72 and 144 0.45, 0.56, 0.77 and 0.75, but x 56 1.03; sum bfloat16 x 200, 400
# and 520 0.82, 0.77 and 0.87, float32 x 12, 36 and 260 0.67, 0.78 and 0.94; log_softmax bfloat16 x 48, 200 and 400
# 0.89, 0.91 and 0.89, float32 x 12 0.77; softmax float32 x 36 and 72 0.87. The worst: logsumexp bfloat16 x 832
# 1.08. 200000 rows: logsumexp float32 x 140, 200 and 448 0.81, 0.89 and 0.88, but where fewer lanes are left for a
# multiprocessor than this, five packs each and more lose: float32 x 36 and 56 1.11 and 1.17, sum bfloat16 x 80 1.11.
VERY_MANY_ROWS_PER_MULTIPROCESSOR = 1500
DEEP_LANES_PER_MULTIPROCESSOR = 8000
MOST_PACKS_OF_FEW_LANES = 4
FULLER_LANES = {
    ("softmax", 4): (4, 3, 2),
    ("log_softmax", 2): (2, 4, 4),
    ("log_softmax", 4): (2, 3, 2),
    ("logsumexp", 2): (1, 7, 2),
    ("logsumexp", 4): (1, 7, 2),
    ("plain", 2): (1, 7, 2),
    ("plain", 4): (2, 5, 2),
}
# Of fewer, but so many for a multiprocessor, of up to NARROW_LENGTH elements, each of so many packs is for a lane of
# its own; of more, a lane takes up to so many, by so many lanes at least: the fewer threads there are to start, the
# sooner all are done. Up to so many elements shared memory gains nothing then. Of 420 random shapes, five operations,
# three types, with these lanes 1.08 times as fast as with one for each pack, none less than 0.92: sum 10306x21 float16
# 4.2 us for 5.8, 10484x68 bfloat16 4.9 for 6.3 (H200, November 2026).
SEVERAL_ROWS_PER_MULTIPROCESSOR = 30
MOST_PACKS_OF_A_LANE_EACH = 16
PACKS_OF_SEVERAL = 5
FEWEST_LANES_OF_SEVERAL = 8
SEVERAL_PACKS_LENGTH = 40
# Longer rows are many from here on (some of those shapes, none less than 0.97): log_softmax 10500x160 float32 7.7 us
# for 8.6, bfloat16 6.8 for 7.5.
MANY_LONGER_ROWS_PER_MULTIPROCESSOR = 75
# The same of rows whose heads and tails go by element: whole packs of a lane, by bytes of an element, and lanes at
# least where each is not to have an edge of its own. H200, November 2026, us, against as many lanes as a row has packs:
# log_softmax 65536x197 bfloat16 19.4 for 27.4, float32 31.0 for 34.6; 43691x301 20.1 for 25.5, 30.7 for 32.3;
# logsumexp 65536x197 float32 22.6 for 31.6; sum 16384x197 bfloat16 7.7 for 9.9. Softmax bfloat16, 256 MiB, of 145, 197,
# 289 and 353 elements 0.69, 0.83, 0.88 and 0.92 of the time, 26000 rows of 145, 185, 290 and 355 0.88, 0.97, 0.91 and
# 0.99, but of 225 and 466, with four packs, 1.06 and 1.08; float32 of 177 0.89.
PEELED_LANE_PACKS = {
    ("softmax", 2): 3,
    ("softmax", 4): 4,
    ("log_softmax", 2): 4,
    ("log_softmax", 4): 7,
    ("logsumexp", 2): 4,
    ("logsumexp", 4): 7,
    ("plain", 2): 4,
    ("plain", 4): 8,
}
# And half of those lanes, as in FULL_LANES. 256 MiB: log_softmax bfloat16 of 545 0.86 of the time, of 641 0.94,
# logsumexp 0.75 and 0.78, float32 of 225, 289 and 449 0.84, 0.91 and 0.84; sum bfloat16 of 513, 833 and 1281 0.79, 0.79
# and 0.92, float32 of 545 0.90. 26000 rows: 545 and 641, log_softmax 0.91 and 0.98, logsumexp 0.86 and 0.88, sum 0.96
# and 1.01.
PEELED_FULL_LANES = {
    ("log_softmax", 2): (16, 5, 1),
    ("logsumexp", 2): (16, 5, 1),
    ("logsumexp", 4): (8, 9, 1),
    ("plain", 2): (16, 12, 0),
    ("plain", 4): (16, 10, 0),
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
# Of fewer, that are not tiny, several lanes each, so that so many lanes of a multiprocessor have a row: of 14000 and
# 24000 rows of 9 to 117 elements, float32 and bfloat16, softmax 1.11 times as fast as by warps, log_softmax 1.15,
# logsumexp 1.21, sum 1.14, and none less than 0.96; of 8000 rows, by 8 lanes, 1.04, but float32 of 117 elements 0.92
# (H200, November 2026).
SEVERAL_SHORT_ROWS_PER_MULTIPROCESSOR = 80
SHORT_LANES_PER_MULTIPROCESSOR = 512
# Of so few elements a lane of a warp takes a row as it lies, up to two million of them: 48000 to 800000 rows of 2, 3
# and 5 elements, against shared memory, softmax 1.13 times as fast, log_softmax 1.14, logsumexp and sum 1.11, and none
# less than 0.95; 521582x2 bfloat16 log_softmax 7.0 us for 9.5, 1284917x2 float32 11.5 for 13.8, sum of 1300000x5 13.9
# for 15.9; three million rows 0.9 to 1.2. Of rows of 6 to 8 nothing was measured.
TINY_ROW = 5
LONG_TINY_ROW = 8
MANY_TINY_ROWS_PER_MULTIPROCESSOR = 15000
MOST_WARP_SMEM = {
    "softmax": {2: (96, 192, 320), 4: (144, 160), 8: (128,)},
    "log_softmax": {2: (96, 128, 320), 4: (144, 128), 8: (128,)},
    "logsumexp": {2: (128, 128, 320), 4: (128, 128), 8: (128,)},
    "plain": {2: (176, 320, 320), 4: (144, 128), 8: (0,)},
    "softmax_backward": {2: (128, 128, 128), 4: (64, 64), 8: (64,)},
    "log_softmax_backward": {2: (128, 128, 128), 4: (64, 64), 8: (64,)},
}
# Rows of whole packs of four 16-bit elements are better off with lanes that read those packs if they are fewer than
# this for a multiprocessor, and their gradients also where those lanes have most of a power of two. H200, November
# 2026, bfloat16, times over such lanes': 26000 rows of 28, 36, 52 and 60, softmax and log_softmax 1.04 to 1.07, 60000
# rows 0.95 to 1.02, 200000 of 36, 68 and 100 0.85, 0.74 and 0.90, 3728270x36 0.73; gradients of 26000 rows of 44 to
# 124 1.06 to 1.20, of 60000x60 1.14, of 130000 rows of 12, 44, 68, 76 and 92 0.93, 0.95, 0.83, 0.88 and 0.93, but of
# 60, 100 and 124 1.08, 1.02 and 1.05.
NARROW_PACKS_ROWS_PER_MULTIPROCESSOR = 450
FULL_GRADIENT_GROUP = 0.75
# Of very many rows (VERY_MANY_ROWS_PER_MULTIPROCESSOR) longer ones, where elements are the only packs that they are
# whole ones of, with what lanes hold then; and rows of whole packs, of which there is an odd number, which lanes of a
# warp have no even share of. H200, November 2026, 256 MiB, us: softmax bfloat16 of 97 137 for 176, of 41 136 for 163;
# log_softmax of 41 153 for 202, logsumexp 105 for 147, of 57 102 for 141, float32 of 97 84 for 95; sum bfloat16 of 197
# 78 for 107, of 113 79 for 86. Whole ones: log_softmax bfloat16 of 24, 40 and 104 0.89, 0.76 and 0.92 of the time,
# softmax 0.90, 0.91 and 0.99, float32 of 12, 20 and 36 0.89, 0.91 and 0.86; its gradient of 65 float32 0.88.
MOST_WARP_SMEM_OF_MANY = {
    ("softmax", 2): 112,
    ("log_softmax", 2): 100,
    ("plain", 2): 288,
    ("softmax_backward", 4): 80,
}
MOST_ODD_PACKS = {2: 13, 4: 9}
WARP_SMEM_HELD_OF_MANY = {("softmax", 2): 64, ("log_softmax", 2): 64, ("logsumexp", 2): 64, ("logsumexp", 4): 64}
WARP_SMEM_REDUCED_OF_MANY = 160
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
# Slabs: short rows whose elements take turns, a few rows' at a time, against tiles of columns: 218 shapes of 6 to 1100
# steps of 2 to 90 columns, each of 2, 16 and 40 million elements. H200, November 2026, dim 1, times as fast at 16
# million and more: log_softmax of 24 steps, 2, 3, 5 and 7 columns of bfloat16 4.6, 4.0, 2.7 and 2.1.
# Threads that bring slabs together: the fewest of which so many have a row, else of these the busiest, else the last.
SLAB_TEAMS = (32, 64, 128, 256)
LARGEST_SLAB_TEAM = 512
BUSY_SLAB_GROUPS = 0.75
FEWEST_BUSY_SLAB_GROUPS = 0.6
MOST_SLAB_TEAM = 256  # the largest pays for softmax of float32: 1712x200x49 1.3, but log_softmax of 33 columns 0.7
# Fewer elements are done sooner by tiles: a quarter of a million, softmax 0.98 times as fast, gradients 0.92 (H100).
# Four times as many of other slabs than short ones of few columns: 2 million elements, softmax of bfloat16, 24 steps, 2
# to 13 columns 1.4 to 2.9, but of 6 steps, 18 to 90 columns 0.73 to 0.90.
SLAB_ELEMENTS_PER_MULTIPROCESSOR = 7000
SHORTEST_SMALL_SLAB = 10
# Of so many columns and more, softmax of 16 bits still pays, but log_softmax is 0.73 to 1.20 times as fast (longer ones
# 0.61 to 1.20), gradients 0.75 to 1.26 (0.35 to 1.11); gradients of float32, short ones, 0.96 to 1.04 where columns are
# whole accesses (H100).
MANY_SLAB_COLUMNS = 16
# An even number of as many, short, pays for softmax where there are some steps: 32 and 48 steps of 16 to 64 columns
# 1.00 to 1.39, of 8 and 16 steps, 4 million elements, 0.72 to 1.10, 16 million 0.90 to 1.27; log_softmax of float32
# 0.69 to 1.17.
TALL_SLAB = 32
MOST_TALL_SLAB_COLUMNS = 64
# Of fewer steps a thread of tiles holds a whole column, and its neighbours' are far away; tiles of longer ones do well
# where several elements go at a time: softmax of 77 steps, 2, 4, 6 and 8 columns 0.88 to 1.06, 7 columns 1.17, 31 1.20;
# of 300 steps, 10 columns 1.19, bfloat16 1.47 (H100).
LONG_SLAB = 64
FEWEST_UNEVEN_COLUMNS = 10
MOST_GRADIENT_SLAB_OF_HALVES = 200  # 3 to 13 columns of 77 to 150 steps 0.95 to 1.39, of 250 0.89 to 1.03
# Gradients of 2 columns, or 4 of 16 bits, are worth it longer, by bytes of an element: bfloat16 of 150 steps 1.58 and
# 1.15, of 250 1.00 and 0.83; float32 of 64 and 100 steps 1.25 and 1.05 (H100).
NARROW_SLAB_BYTES = 8
MOST_NARROW_SLAB = {2: 160, 4: 100}
# What is read once: sums of 48 to 1100 steps, 2 to 13 columns of bfloat16 1.00 to 1.95, 18 and more 0.8 to 1.2; 2 to 6
# of float32 0.98 to 1.63, more 0.93 to 1.16. Of 16 to 33 steps, 2 to 4 columns 0.97 to 1.48. logsumexp of 3, 5 and 7
# columns, 60 to 150 steps, 0.99 to 1.52, other columns and steps 0.5 to 1.5, mostly below 1.
REDUCED_SLABS = (48, 1100)
MOST_REDUCED_SLAB = {2: 16, 4: 6}
NARROW_REDUCED_SLAB = 4
SHORTEST_NARROW_REDUCED_SLAB = 16
LOGSUMEXP_SLABS = (60, 150)
LOGSUMEXP_SLAB_COLUMNS = (3, 5, 7)
# Rows longer than this are reduced by a block, shorter ones by a group of lanes: a warp then reads 8 packs a lane.
WARP_REDUCE_PACKS = 32 * 8
# Of more rows than this, longer ones too. Measured on an H200, sums of bfloat16, against the best block: 65536 rows of
# 2560 1.0x and 1.6x over a block of 256, 8192 of 16384 and 4096 of 128256 0.99x.
MANY_ROWS_PER_MULTIPROCESSOR = 48
# Loads of a thread in one go, kInFlight of row.h: threads of a block are as many as leave them that much. On an H200,
# the sum of 32768x4096 bfloat16 by 128 threads 1.22x over 256, which had 2.
PACKS_IN_FLIGHT = 4
# A row that has a multiprocessor to itself, and so many packs, has as many threads as a block may: H200, November 2026,
# us, sum float32 100x65536 14.6 to 13.6, 100x150000 28.4 to 24.9, 132x524288 77.2 to 74.9, bfloat16 100x262144 24.0 to
# 21.5, but 100x50257 9.6 for 9.1.
FEWEST_LONE_REDUCED_PACKS = 8192
FEWEST_REDUCE_THREADS = 64
# But rows that fit on the chip all at once, a pack for each thread, come so, unless a warp, or a block of which each
# thread has PACKS_IN_FLIGHT, takes its row at one go as well. (Modelled elsewhere: those of sm_120 have registers for
# half of the threads.) H200, November 2026, us: amax float32 64x1000 5.5 to 4.0, 528x1000 6.4 to 5.1, 64x3501 6.0 to
# 4.9, sum float32 64x1500 5.2 to 4.3, 260x1000 5.6 to 4.5, bfloat16 64x3000 5.5 to 4.5, 1056x1280 5.6 to 5.5, 64x2048,
# by a block of 64 instead of a warp, 4.8 to 4.3.
WARP_THREADS = 128  # 64 and 256 measured within 1% on an H100
LOOP_THREADS = 512
# Of gradients of 16 bits that wait in shared memory, several rows to a multiprocessor, of fewer elements than
# SHORT_HALVES_LENGTH: H200, November 2026, us, bfloat16 400x9000 12.6 to 11.0, 1400x10001 35.5 to 29.3,
# 8000x10001 164 to 127, 8000x11000 155.9 to 131.
SHORT_HALVES_THREADS = 256
SHORT_HALVES_LENGTH = 16384
# A multiprocessor that has one block to run wants it large. Measured on an H100: online of 128 rows of 65536 to 1048576
# float32, 1.06x to 1.15x over 512 threads; block_smem of 16384 rows of 32768 float32, of which one fits at a time,
# 1.18x, but 0.72x to 0.74x where several fit; strided tiles, 2x128256x16 float32, 2.3x over 256.
LONE_THREADS = 1024
# Rows of more bytes than that, by bytes of an element, that are read once and not written are walked with a running
# maximum, not held. Measured on an H200, logarithms of sums by blocks of the threads that follow, against a block that
# holds the row: 32768x8192 bfloat16 1.09x, 4096x32768 1.6x, 8192x16384 float32 1.08x, 8192x8192 0.94x.
MOST_HELD_LOGSUMEXP = {2: 8 << 10, 4: 32 << 10, 8: 128 << 10}
# But if all rows are no more bytes than that for a multiprocessor, rows of so many are held. H200, November 2026, us,
# bfloat16 1x5007 4.8 for 6.1, 216x4848 5.9 for 7.5, 128x8192 5.9 for 6.9, 85x12301 6.4 for 7.7, 34x30509 7.6 for 8.1,
# but 256x16384 9.2 for 8.6; float32 95x11002 7.4 for 8.0, but 256x16384 12.7 for 11.5.
HELD_LOGSUMEXP_BYTES_PER_MULTIPROCESSOR = 36 << 10
MOST_HELD_LOGSUMEXP_OF_FEW = 64 << 10
# Rows of 16 bits are held up to MOST_HELD_HALVES elements, too: (rows for a multiprocessor at most, elements at least).
# H200, November 2026, us: 528x5000 7.7 to 7.1, 1056x4104 8.7 to 8.6, 1056x8192 11.4 to 10.6, 2000x6144 13.5 to 12.7,
# 4000x6144 21.0 to 18.8, 4000x8192 26.9 to 22.3, 4000x7001 27.0 to 23.3, but 4000x4104 16.6 to 18.6, 16000x7001 67.8 to
# 76.7.
FEWEST_HELD_HALVES = ((8, 4096), (32, 6144))
MOST_HELD_HALVES = 8192
# Threads for a row that is walked along: 8192x50257 bfloat16 1.31x over 512, 4096x128256 1.02x, and of no more rows
# than that for a multiprocessor as many as leave no block waiting for its turn, each with 64 registers: H200, November
# 2026, us, float32 168x100003 30.7 with 512 for 35.5 with 1024, 365x45919 27.6 with 256 for 31.5, 550x30509 29.5 with
# 128 for 32.5, 1525x11002 28.7 with 64 for 30.7; bfloat16 18.8 for 22.6, 17.3 for 19.2, 17.9 for 19.5, 17.3 for 18.0.
ONLINE_THREADS = 128
ONLINE_PACKS = 16  # per thread, at least: 32768x8192 bfloat16 1.07x over 8
ONLINE_THREADS_PER_MULTIPROCESSOR = 1024
MOST_ONLINE_AT_ONCE = 24
SEED_THREADS = 256  # the textbook kernel's
