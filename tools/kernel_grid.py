"""The grid of problems whose kernels tools/nvrtc_matrix.py compiles: of contiguous arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

# Tiles that several blocks hold in their registers, of every size in the planner's tables.
TILES = (
    *(((steps, 4096), 0) for steps in (512, 768, 2048, 4096, 8192)),
    *(((steps, 1024), 0) for steps in (11000, 16384, 32768)),
    *(((1024, 64), 0), ((4096, 32), 0), ((8192, 16), 0), ((65536, 16), 0), ((65536, 7), 0)),
    *(((64, 1000, 196), 1), ((64, 1000, 197), 1), ((64, 1000, 198), 1)),
    *(((64, 50176, 3), 1), ((128, 8192, 5), 1), ((64, 10000, 3), 1), ((1000, 8192, 2), 1), ((64, 30000, 4), 1)),
    *(((24, 394, 6656), 1), ((128, 512, 256), 1), ((150, 808, 1972), 1), ((32768, 512), 0)),
    *(((165, 82, 5928), 1), ((16, 150, 16384), 1), ((76847, 3, 1123), 1)),
    *(((512, 300, 49), 1), ((256, 500, 49), 1), ((128, 700, 81), 1), ((16, 8400, 80), 1), ((16, 2000, 1024), 1)),
    *(((17, 32000, 37), 1), ((1, 40000, 801), 1), ((16, 20000, 1024), 1)),
)


KNOWN, UNKNOWN = (0, 0, 0, 0), None  # addresses


# Each yields (op, dtype, result dtype, shape, dim, algorithm, addresses), for the kernel that it brings about.


def tier_problems() -> Iterator[tuple]:
    """Softmax by every tier. float16 differs from bfloat16 in its conversions: one kernel of each."""
    lengths = (3, 32, 100, 512, 1000, 1023, 1024, 2048, 4096, 8192, 16384, 32768, 50257, 262144)
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for length in (32, 1023, 4096, 16384, 262144) if dtype == "float16" else lengths:
            yield "softmax", dtype, dtype, (4096, length), 1, None, KNOWN
        yield "softmax", dtype, dtype, (4096, 1000), 1, None, UNKNOWN
        for shape, dim in (((32, 256, 3136), 1), ((4096, 4096), 0), ((64, 1000, 49), 1), ((2, 128256, 16), 1)):
            yield "softmax", dtype, dtype, shape, dim, None, KNOWN


def cluster_problems() -> Iterator[tuple]:
    """Clusters: for each row, in registers and in shared memory; of 4 to 16 blocks, slices of one to four parts."""
    for op in ("softmax", "log_softmax"):
        for rows, length in ((8, 8192), (8, 12001), (8, 32768), (16, 131070), (64, 17001), (300, 50257)):
            yield op, "float32", "float32", (rows, length), 1, None, KNOWN
        for length in (43000, 53247, 84000, 90001, 114687, 140000, 140001, 204799):
            yield op, "float32", "float32", (300, length), 1, None, KNOWN
        for length in (17001, 20000, 20477, 24000, 28001, 40957, 57344, 57345, 80000, 81917):
            yield op, "float32", "float32", (4096, length), 1, None, KNOWN
        for rows, length in ((64, 16384), (64, 65535), (512, 57343), (8, 128255), (64, 32769), (64, 262144)):
            yield op, "bfloat16", "bfloat16", (rows, length), 1, None, KNOWN
        for length in (16385, 18000, 24001, 25600, 32767, 32768, 36000, 48000, 51200, 65536, 75000, 102400, 114688):
            yield op, "bfloat16", "bfloat16", (4096, length), 1, None, KNOWN
        for length in (131072, 200000, 262144):
            yield op, "bfloat16", "bfloat16", (4096, length), 1, None, KNOWN
        # Off the boundaries of packs in shared memory, with every number of packs a thread.
        for blocks, block_packs in ((4, 128), (8, 128), (16, 128), (16, 256)):
            for packs in range(9, 17):
                rows, length = (300, blocks * block_packs * packs)
                yield op, "float32", "float32", (rows, 4 * length - 3), 1, None, KNOWN
        for dtype in ("bfloat16", "float16"):
            for length in (33001, 41001, 45001, 49153, 53001, 57001, 60001, 65537, 90001, 107001, 114687, 131069):
                yield op, dtype, dtype, (4096, length), 1, None, KNOWN
            for length in (33001, 37001, 41001, 45001, 49151, 131073, 151643, 170001, 190001, 202049):
                yield op, dtype, dtype, (600, length), 1, None, KNOWN
        for dtype in ("float32", "bfloat16", "float16"):
            for shape in ((4096, 32768), (64, 20000), (64, 32767), (8, 65536), (600, 90000)):
                yield op, dtype, dtype, shape, 1, None, UNKNOWN
        for dtype, result in (("bfloat16", "float32"), ("float32", "float16"), ("float16", "bfloat16")):
            for shape in ((4096, 32768), (64, 32767), (4096, 36000), (4096, 65536), (64, 65535)):
                yield op, dtype, result, shape, 1, "cluster", KNOWN
    for op in ("softmax", "log_softmax"):
        for length in (40000, 40001, 50256, 65536, 128256, 128257):
            yield op, "float32", "float32", (4096, length), 1, None, KNOWN
        for length in (40000, 40001, 50256, 50257, 100001, 128256, 500001):
            yield op, "bfloat16", "bfloat16", (4096, length), 1, None, KNOWN
        for dtype in ("float32", "bfloat16"):  # and fewer of larger blocks
            for rows, length in ((20, 131072), (64, 128256), (64, 200001)):
                yield op, dtype, dtype, (rows, length), 1, None, KNOWN


def claimed_problems() -> Iterator[tuple]:
    """Slices that blocks claim."""
    for op in ("softmax", "log_softmax"):
        for addresses in (KNOWN, UNKNOWN):
            for shape in ((64, 524288), (64, 524289), (128, 1000003), (512, 524289), (32, 8388608), (16, 8388609)):
                yield op, "float32", "float32", shape, 1, None, addresses
            for shape in ((64, 1048577), (128, 2097152), (32, 8388608)):
                yield op, "bfloat16", "bfloat16", shape, 1, None, addresses
            yield op, "float16", "float16", (512, 1048576), 1, None, addresses
            yield op, "bfloat16", "float32", (128, 2097153), 1, None, addresses
            yield op, "float32", "float16", (128, 2097152), 1, None, addresses


def other_operations() -> Iterator[tuple]:
    """The other operations by every tier, tiles of every size, kernels to compare with."""
    for dtype in ("float32", "bfloat16"):
        for length in (100, 1023, 1024, 8192, 32768, 50257, 262144):
            yield "log_softmax", dtype, dtype, (4096, length), 1, None, KNOWN
        for shape, dim in TILES:
            yield "log_softmax", dtype, dtype, shape, dim, None, KNOWN
            yield "softmax", dtype, dtype, shape, dim, None, KNOWN
        for shape, dim in (((32, 256, 3136), 1), ((2, 128256, 16), 1), ((64, 50176, 3), 1), ((128, 8192, 5), 1)):
            yield "log_softmax", dtype, dtype, shape, dim, None, KNOWN
            yield "logsumexp", dtype, dtype, shape, dim, None, KNOWN
        for length in (1000, 8192, 50257, 128256):
            yield "logsumexp", dtype, dtype, (4096, length), 1, None, KNOWN
        for op in ("sum", "amax"):
            for length in (32, 1023, 4096, 128256):
                yield op, dtype, dtype, (4096, length), 1, None, KNOWN
            yield op, dtype, dtype, (32, 256, 3136), 1, None, KNOWN
        for algorithm in ("block_smem", "block_uncached", "three_pass", "online"):
            yield "softmax", dtype, dtype, (4096, 4096), 1, algorithm, KNOWN
    for op in ("mean", "amin", "sum"):
        for dtype in ("float16", "float64"):
            yield op, dtype, dtype, (4096, 4096), 1, None, KNOWN
            yield op, dtype, dtype, (4096, 64), 0, None, KNOWN


def uneven_row_problems() -> Iterator[tuple]:
    """Rows that would leave some threads of a block with a pack less than others."""
    for addresses in (KNOWN, UNKNOWN):
        for length in (2056, 4104, 5001, 6144):
            for dtype in ("bfloat16", "float16"):
                yield "softmax", dtype, dtype, (4096, length), 1, None, addresses
        for length in (2056, 5001, 6144):
            yield "softmax", "float32", "float32", (4096, length), 1, None, addresses
        for length in (2056, 5001, 7168):
            yield "log_softmax", "float32", "float32", (4096, length), 1, None, addresses
        for op in ("softmax_backward", "log_softmax_backward"):
            for length in (1304, 3000, 5000, 5001, 9000, 9001, 16376):
                yield op, "bfloat16", "bfloat16", (4096, length), 1, None, addresses
            for shape in ((400, 5000), (4096, 5000)):
                yield op, "float16", "float16", shape, 1, None, addresses
            for length in (5000, 5001, 12000):
                yield op, "bfloat16", "float32", (4096, length), 1, None, addresses


def short_row_problems() -> Iterator[tuple]:
    """Rows that lanes of a warp share, of every number of packs."""
    for op in ("softmax", "log_softmax", "logsumexp", "sum", "amax"):
        for dtype in ("float32", "bfloat16", "float64"):
            for length in (3, 33, 77, 100, 150, 300):
                yield op, dtype, dtype, (1 << 20, length), 1, None, KNOWN
            yield op, dtype, dtype, (1 << 20, 33), 1, None, UNKNOWN
        for dtype, result in (("bfloat16", "float32"), ("float32", "float16"), ("float16", "float64")):
            yield op, dtype, result, (1 << 20, 40), 1, "warp_smem", UNKNOWN
    for op in ("softmax", "log_softmax", "logsumexp", "sum", "amax"):
        for dtype in ("bfloat16", "float16"):
            for length in (16, 24, 40, 56, 72, 88, 104, 112, 200, 240, 400, 448, 520, 704, 896, 1032, 1280, 1288, 1536):
                yield op, dtype, dtype, (1 << 20, length), 1, None, KNOWN
            for length in (41, 52, 63, 68, 97, 109, 145, 197, 225, 257, 289, 353, 417, 513, 545, 641, 833, 1153, 1409):
                yield op, dtype, dtype, (1 << 20, length), 1, None, KNOWN
        for length in (12, 20, 28, 36, 40, 56, 72, 100, 132, 160, 196, 200, 260, 1028, 1156, 1284):
            yield op, "float32", "float32", (1 << 20, length), 1, None, KNOWN
        for length in (41, 63, 97, 127, 129, 145, 177, 197, 225, 257, 289, 353, 417, 449, 545, 577, 1029, 1153, 1285):
            yield op, "float32", "float32", (1 << 20, length), 1, None, KNOWN
    for op in ("softmax_backward", "log_softmax_backward"):
        for dtype in ("bfloat16", "float16"):
            for length in (12, 36, 44, 68, 92, 145, 257, 289, 385, 513, 545, 641, 769, 264, 320, 520, 640, 704, 768):
                yield op, dtype, dtype, (1 << 20, length), 1, None, KNOWN
        for length in (10, 14, 20, 48, 65, 66, 79, 100, 130, 200, 260, 300, 400):
            yield op, "float32", "float32", (1 << 20, length), 1, None, KNOWN
    for op in ("softmax", "log_softmax", "logsumexp", "sum", "softmax_backward", "log_softmax_backward"):
        for rows, length in itertools.product((20000, 1 << 20), (5, 12, 22, 41, 64, 129, 197, 250)):
            yield op, "float64", "float64", (rows, length), 1, None, KNOWN
        for dtype in ("float32", "bfloat16"):
            for rows, length in itertools.product((4000, 20000), (9, 24, 45, 72, 103, 160, 197, 276)):
                yield op, dtype, dtype, (rows, length), 1, None, KNOWN
    for dtype in ("float32", "bfloat16", "float64"):
        for length in (3, 7, 11, 14, 18, 20, 40, 66, 96, 136, 197, 300, 500):
            yield "logsumexp_backward", dtype, dtype, (1 << 20, length), 1, None, KNOWN
    for dtype in ("bfloat16", "float16"):  # blocks of as many warps as hold a row
        for length in (1032, 1153, 1401, 1672, 2305, 2312, 2561, 2824, 3001, 4105, 4200, 4401, 5001):
            for op in ("softmax_backward", "log_softmax_backward"):
                yield op, dtype, dtype, (4000, length), 1, None, KNOWN
        for length in (2305, 2312, 3001, 4105, 5000, 5001, 7001):
            for op in ("log_softmax", "logsumexp"):
                yield op, dtype, dtype, (4000, length), 1, None, KNOWN


def slab_problems() -> Iterator[tuple]:
    """Short rows whose elements take turns: for a warp and for a block, few and many registers."""
    shapes = ((1 << 18, 8, 3), (1 << 18, 48, 2), (1 << 16, 40, 33), (1 << 14, 60, 49), (1 << 14, 600, 3))
    for shape in shapes:
        for dtype in ("float32", "bfloat16", "float64"):
            for op in (
                "softmax",
                "log_softmax",
                "logsumexp",
                "sum",
                "amax",
                "softmax_backward",
                "log_softmax_backward",
            ):
                yield op, dtype, dtype, shape, 1, "warp_smem", KNOWN
        for dtype, result in (("bfloat16", "float32"), ("float32", "float16")):
            yield "softmax", dtype, result, shape, 1, "warp_smem", UNKNOWN


def column_problems() -> Iterator[tuple]:
    """Columns: those that are read once, and two reduced axes that do not lie together."""
    for op in ("logsumexp", "sum"):
        for dtype in ("float32", "bfloat16", "float64"):
            for shape, dim in (
                *(((8, 21, 513 * 513), 1), ((512, 300, 49), 1), ((300, 300, 300), 1), ((1001, 10001), 0)),
                *(((10000, 1001), 0), ((16, 8400, 80), 1), ((64, 1000, 196), 1), ((1000, 1000), 0)),
                *(((8192, 8192), 0), ((1024, 1000, 3), 1), ((1000000, 10), 0), ((65536, 64), 0)),
                *(((500, 64), 0), ((3000, 300), 0), ((2000, 1000), 0), ((4096, 1024), 0), ((20000, 500), 0)),
                *(((5000, 1501), 0), ((64, 50176, 3), 1), ((512, 50176, 3), 1), ((256, 2000, 7), 1)),
                *(((846, 3, 6127), 1), ((4096, 7, 128), 1), ((55, 12, 21213), 1), ((110, 36, 9409), 1)),
                *(((165, 82, 5928), 1), ((24, 394, 6656), 1)),
            ):
                yield op, dtype, dtype, shape, dim, None, KNOWN
    for op in ("softmax", "log_softmax", "sum"):  # two reduced axes that do not lie together
        yield op, "float32", "float32", (8, 16, 32, 64), (0, 2), None, KNOWN


def few_reduced_problems() -> Iterator[tuple]:
    """Few rows that are read once, by clusters and by blocks of 512 and 1024."""
    for op in ("logsumexp", "sum", "amax"):
        for dtype in ("float32", "bfloat16", "float64"):
            for shape in ((1, 40000), (50, 40001), (1, 1 << 20), (1, (1 << 20) + 1), (1, 1 << 26), (1, (1 << 26) + 1)):
                yield op, dtype, dtype, shape, 1, None, KNOWN


def few_row_problems() -> Iterator[tuple]:
    """Rows so few that as many threads as there is room for have each of them."""
    for addresses in (KNOWN, UNKNOWN):
        for op in ("sum", "mean", "amax"):
            for shape in ((64, 400), (64, 1000), (64, 1001), (64, 1500), (264, 3501)):
                yield op, "float32", "float32", shape, 1, None, addresses
            for shape in ((64, 800), (64, 2048), (64, 3501), (64, 7001)):
                yield op, "bfloat16", "bfloat16", shape, 1, None, addresses
        for shape in ((64, 1100), (64, 800), (64, 1001), (264, 4096), (264, 2001)):
            yield "log_softmax_backward", "float32", "float32", shape, 1, None, addresses
        for op in ("softmax", "log_softmax", "logsumexp"):
            for length in (1300, 2001, 2048):
                yield op, "float32", "float32", (64, length), 1, None, addresses
        for length in (7001, 8000, 8192):
            yield "log_softmax", "float32", "float32", (4096, length), 1, None, addresses
        for shape in ((500, 4104), (500, 5001), (4000, 7001), (1000, 8192)):
            for dtype in ("bfloat16", "float16"):
                yield "logsumexp", dtype, dtype, shape, 1, None, addresses


def few_clustered_problems() -> Iterator[tuple]:
    """Rows so few, or float32 gradients of such a length, that clusters have them in registers; longer gradients of
    which they have one each in shared memory; and what is read once by every size of cluster."""
    for addresses in (KNOWN, UNKNOWN):
        for op in ("softmax", "log_softmax"):
            for shape in ((30, 4100), (30, 5001), (3, 140001), (3, 163840)):
                yield op, "float32", "float32", shape, 1, None, addresses
            for dtype in ("bfloat16", "float16"):
                for shape in ((30, 7001), (3, 180001), (3, 262144)):
                    yield op, dtype, dtype, shape, 1, None, addresses
        for op in ("softmax_backward", "log_softmax_backward"):
            for rows, length in (
                (16, 7168),
                (30, 9001),
                (30, 16380),
                (30, 20001),
                (30, 32768),
                (8, 100001),
                (8, 131072),
            ):
                yield op, "float32", "float32", (rows, length), 1, None, addresses
            for rows, length in ((400, 9001), (400, 12288), (400, 16383), (30, 140001), (30, 221183)):
                yield op, "float32", "float32", (rows, length), 1, None, addresses
            for rows, length in ((16, 7168), (30, 9001), (30, 20001), (8, 50257), (2000, 9001), (2000, 16383)):
                yield op, "bfloat16", "bfloat16", (rows, length), 1, None, addresses
            for length in (200000, 289112, 423197):
                yield op, "bfloat16", "bfloat16", (140, length), 1, None, addresses
            for rows, length in ((30, 12001), (8, 65001), (400, 12001), (140, 289112)):
                yield op, "bfloat16", "float32", (rows, length), 1, None, addresses
        for op in ("logsumexp", "sum", "amax"):
            for shape in (
                (30, 6000),
                (60, 6001),
                (60, 12289),
                (30, 12000),
                (1, 150001),
                (8, 50257),
                (16, 100001),
                (33, 40000),
            ):
                yield op, "float32", "float32", shape, 1, None, addresses
            for shape in ((30, 12001), (60, 24577), (1, 524288), (8, 100001), (16, 150000), (33, 80001)):
                yield op, "bfloat16", "bfloat16", shape, 1, None, addresses


def lone_reduced_problems() -> Iterator[tuple]:
    """Long rows that have a multiprocessor each."""
    for op in ("sum", "mean", "amax"):
        for dtype in ("float32", "bfloat16", "float64"):
            for length in (131072, 131073):
                yield op, dtype, dtype, (70, length), 1, None, KNOWN


def conversion_problems() -> Iterator[tuple]:
    """Results of another type."""
    for dtype, result in (
        ("bfloat16", "float32"),
        ("float32", "float16"),
        ("float16", "float64"),
        ("float64", "float32"),
    ):
        yield "softmax", dtype, result, (4096, 1000), 1, None, KNOWN
        yield "log_softmax", dtype, result, (4096, 8192), 1, None, KNOWN
        for shape, dim in (((4096, 4096), 0), ((64, 1000, 196), 1), ((65536, 16), 0)):
            yield "softmax", dtype, result, shape, dim, None, KNOWN
    for dtype in ("float32", "bfloat16"):  # whose states are as large as states are
        for op in ("sum", "amax", "logsumexp"):
            for shape in ((28770, 4508), (20000, 300), (401, 3092)):
                yield op, dtype, "float64", shape, 0, None, KNOWN


def shared_row_problems() -> Iterator[tuple]:
    """Rows that several blocks share."""
    for dtype in ("float32", "bfloat16", "float64"):
        for shape in ((1, 128256), (32, 128256), (1, 4194303), (128, 2097152), (2, 1 << 25)):
            yield "softmax", dtype, dtype, shape, 1, None, KNOWN
        yield "softmax", dtype, dtype, (32, 128257), 1, "split", UNKNOWN
        for shape in ((4, 32768), (128, 32768), (128, 65536), (128, 90000)):
            yield "softmax", dtype, dtype, shape, 1, "cluster", KNOWN
        for op in ("softmax", "log_softmax", "logsumexp", "sum", "amax"):
            yield op, dtype, dtype, (128, 50257), 1, "cluster", UNKNOWN
        for op in ("log_softmax", "logsumexp", "sum", "amax"):
            yield op, dtype, dtype, (8, 1 << 20), 1, None, KNOWN
            yield op, dtype, dtype, (2, 128256, 16), 1, None, KNOWN
        yield "softmax", dtype, dtype, (1 << 20, 7), 0, None, KNOWN
    yield "softmax", "float16", "float16", (32, 128256), 1, None, KNOWN


def gradient_problems() -> Iterator[tuple]:
    """The backward passes."""
    for op in ("softmax_backward", "log_softmax_backward"):
        for length in (225001, 230000, 250000, 350001, 600000, 1048576, 1000003, 2097152, 2097153, 4194304, 4194301):
            yield op, "float32", "float32", (64, length), 1, None, KNOWN
        for dtype in ("bfloat16", "float16"):  # and rows that blocks claim slices of
            for length in (450001, 1000003, 4194304, 8388608, 8388601):
                yield op, dtype, dtype, (64, length), 1, None, KNOWN
        for length in (600001, 4194304):
            yield op, "bfloat16", "float32", (64, length), 1, None, KNOWN
            yield op, "float32", "bfloat16", (64, length), 1, None, KNOWN
        for dtype in ("float32", "bfloat16"):
            for length in (3, 32, 100, 512, 1023, 1024, 4096, 8192, 16384, 50257, 262144):
                yield op, dtype, dtype, (4096, length), 1, None, KNOWN
            for length in (1000, 4096, 262144):
                yield op, dtype, dtype, (4096, length), 1, None, UNKNOWN
            for shape, dim in (*TILES, ((32, 256, 3136), 1), ((64, 1000, 49), 1), ((2, 128256, 16), 1)):
                yield op, dtype, dtype, shape, dim, None, KNOWN
            for shape, dim in (
                ((8, 21, 262144), 1),
                ((100, 1000), 0),
                ((300, 40), 0),
                ((16, 20000, 4096), 1),
                ((256, 5000, 3), 1),
                ((73, 2, 61825), 1),
                ((6768, 6, 1387), 1),
                ((4096, 8, 128), 1),
                ((4557, 15, 117), 1),
            ):
                yield op, dtype, dtype, shape, dim, None, KNOWN
        for dtype in ("float32", "bfloat16", "float64"):  # many short rows
            for length in (3, 33, 64, 101, 126):
                yield op, dtype, dtype, (1 << 20, length), 1, None, KNOWN
    for dtype in ("float16", "float64"):
        for length in (1023, 4096, 262144) if dtype == "float16" else (100, 1023, 4096, 8192, 16384, 262144):
            yield "softmax_backward", dtype, dtype, (4096, length), 1, None, KNOWN
        for length in (1000, 30000, 262144):
            yield "softmax_backward", dtype, dtype, (4096, length), 1, None, UNKNOWN
        yield "softmax_backward", dtype, dtype, (4096, 64), 0, None, KNOWN
    for op in ("softmax_backward", "log_softmax_backward"):  # rows that several blocks share, or that one could
        for dtype in ("float32", "bfloat16") if op.startswith("log") else ("float32", "bfloat16", "float64"):
            for shape in ((1, 128256), (32, 128257), (1, 1 << 20), (128, 2097152), (2, 1 << 25)):
                yield op, dtype, dtype, shape, 1, None, KNOWN
        for dtype in ("float32", "bfloat16"):
            for algorithm in ("split", "stream", "block_uncached"):
                yield op, dtype, dtype, (32, 128257), 1, algorithm, UNKNOWN
            yield op, dtype, dtype, (32, 64001), 1, "cluster", UNKNOWN
            yield op, dtype, dtype, (4096, 262144), 1, "block_uncached", KNOWN
    for dtype, result in (("bfloat16", "float32"), ("float32", "float16"), ("float16", "float64")):
        yield "softmax_backward", dtype, result, (8, 128256), 1, None, KNOWN
        for shape, dim in (((4096, 4096), 0), ((64, 1000, 196), 1), ((65536, 16), 0)) if result != "float64" else ():
            yield "softmax_backward", dtype, result, shape, dim, None, KNOWN
        yield "softmax_backward", dtype, result, (4096, 1000), 1, None, KNOWN
        yield "log_softmax_backward", dtype, result, (4096, 8192), 1, None, KNOWN
    yield "softmax_backward", "float16", "float16", (32, 128257), 1, None, KNOWN
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for length in (32, 1000, 8192, 50257):
            yield "logsumexp_backward", dtype, dtype, (4096, length), 1, None, KNOWN
        yield "logsumexp_backward", dtype, dtype, (32, 256, 3136), 1, None, KNOWN
    yield "softmax_backward", "float32", "float32", (8, 16, 32, 64), (0, 2), None, KNOWN


def cut_by_cost_problems() -> Iterator[tuple]:
    """Columns whose cut has the least cost, and those of 16 bits that logarithms hold in pairs."""
    columns = (
        *((26, 6591, 4), (1, 29802, 24), (13, 7331, 2), (8, 16118, 2)),
        # Of few neighbours, cheaper than the tables' tiles: as many registers as a thread may hold, and fewer.
        *((387, 6894, 8), (41, 7263, 7), (284, 386, 8), (7, 586, 4), (72, 114, 2), (1661, 626, 30)),
        *((7, 29918, 19), (46, 6341, 4), (2000, 1536, 4), (3000, 90, 16), (30, 29919, 19)),
        *((332, 32025, 2), (161, 39918, 2), (100, 131071, 2), (304, 10199, 3), (335, 28230, 4), (361, 6839, 6)),
        *((110, 24938, 8), (2577, 1428, 16), (1018, 700, 28)),
    )
    for op in ("softmax", "log_softmax", "logsumexp", "softmax_backward", "log_softmax_backward"):
        for dtype in ("float32", "bfloat16"):
            for shape in columns:
                yield op, dtype, dtype, shape, 1, None, KNOWN
    for dtype in ("float32", "bfloat16", "float64"):
        for shape in ((232, 87589, 2), (12, 88469, 64), (1, 1984, 32), (1, 438, 23), (4096, 64, 4096)):
            yield "logsumexp_backward", dtype, dtype, shape, 1, None, KNOWN
    halves = (420, 536, 128), (190, 1035, 56), (16, 150, 16384), (1, 427, 840), (390, 107, 56), (25, 181, 6376)
    for dtype in ("bfloat16", "float16"):
        for shape in halves:
            yield "log_softmax", dtype, dtype, shape, 1, None, KNOWN


def run_problems() -> Iterator[tuple]:
    """Long columns with few neighbours, whole packs and not, and the widest."""
    shapes = (
        *((3, 678102, 43), (3, 678104, 7), (1, 4901632, 22), (2, 300000, 300)),
        *((1, 600000, 219), (2, 60000, 1000), (1, 600000, 701), (2, 50000, 1100), (1, 60000, 3000)),
    )
    for op in ("softmax", "log_softmax", "logsumexp", "sum", "amax", "softmax_backward", "log_softmax_backward"):
        for dtype in ("float32", "bfloat16", "float16", "float64"):
            for shape in shapes if dtype in ("float32", "bfloat16") else shapes[:2]:
                yield op, dtype, dtype, shape, 1, None, KNOWN
    for dtype, result in (("bfloat16", "float32"), ("float32", "float16"), ("float16", "float64")):
        for op in ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward"):
            yield op, dtype, result, (3, 678102, 43), 1, None, KNOWN
    for op in ("softmax", "log_softmax", "logsumexp", "softmax_backward", "log_softmax_backward"):  # and their ends
        for shape in (
            (1, 600001, 43),
            (3, 678101, 43),
            (1, 60000, 801),
            (1, 60001, 801),
            (3, 60001, 801),
            (3, 60001, 701),
        ):
            for dtype in ("float32", "bfloat16", "float16"):
                yield op, dtype, dtype, shape, 1, None, KNOWN
            if op != "logsumexp":
                yield op, "bfloat16", "float32", shape, 1, None, KNOWN
                yield op, "float32", "bfloat16", shape, 1, None, KNOWN
    for dtype in ("float32", "bfloat16"):
        for op, shape in (("logsumexp", (1, 86670, 487)), ("logsumexp", (1, 466574, 551)), ("sum", (3, 251651, 629))):
            yield op, dtype, "float64", shape, 1, None, KNOWN


PARTS = (
    tier_problems,
    cluster_problems,
    claimed_problems,
    uneven_row_problems,
    other_operations,
    short_row_problems,
    slab_problems,
    column_problems,
    few_reduced_problems,
    few_row_problems,
    few_clustered_problems,
    lone_reduced_problems,
    conversion_problems,
    shared_row_problems,
    gradient_problems,
    cut_by_cost_problems,
    run_problems,
)
