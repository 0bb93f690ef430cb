"""Every threshold of the planner for GPUs, with what it rests on.

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
# a head and a tail would be most of the row (modelled).
NARROW_LENGTH = 128
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
HELD_ALONE_REGISTERS = 48  # one thread to a row: nothing is needed of others
HELD_PACK = 4
# Tiles take threads until a multiprocessor has this many: measured on an H100 against 128 or 256 for all, 1.1x
# (8x21x512x512, 64x1000x196 float32) to 1.55x (16x150x128x128 bfloat16), 1.2x for the sum of 32x256x56x56; none lost
# more than 1%.
TILE_THREADS_PER_MULTIPROCESSOR = 1024
FEWEST_TILE_THREADS = 64
# ---- rows that several blocks share; times measured on an H200, November 2026, in microseconds ----

# Registers of a thread that hold its slice, by bytes of an element. Of 16-bit ones more spill: the compiler keeps
# widened what it needs again.
SPLIT_REGISTERS = {2: 16, 4: 32, 8: 16}
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
# The blocks are as many as leave each so many bytes: of many rows of two elements in four bytes, which wait in shared
# memory, and of all others. 4096x50257 bfloat16 312 with 4 blocks of 256 threads, 316 or more with 8, 4096x32000 189.2
# with 4 and with 2; but 8x128256 7.7 with 16 and with 8, 64x128256 21.7 and 22.5.
GRADIENT_CLUSTER_SLICE_BYTES = (52 << 10, 32 << 10)
# Where rows are at most one for so many multiprocessors, so many blocks have a row, and threads for so many elements,
# up to so many threads: 8x32768 float32 6.66 by 8 blocks of 512, 6.75 by 16 of 128; bfloat16 5.47, in shared memory
# 5.73. There rows that a block just holds are for clusters, too: 64x16384 float32 8.5 for 8.8, bfloat16 7.2 for 7.5.
MULTIPROCESSORS_PER_FEW_GRADIENTS = 2
FEW_GRADIENTS_BLOCKS = 8
FEW_GRADIENTS_ELEMENTS = 8
FEW_GRADIENTS_THREADS = 512
FEW_GRADIENTS_LENGTH = 16384
# Rows are handed out if a cluster has so many: 512x32768 bfloat16, four for each, 31.1 for 31.7, but 128x131072
# float32, five for each, 55.9 for 57.0.
HANDED_GRADIENTS_PER_CLUSTER = 5
# As SPLIT_REGISTERS, of blocks that are a cluster: beside more of them the states of its warps spill.
CLUSTER_REGISTERS = {2: 12, 4: 24, 8: 12}
# Threads of the blocks of a cluster, and of those whose slices have more packs than that; blocks of a multiprocessor
# that the planner wants room for (modelled).
CLUSTER_THREADS = 256
LONG_CLUSTER_THREADS = 512
LONG_CLUSTER_PACKS = 1 << 12
CLUSTER_RESIDENT = 2
# Rows of at least so many bytes, and no more elements than that, are for clusters, of no more blocks than every
# device can place, where rows are few: the blocks need no way through L2 to tell each other two numbers. Measured on
# an H200, November 2026, against one block or blocks that meet in memory, microseconds: float32 8x16384 5.6 for 6.8,
# 8x32768 6.2 for 7.6, 64x32768 10.7 for 12.1, 256x32768 24.5 for 27.6, 512x32768 42.5 for 46.3, 8x65536 7.5 for 8.1,
# 128x65536 24.8 for 26.3; bfloat16 8x32768 5.5 for 8.7, 64x32768 8.6 for 9.8, 512x65536 45.7 for 49.8. Not beyond:
# 1024x32768, 8x128256, 128x131072 no gain.
CLUSTER_ROW_BYTES = 64 << 10
CLUSTER_LENGTH = 1 << 16
CLUSTER_ROWS_PER_MULTIPROCESSOR = 4
PORTABLE_CLUSTER = 8
# Of rows that a block could hold in BLOCK_REGISTERS, or that start off the boundaries of packs, one for so many
# multiprocessors: 64x16384 float32 8.5 for 8.4, 64x50257 no gain, but 8x50257 7.3 for 7.9.
MULTIPROCESSORS_PER_CLUSTERED_BLOCK_ROW = 2
MULTIPROCESSORS_PER_CLUSTERED_ODD_ROW = 8
# More than so many rows of 16-bit elements on a multiprocessor whose shared memory has room for three are not for
# clusters: H200, November 2026, 512x32768 bfloat16 22.6 us by block_smem for 24.5.
CLUSTERED_SMALL_ROWS_PER_MULTIPROCESSOR = 2
# Longer rows, and more of them, are for clusters that take rows as they are ready for them. Their blocks are small, so
# that a multiprocessor has many, and while one waits for its cluster others load: 4 of 128 threads each, 8 or 16, of no
# more bytes of a row than that, else 16 of 256. H200, November 2026, us, against blocks that meet in memory, or one
# block: float32 128x262144 78.9 for 86.3, 512x128256 139 for 151, 4096x65536 540 for 599, 4096x128256 1052 for 1159,
# 4096x50257 449 for 470, 8192x40000 658 for 682, but 4096x32768 273 for 268; bfloat16 4096x128256 526 for 587,
# 8192x262144 2176 for 2380, 32768x65536 2145 for 2197, 4096x50256 217 for 229, 4096x50257 231 for 228, 512x50256 33.2
# for 35.4, 4096x40000 174 for 197, 64x128256 15.2 for 15.9; log_softmax the same.
HANDED_THREADS = 128
HANDED_SLICE_BYTES = {4: 24 << 10, 8: 28 << 10, 16: 32 << 10}  # 4096x128256 bfloat16 526 by 16, 534 by 8
# Rows of fewer bytes, by those of an element, are for others: 512x20000 float32 27.4 by two of 256, 28.1 by 4;
# 4096x32768 bfloat16 140.6 by one block, 141.5 by 4.
FEWEST_HANDED_BYTES = {2: 76 << 10, 4: 96 << 10}
# Of longer ones 16 blocks leave a multiprocessor room for one of them: 128x524288 float32 179 for 167.
MOST_HANDED_BYTES = 1 << 20
# Rows are handed out if a cluster has so many, in registers or in shared memory, where the next one comes meanwhile.
# The time of fewer is that of instructions, of which it takes 200 more: 64x32768 float32 12.2 for 11.2, 128x32728 17.9
# for 15.5, a row or two in registers for a cluster; but 4096x20000 173 for 179, 128x131072 42.1 for 44.8.
HANDED_ROWS_PER_CLUSTER = (4, 1)
# Rows that are one for so many multiprocessors, or fewer, have more threads: 64x128256 float32 25.1 with 256 each, 27.2
# with 128, but of bfloat16 17.1 and 15.2. Of the fewest, float32 rows and longer ones are for more blocks, which meet
# in memory; 8x128256 bfloat16 takes 7.8 by a cluster, 8.4 by those.
MULTIPROCESSORS_PER_HANDED_ROW = {2: 4, 4: 2}
MULTIPROCESSORS_PER_FEWEST_HANDED_ROWS = 8
MOST_BYTES_OF_FEWEST_HANDED_ROWS = {2: 256 << 10, 4: 0}
# As many blocks share a row as make so many on a multiprocessor, all of them at work at once.
CLUSTER_BLOCKS_PER_MULTIPROCESSOR = 8
# Of long float32 rows of which shared memory has room for two, two blocks that hold one in their registers are faster
# than one each. H200, November 2026, us: 4096x20000 177 for 210, 4096x24001 214 for 257; where there is room for three
# not: 4096x17000 163 for 157.
PAIRED_ROWS_PER_MULTIPROCESSOR = 2
PAIR_THREADS = 512
# A reduction that needs no more than so many packs a thread takes two blocks a multiprocessor: sums of 1x4194304 13.9
# with 264 blocks, 15.6 with 528; logarithms of sums of 32x1048576 55.0 with 256, 48.3 with 512.
FEW_REDUCED_PER_THREAD = 32
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
# Steps of tiles that clusters share: from, up to for tiles of 128 bytes by blocks of 128 threads, up to for tiles of 64
# bytes by blocks of 256. Measured on an H200, November 2026, float32, microseconds: 2048x4096, dim 0, 28.3 for 30.6,
# 8x2048x512, dim 1, 28.1 for 29.8, 4096x4096 53.3 for 56.5, 8192x8192 196 for 203, 16384x1024 64.8 for 72.9. Shorter
# ones stay in the registers of a block: 64x1000x196 43.2 for 44.6. Of 16-bit elements some gain and some lose:
# 4096x4096 35.0 for 39.8, 64x1000x196 32.4 for 38.1, 8x2048x512 20.8 for 20.0, 8192x8192 126 for 120.
CLUSTERED_STEPS = (2048, 8192, 16384)
CLUSTERED_TILE_BLOCKS = 16


def ceil_power(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def floor_power(n: int) -> int:
    """The largest power of two that is not above n; 1 at least."""
    return 1 << max(1, n).bit_length() - 1


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
