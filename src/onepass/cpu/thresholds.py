"""Every threshold of the planner for CPUs, with what it rests on.

"measured", where nothing else is said, is on two cores of an Ice Lake server at 2.8 GHz (48 KiB L1, 1.25 MiB L2).
"""

from __future__ import annotations

# Rows of up to this many vectors go to `registers`, a batch at a time.
REGISTER_VECTORS = 8
# The same of softmax and log_softmax: what they compute hides the loads of the next batch. Measured on two cores of a
# Zen 4 against `row`, rows of 256 float32 from L3 and from memory: softmax 1.7x and 1.2x, log_softmax 1.3x and 1.2x;
# bfloat16 1.6x and 1.4x to 1.8x. Not in float64, where a lane's sum of so many rounds too often.
# And of logsumexp, whose logarithms are taken of a batch together: from L2, from L3 and from memory, by one thread and
# by two, times of `row` over times of this, 129 elements 1.34 to 1.59, 200 1.25 to 1.48, 256 1.09 to 1.34; by AVX2, 65
# 1.54 to 1.80, 100 1.43 to 1.81, 128 1.34 to 1.51.
SOFTMAX_REGISTER_VECTORS = 16
# And of their gradients, where a row is summed and written at once, in registers or from L1. Measured on a Zen 4, times
# of `row` over times of these, softmax's in float32: rows of 400 1.4 from L2, 1.1 from L3, from memory 1.35 by one
# thread and 0.95 by two; of 512 1.3, 1.1, 1.35 and 0.93; of 1000 1.2, 0.9 to 1.1, 1.1 and 0.85.
GRADIENT_REGISTER_VECTORS = 32
# And of plain reductions, in elements: by bytes of one, for vectors of 64 bytes and for shorter ones. `row` looks
# ahead in memory where batches do not, and has nothing between its rows. Measured on a Zen 5, times of `row` over
# times of `registers` from L2, from L3 and from memory. AVX-512: float32 sums of 12 1.2, 1.3 and 3.9, of 16 0.92, 0.93
# and 0.95, of 17 to 31 1.0, 0.9 and 0.4, maxima of 17 to 48 1.7 to 1.4, 1.5 to 1.1 and 0.6 to 1.3, of 64 1.2, 0.9 and
# 0.5, of 96 0.95 and 0.83; bfloat16 sums of 16 1.1, of 17 to 24 1.0, of 32 0.8, of 64 and more 0.6 to 0.9, maxima of 17
# to 48 2.1 to 1.7, of 128 1.05; float64 sums of 9 to 16 3.2 to 2.5, of 17 1.0, maxima of 5 0.9, 1.0 and 3.1, of 8 and
# more 0.5 to 0.9. AVX2: float32 sums of 7 1.2, 1.3 and 4.1, of 8 1.05, 1.1 and 0.95, of 9 and more 0.5 to 0.8, maxima
# of 9 to 64 1.3 to 1.0 but from memory 0.9 to 1.0; bfloat16 sums of 7 1.05, of 8 and more 0.9 to 0.6, maxima of 9 to 64
# 1.4 to 1.1; float64 sums of 12 1.15, of 16 1.0, maxima of 3 0.5, 0.5 and 1.6, of 4 and more 0.5.
SUM_REGISTER_ROW = {2: (16, 7), 4: (15, 8), 8: (16, 12)}
EXTREME_REGISTER_ROW = {2: (128, 64), 4: (64, 64), 8: (7, 3)}
EXTREME_REGISTER_ROW_FROM_MEMORY = {2: (128, 64), 4: (16, 8), 8: (7, 3)}
# Rows that go across with others (rows_across.h) have at most as many bytes as so many vectors of 32 bytes or more.
# Measured on two cores, by one thread and by two, times over those before, mostly of `row`, from L3 and from memory.
# AVX2, a Zen 3: float32 sums of 24 0.84, 0.81 and 0.99, 0.97, of 32 0.90, 0.90 and 0.97, 0.98, maxima 0.70 to 0.85 and
# 0.90 to 1.05; but of 64 0.98 to 1.19 from a cache. bfloat16 sums of 32 0.66 and 0.73, 0.87, of 64 0.89, 0.88 and 0.99,
# maxima 0.52 and 0.65, 0.70, of 64 0.82 to 0.89. AVX-512, a Zen 4: float32 sums of 24 0.36 to 0.48 and 0.77 to 0.97, of
# 64 0.74 to 0.82 and 0.93 to 1.02, of 96 0.93 to 1.1 and 1.1 to 1.3; maxima of 24 0.6 to 0.7 and 0.66 to 0.99, of 64
# 0.77 to 0.86 and 0.97 to 1.03, of 80 0.96 to 1.17 and 0.99 to 1.04. bfloat16 sums of 64 0.47 and 0.6 to 0.9, of 128
# 0.6 to 0.68 and 0.75 to 0.96, maxima of 64 0.84 to 0.9 and 0.68 to 1.0, of 128 0.93 to 1.04 and 0.86 to 1.05; of 256
# sums 0.74 to 0.83 and 1.2 to 1.8, maxima 1.1 to 1.2 and 1.4 to 1.8.
ACROSS_ROW_VECTORS = 4
# A row is `resident` while two rows of input and two of exponentials (one is computed, one written, one fetched) fill
# at most this share of L2; beyond, it is read twice.
ROW_SHARE_OF_L2 = 0.5
# The same of a core's part of L3, where what would be read twice is also computed twice. Measured on two cores of a Zen
# 3 (AVX2, 512 KiB L2, 32 MiB L3), times of `online` over times of `row`: softmax of 32768 float32 1.3 to 1.4, of 131072
# 1.1 to 1.4, of 262144 1.1 to 1.3, of 524288 0.77; of 32768 to 262144 bfloat16 1.45 to 1.29, float64 1.3 at 32768 and
# 0.87 at 262144. On two of a Zen 5 (AVX-512, 1 MiB, 32 MiB), by one thread and by two, from memory: 50257 float32 1.4
# and 1.7, 131072 1.4 and 1.0, 262144 1.3 and 1.0; bfloat16 2.0 and 1.6, 1.6 and 1.3, 1.5 and 1.4; by two, 65536 float64
# 1.3, 262144 1.1. Not of rows that are converted on the way: there, float16 to float32 0.7 to 0.9. (Gradients would
# gain 1.1 to 1.3, but their sums would have other bits than those of few rows, which are split.)
COMPUTED_ROW_SHARE_OF_L3 = 0.25
# Long rows of float32 of an input of up to this share of L3 are added up in the order of memory, and beyond by streams,
# which make the processor look further ahead; rows shorter than this have no streams. Measured on two cores of a Zen 4
# (L3 32 MiB), and nowhere else, in order over streams: sums of 5x203320 0.79, 24x104421 0.82, 111x24933 0.86, 4000000
# 0.82, 6x1000000 (23 MiB) 0.92 to 0.96, 7x1000000 0.98, 8x1000000 0.99, 10x1000000 (38 MiB) 1.12, from memory in pages
# of 4 KiB 1.19 to 1.29. Sums of bfloat16 1.0 to 1.09; extremes, whose zeros would have other signs, 0.94 to 0.99.
# Of a reduction of columns it is the other way: what is not in L3 is read in the order of memory (wide_reductions.h).
# In L3, times by that: sums of 12x100000 float32 1.5, 300x2000 1.0 and, by one thread, 1.2; in bare loops 0.8 to 1.07.
CACHED_SHARE_OF_L3 = 0.75
SHORTEST_STREAMED = 16384
# Rows of so many elements, of AVX2's vectors up to sixteen, are fetched from L3 where they are added up, and not from
# memory: fetch_ahead.h has the times.
FETCHED_SUMS = range(64, 129)
NARROW_VECTOR_BYTES = 32
# A tile of a strided problem, with the exponentials of two, is `resident` while it fills at most this share of a core's
# part of L3: measured, against reading twice, 1.2x at 4096x4096 (12 MiB a tile) to 1.4x at 500x32768, dim 0.
TILE_SHARE_OF_L3 = 0.5
# Bytes, as computed with, across a tile, and so the most in an inner axis that is one tile: those are read without a
# gap. Measured on a Zen 3, whose vectors are half as long as where this was found, two threads, dim 1, times of tiles
# of half of this over times of whole ones: gradient of softmax of 64x500x192 1.6, 32x300x256 1.6, softmax 1.1 and 1.4,
# log_softmax 1.4 and 1.6; sums of 64x500x196 1.1.
TILE_BYTES = 1024
# The same of a longer inner axis, of exponentials in float32: as many as are added up in registers at once, and two
# such tiles fit L2. Measured on a Zen 4, softmax of 32x256x56x56, dim 1: 6.4 ms instead of 8.7, 8x21x512x512 11.4
# instead of 14.1; but of one tile, 64x1000x192, 5.2 instead of 4.7. With short vectors of everything, but where results
# are as long as what is read and four tiles of TILE_BYTES fit L2: on a Zen 3 softmax of 16x256x3136, dim 1, takes 1.12
# times by half of this, 2x1000x2048 1.13, the gradient of 4096x4096, dim 0, 1.2 by twice this; but of 8x21x512x512
# softmax 1.07 by this, its gradient 1.2, of 4x64x256x256 1.06 and 1.1. But rows of results that end within lines gain
# by wider tiles, which share fewer of those, times by this (Zen 3: by half of this) over times by TILE_BYTES: softmax
# of 100x100001, dim 0, Zen 3 1.8, a Sapphire Rapids Xeon 1.36, log_softmax 1.3 and 1.18, softmax's gradient 1.2 and
# 1.24; of 4x400x5001, dim 1, 1.2 and 1.11, 1.2 and 1.13, 1.4 and 1.18.
LONG_AXIS_TILE_BYTES = 512
# The same of gradients of float32 by short vectors, past the cache, if an inner axis has LEAST_PIECES of them and both
# inputs of such a tile no more than that share of L2: memory is read along longer pieces of rows. Measured on a Zen 3
# (L2 512 KiB), two threads, dim 1, times over those of TILE_BYTES, softmax's and log_softmax's: 8x21x262144 0.77 and
# 0.86, 8x21x263169 0.82 and 0.91, 6x32x65536 0.88 and 0.89, 128x40x3136 0.90 and 1.02, 4x48x65536 0.93, but 3x64x65536
# 0.97 and 1.01, 2x100x65536 1.11, 400x20x2000 0.91 and 1.06. Of softmax's no more than SHORT_COLUMNS rows, times over
# those of whole columns with their rows fetched: 16x12x65536 0.96, 12x16x65536 0.91, 24x8x65536 0.95, but 32x6x65536
# 1.19; log_softmax's 1.15 to 1.4.
WIDE_GRADIENT_TILE_BYTES = 4096
WIDE_SHARE_OF_L2 = 0.75
LEAST_PIECES, LEAST_SHORT_PIECES = 2, 16
LEAST_WIDE_ROWS = 8
MOST_GRADIENT_TILE_VECTORS = 128
# But of one piece on where a row ends within a line, or where all rows of a column are in one set of L1 and inputs and
# results are so many times L3. Measured on a Zen 3, two threads, three allocations of each, times over those of whole
# columns: 600x10x1500 0.86, 800x9x1333 0.85, 150x16x3001 0.87, 250x12x5001 0.84, 120x12x10001 0.81, 200x10x1500 0.95;
# 1500x16x1024 0.69, 800x12x1024 0.76, 400x12x2048 0.82, 800x8x2048 0.90, but 200x12x1024 1.4, 350x12x1024 1.2. Of whole
# lines in different sets 600x8x1536 1.5, 1000x16x1200 1.18, 200x16x3136 1.03.
L1_WAY_BYTES = 4096
FAR_SHARE_OF_L3 = 3
# Vectors across the widest tile, which the kernels have memory for. Of rows of results that do not begin with lines,
# and are to be written as one, so many are one tile. Measured on a Zen 3, two tiles for one: softmax of 64x1000x196,
# dim 1, 1.5x, log_softmax 2.0x, softmax of 128x500x250 1.6x.
MOST_TILE_VECTORS = 32
# Bytes of such a row, of 32 bits or more, from which on writing them as one pays: what is kept of a row and finished
# with the next costs the same however long it is. Measured on a Zen 3, two threads, dim 1, times past the cache over
# times in it: gradient of softmax of 3000x50x33 1.5, 1500x100x49 1.15, 1000x100x81 1.0, 2048x40x100 0.9, 500x100x196
# 0.93; softmax 1.25, 1.1 to 1.2, 1.05, 1.0, 0.8; log_softmax 1.4, 1.15, 1.1, 1.0, 0.88; bfloat16 64x500x250 0.96 to
# 1.1.
JOINED_ROW_BYTES = 384
# The same by long vectors of float32, and of softmax's gradient by those, since what is kept of a row stays in a
# register (joined_rows.h). Measured on a Zen 4, by one thread and by two: softmax of 200x33 1.08 and 1.05, 100x49 0.94,
# 200x60 0.83 and 0.87; log_softmax 0.96 and 0.92, 0.88, 0.86 and 0.80; softmax's gradient 0.87 and 0.98, of 200x49 0.68
# and 0.64, 200x60 0.60 and 0.66, log_softmax's 1.05 and 1.07, 1.06 and 0.92, 0.75 and 0.81, of 100x196 0.63; over long
# rows that are cut into tiles, 160x100x361 0.56 and 0.57, log_softmax's 0.51 and 0.47.
LONG_VECTORS_JOINED_ROW_BYTES = 192
LONG_VECTORS_JOINED_GRADIENT_ROW_BYTES = 128
# Both inputs of a tile that kernels of long vectors take a few columns at a time (gradient_tiles.h): log_softmax's
# gradient of such long rows stays in the cache. Measured on a Zen 5, two threads, times in it over times past it:
# 791x21x361, dim 1, 0.74, 300x21x900 0.61, 500x40x300 0.74; 160x100x361, which is more, 0.97; softmax's 415x40x361
# 1.16.
NEAR_BYTES = 256 << 10
# Bytes of the results of a tile that are put together in the cache.
LEAST_TOGETHER, MOST_TOGETHER = 1536, 20 << 10
SHORT_COLUMNS = 16
# Of gradients, those so short that they gain nothing by stores past the cache where rows end within lines. Measured on
# a Zen 3, two threads, dim 1, times past it over times in it: softmax's of 20x3x100001 1.7, 20x4x70001 1.6, 20x6x50001
# 1.2, 16x8x40001 1.0, 16x16x20001 0.8; log_softmax's 2.0, 1.4, 1.1, 0.7, 0.7. (Softmax itself 1.8, 1.6, 1.35, 1.3, 1.0,
# log_softmax 1.7, 1.7, 1.7, 1.4, 1.1.)
SHORT_GRADIENT_COLUMNS = 6
# Rows of results, of 32 bits or more, that end within lines go past the cache if they have so many elements. Measured
# on a Zen 4, ms, past it and in it: softmax's, dim 0, 4096x1001 3.0 and 3.7, log_softmax's 3.2 and 3.7; dim 1,
# 8x21x513x513 25.7 and 26.8, 100x300x257 4.8 and 5.3; but 64x1000x196 6.9 and 6.1, 2048x12x100 2.0 and 0.7,
# 2000x16x49 0.57 and 0.32, bfloat16 4096x1001 2.2 and 1.4. With AVX2 4096x1001 2.6 and 3.1, 2048x12x100 0.94 and
# 0.69; and there, by tiles of TILE_BYTES, times past it over times in it: softmax and log_softmax of 100x100001, dim
# 0, 0.95 and 0.87, 2x21x257x257 0.88 and 0.75, 8x20x9001 0.9 and 0.8, 64x200x261 1.0; float64 0.92 and 0.9; but
# log_softmax's gradient in float64 1.3. On a Sapphire Rapids Xeon 100x100001 0.7 and 0.65, 4x400x5001 0.56 and 0.56,
# gradients 0.75 and 0.7, 0.66 and 0.8.
LONG_ROW = 256
# Bytes across the narrowest tile, where wider ones do not fit the cache or are too few for all threads. Measured on a
# Zen 4, two threads, sums of 1000 x 1000 float32 in L3, dim 0: 31 us, and 67 in chunks of tiles of 256 columns;
# 3000 x 1001 145 and 263.
NARROW_BYTES = 256
# Elements of one chunk of a long row: its input and nothing else in L1.
CHUNK = 4096
# A reduction reads once whatever the chunk; longer ones cost fewer merges.
REDUCE_CHUNK = 1 << 15
# Bytes of input and result from which on stores bypass the cache.
NONTEMPORAL_BYTES = 16 << 20
# So many times that for softmax's gradient along rows, a third of which is written and for which little is computed: it
# waits for what a chip lets through to memory (28 GB/s of stores, by one core as by two). Measured on a Zen 4, two
# threads, stores past the cache over ordinary ones: 1600 x 1024 1.1 to 1.2, 24000 x 64 1.3 to 1.7, 15625 x 128 1.1 to
# 1.4; 40000 x 64, 29 MiB, 0.8.
NONTEMPORAL_TIMES_OF_SOFTMAX_GRADIENT = 1.5
# The same of gradients across tiles that are near (NEAR_BYTES), which in the cache are taken a few columns at a time,
# and where rows of so many are no whole lines: each has two edges. Measured on a Zen 5 (L3 32 MiB), two threads, dim 1,
# times in the cache over times past it, of 18, 26, 34 and 42 MiB: softmax's of 100x49 a step 0.55, 0.61, 0.61 and 0.71,
# 100x97 0.87, 0.88, 0.92 and 0.98, 60x129 0.79, 0.80, 0.86 and 0.91, log_softmax's 0.67 to 0.71, 0.86 to 0.93, 0.75 to
# 0.79; of 60 to 300 MiB 0.95 to 1.37. Of fewer rows, 18 to 34 MiB, 30x97, 0.72, 0.85 and 1.09, 20x49 0.89, 0.88 and
# 1.02, log_softmax's 0.72, 0.76 and 0.89; of lines, 100x64, 0.68, 0.91, 1.07 and 1.12, 0.68, 0.73, 0.79 and 0.89.
NONTEMPORAL_TIMES_OF_NEAR_GRADIENT = 1.5
NONTEMPORAL_TIMES_OF_EDGES = 2.5
FEWEST_EDGES = 60
CACHE_LINE = 64
# Fewer elements than this and a second thread costs more than it saves. Measured on a Zen 5, when sleepers were woken
# whatever there was to do (csrc/threads.cpp; torch's threads, on which tensors are served, still are), us by one thread
# and by two, softmax of 24x1000 float32 called in a loop 3.8 and 4.2, after 300 us of something else 3.9 and 12.3;
# log_softmax of 15x3x544, dim 1, 10.6 and 6.8, but 10.6 and 18.5; amid torch's operators, on its threads, 13.8 and 9.9.
PARALLEL_ELEMENTS = 1 << 15
# Half as many of exponentials by short vectors, which take twice as long: on a Zen 3, tensors of 2048x8 to 32x512 and
# 32x8x64, two threads over one, in a loop and after 300 us of something else: softmax 0.7 to 1.0 and 0.8 to 1.0,
# log_softmax 0.7 to 1.1 and 0.75 to 0.9, logsumexp 0.6 to 0.8 and 0.7 to 1.0, log_softmax's gradient 0.6 to 1.1.
PARALLEL_SHARE_OF_SLOW = 2
# And four times as many that are only added up or compared, in rows of more than so many, or across them: on a Zen 3
# 32x1024 1.2 to 1.6 and 0.8 to 1.5, 8x64x64 1.3 to 2.5 and 1.7 to 2.2, 64x1024 1.0 to 1.3 and 0.5 to 0.8, 128x1024
# 0.8 and 1.0 to 1.1; of rows of 3 to 16, 32768 elements, 0.55 to 1.0 and 0.7 to 0.9. Nor is there anything to compute
# of rows of one: softmax of 32000x1 5.1 us by two threads and 6.2 by one, by itself 39 and 26.
PARALLEL_TIMES_OF_PLAIN = 4
SHORT_PLAIN_ROW = 16
# Each thread gets at least one of so many parts of those: what it costs to have one more rises with their number.
# Measured on sixteen cores of a Xeon, torch's threads, us by 1, 2, 4, 8 and 16: softmax of 256x128 17, 15, 12, 9.6 and
# 10.3, of 512x128 34, 23, 16, 13 and 12, sums of 256x1024 12, 13, 10.5, 9.7 and 10.3.
PARALLEL_PARTS = 8
# `split` when there are fewer rows than this per thread.
ROWS_PER_THREAD = 4
# Unless they wait in L3, and this much of the time all threads have one: 3 of 50257 float32 by two threads of a Zen 5,
# in the cache, 28 us by `split` and 14 by `row`, 3 of 131072 44 and 40, 8 of 128256 bfloat16 180 and 66.
LEAST_BUSY = 0.75
# Inner axes of 2 to this many elements go to `packed`; of more, up to MOST_PACKED_INNER, where plan_packed.py says.
# Measured on a Zen 5, two threads, where neither is kept in the cache between its passes, times over those of tiles:
# float32, 20 columns, softmax 0.32, log_softmax 0.45, softmax's gradient 0.69, log_softmax's 0.50; 36 0.70, 0.83, 0.94
# and 1.08, 64 0.63, 1.01, 1.01 and 0.97, 100 0.64, 0.82, 0.89 and 0.79; logsumexp 0.54 (24) to 0.98; bfloat16 0.53 to
# 1.0; by AVX2 0.42 to 1.0; but of 240, which narrower tiles keep, softmax 1.6.
PACKED_INNER, MOST_PACKED_INNER = 16, 124
# Where tiles are kept, rows so short that the kernels transpose them are packed: so many elements at most, by
# operation, bytes of a vector, and whether that is of float64. Measured on a Zen 5, one thread, from L3, times over
# those of tiles: 64 bytes, float32, of 17, 20, 24 and 30 columns: 2 steps softmax 0.42, 0.47, 0.45 and 0.53,
# log_softmax 0.38 to 0.54, logsumexp 0.31 to 0.54; 8 steps 0.57, 0.63, 0.72 and 0.91, 0.48 to 0.77, 0.39 to 0.62; 16
# steps 0.73 to 0.98, 0.54 to 0.89, 0.41 to 0.76; of 36, 50 and 60 columns, 2 steps, 0.54, 0.61 and 0.74, 0.63 to 0.77,
# 0.52 to 0.73; bfloat16 0.67 to 1.0, logsumexp 0.33 to 0.76; float64 0.50 to 1.0, 0.56 to 0.95. 32 bytes, 0.48 to 0.96,
# 0.48 to 0.83, 0.46 to 0.91. Gradients: 0.34 to 0.79, but from L2 and by AVX2 up to 1.4.
TRANSPOSED_ELEMENTS = {
    ("softmax", 64, False): 400,
    ("log_softmax", 64, False): 512,
    ("logsumexp", 64, False): 512,
    ("softmax", 64, True): 128,
    ("log_softmax", 64, True): 128,
    ("logsumexp", 64, True): 512,
    ("softmax", 32, False): 200,
    ("log_softmax", 32, False): 200,
    ("logsumexp", 32, False): 512,
}
# And longer ones where the vectors of a tile would be used by no more than MOST_PACKED_USE, less what the sums of a
# packed tile cost at its end: as much as so many rows of it. Measured on a Zen 5, one thread, from L3, times over those
# of tiles, float32 by 64 bytes: 17 columns, of 100, 300 and 1000 steps, softmax 0.64, 0.52 and 0.48, log_softmax 0.68,
# 0.54 and 0.46, logsumexp 0.81, 0.58 and 0.47; 20 of 50, 100 and 1000 0.65, 0.56 and 0.49, 0.66 to 0.50, 0.79 to 0.50;
# 24 of 21 and 100 0.85 and 0.56; 28 of 100 0.74, 0.72 and 0.76; 30 of 300 0.80, 0.78 and 0.84; 36 of 50 0.89, 0.84 and
# 0.93; 50 of 100 0.91. Not so: 17 of 50 0.83, 0.87 and 1.17, 21 of 50 1.07, 1.07 and 1.28, 28 of 21 1.12, 31 of 100
# 1.12, 60 of 50 1.08. bfloat16 0.45 to 0.85, float64 0.71 to 0.98, by AVX2 0.59 to 0.98. Gradients 0.75 to 1.5.
PACKED_END_ROWS = 3
MOST_PACKED_USE = 0.94

