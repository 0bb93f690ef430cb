"""Thresholds of the planner for GPUs where a row is for lanes of a warp, a warp or a block, with what each rests on.

Those of rows that several blocks share are in team_thresholds.py, those of tiles in tile_thresholds.py.

"modelled": from registers, occupancy and Little's law, not measured one against the other yet.
"""

from __future__ import annotations

# Bytes of one access. 256-bit accesses of sm_100 are not used yet.
ACCESS_BYTES = 16
WARP_LANES = 32
# Elements that a thread may hold of a row, in registers of 32 bits: a lane of a group ... (modelled: 32 values and what
# exponentials need leave 48 warps on a multiprocessor)
WARP_REGISTERS = 32
# ... or a thread of a block; the larger number where 1024 threads are not enough otherwise, and where nothing is
# written: logsumexp of 32768x4096 bfloat16 measured 1.09x on an H100.
BLOCK_REGISTERS = 16
MOST_BLOCK_REGISTERS = 32
# Elements of a lane where a warp has a longer row, of many rows (MANY_SHORT_ROWS_PER_MULTIPROCESSOR), by operation and
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
# Lanes of a warp hold up to so many packs of each array of 16 bits, of many rows: H200, November 2026, bfloat16,
# softmax, 256 MiB and 26000 rows, times over a block's, x 545 0.91 and 0.94, x 641 0.89 and 0.94, x 520 0.92.
MOST_GRADIENT_PACKS_OF_LANES = 96
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
# a head and a tail would be most of the row (modelled). Of more rows than FEW_ROWS_PER_MULTIPROCESSOR it is asked what
# either costs (lane_cost.py): from the second number of elements on, shorter ones were not timed with edges, up to the
# third of narrow packs, which is what a warp reduces (WARP_REDUCE_PACKS).
NARROW_LENGTH = 128
SHORTEST_WITH_EDGES = 33
MOST_NARROW_PACKS = 256
# What a lane holds of a row that more lanes might share, and WARP_REGISTERS with edges. H200, November 2026, us:
# log_softmax bfloat16 163880x819, 56 elements for 32, 171 for 137, softmax 80000x269, 40 for 24, 34.5 for 27.7.
MOST_LANE_REGISTERS = 40
# And packs of one where lanes hold none.
MOST_REDUCED_PACKS = 16
# Rows are many, where a threshold says so, from so many for a multiprocessor on.
MANY_SHORT_ROWS_PER_MULTIPROCESSOR = 192
# Rows of no more elements, and packs where those are held, may come by way of shared memory: longer ones are no faster
# so. They need no accesses that divide them. H200, November 2026, us, against lanes that read an element, a narrow pack
# or the edges of a row: 3495253x3 softmax float32 27.1 for 70.6, bfloat16 17.4 for 70.3, its gradient 23.0 for
# 69.8; 317750x33 softmax float32 26.1 for 56.1, log_softmax bfloat16 18.2 for 73.7, sum 13.0 for 60.5.
MOST_WARP_SMEM = 320
MOST_WARP_SMEM_PACKS = 128
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