# ---- blocks of rows that are gathered (plan_gathered.py) ----

# Measured on two cores of a Zen 4 (AVX-512, L2 1 MiB, L3 32 MiB), two threads, float32 and bfloat16, as all that
# follows. The elements of a block; what of a core's part of L3 it may take; bytes that lie together in memory of what
# is read and written, the most that a cache has room for. Of 120 views of 2^18 to 2^23 elements, transposed, sliced,
# stepped, broadcast or converted, and of 40 of 2^23 to 2^24: times with 4096 elements over those with 16384 1.05 and
# 1.05, with 65536 0.96 and 1.02; with pieces of 128 bytes over those of 64 0.96 and 0.94, of 256 0.96 and 0.90, then of
# 512 over those of 256 1.02 and 0.97, and of 8192 elements 0.97 and 1.00; without L3 1.03 and 1.05. 100 views of the
# smaller kind by blocks, over what they took before: AVX-512 0.25, AVX2 0.38, SSE 0.60.
GATHERED_ELEMENTS = 1 << 13
GATHERED_SHARE_OF_L3 = 0.25
PIECE_BYTES = (256, 128, 64, 32, 16)
# Rows that are gathered or converted one by one, in their own order, have so many elements. Times of blocks over those,
# converted rows of less than 128 0.41, of less than 256 0.60, of less than 512 0.87, longer ones 1.18.
SHORTEST_ROW_BY_ROW = 512
# Columns of a tile that is read and written where it lies, though others lie beside it along other axes: without
# exponentials and with. Times of blocks over those, 17 and 60 steps of 4, 8 and 16 columns: softmax 0.23 and 0.30, 0.38
# and 0.42, 0.73 and 0.94, log_softmax 0.26 and 0.33, 0.45 and 0.46, 0.82 and 0.96; sums 0.86 and 1.2, 1.06 and 1.08,
# 1.65 and 2.4, softmax's gradient 0.57 and 0.92, 0.85 and 0.97, 1.5 and 2.2.
NARROWEST_TILE_IN_PLACE = (6, 16)
# Columns of a tile of which dy has one value: whole lines, of what is computed with as it is. Times of blocks over
# those, softmax's gradient and log_softmax's: float32 500x40x256, dim 1, 1.5 and 1.15, 8x21x65536 2.4 and 2.1,
# 2048x2048, dim 0, 1.25 and 1.13; but 200x50x561, dim 1, 0.63 and 0.75, 8x21x66049 0.87 and 0.92, though 64x300x300 1.8
# and 1.6; bfloat16 500x40x256 0.71 and 0.58, 2048x2048 0.64 and 0.74.
SHORTEST_REPEATED = 256
# Steps times columns of interleaved rows that follow each other in groups: softmax 8x4 0.24, 20x5 0.32, 50x4 0.64,
# 12x16 1.27, 100x8 1.19, sums 0.27, 0.30, 0.85, 0.52, 1.13, softmax's gradient 0.33, 0.43, 0.63, 1.55, 1.10.
SHORTEST_PACKED_APART = 192
# Elements of rows of which each follows the one before, but for a gap now and then: in groups of so many elements at
# least, which are blocks that nothing is gathered of, and in smaller ones. Groups of 200: softmax of 8 0.57, of 20
# 0.97, log_softmax 0.41 and 0.72, of 40 1.0, sums 0.20, 0.52, of 40 0.63, of 80 0.89; groups of 5 rows: softmax of 14
# 0.84, of 20 1.03, log_softmax of 20 0.73, of 28 0.92, amax of 14 0.69, of 20 1.15.
FEWEST_IN_PLACE = 1024
SHORTEST_ROW_IN_GROUPS = 32
SHORTEST_REDUCED_ROW_IN_GROUPS = 80
SHORTEST_ROW_IN_SMALL_GROUPS = 20
# And of rows with a gap after each: softmax of 8 0.65, of 12 1.0, log_softmax of 20 0.81, of 28 1.0, sums of 8 0.41, of
# 12 0.81, of 16 1.0, amax of 8 0.59, of 12 1.15, softmax's gradient of 4 0.71, of 6 1.09, bfloat16 0.39 and 0.62.
SHORTEST_ROW_WITH_GAPS = {
    **dict.fromkeys(("softmax", "sum", "mean"), 12),
    **dict.fromkeys(("log_softmax", "logsumexp"), 24),
    **dict.fromkeys(("amax", "amin"), 9),
    **dict.fromkeys(("softmax_backward", "log_softmax_backward", "logsumexp_backward"), 6),
}
