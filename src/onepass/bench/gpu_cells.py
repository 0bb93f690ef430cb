"""What is measured on a GPU: the registry of its cells, in the order of the questions they answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onepass.bench.cells import ITEM_BYTES, VIEWS, Cell
from onepass.cuda.tuning import Tuning

OTHERS = ("torch.compile", "quack", "liger", "cupy", "jax")  # beside onepass and torch, which always take part


@dataclass(frozen=True)
class Variant:
    """One of onepass's kernels, or one with a parameter held fixed, as a contender of its own."""

    name: str
    algorithm: str | None = None
    tuning: Tuning | None = None


@dataclass(frozen=True)
class GpuCell(Cell):
    """A cell whose input is a tensor on a GPU."""

    variants: tuple[Variant, ...] = ()
    peers: tuple[str, ...] = OTHERS  # that take part, of OTHERS

    @property
    def name(self) -> str:
        return f"{self.group}-{super().name}"  # one shape may be there for several reasons

    @property
    def needed_bytes(self) -> int:
        """Memory for the run: input, `out=`, a fresh result, a temporary of float32 and the copy that flushes L2."""
        memory = math.prod(self.memory_shape) * ITEM_BYTES[self.dtype]
        return memory + 2 * self.input_bytes + 4 * math.prod(self.shape) + (1 << 30)

    @property
    def checked_rows(self) -> int:
        """Rows compared with the reference: about 2^18 elements; the first and the last row at least."""
        rows = math.prod(self.shape) // self.length
        return min(rows, max(2, (1 << 18) // self.length))


# three_pass is the textbook's kernel, by element; `online, by element` differs from it in nothing but the recurrence,
# `uncached` and `online` by packs.
_SEED_KERNELS = (
    Variant("three_pass", "three_pass"),
    Variant("online, by element", "online", Tuning(pack=1, threads=256)),
    Variant("uncached", "block_uncached"),
    Variant("online", "online", Tuning(threads=512)),
)
_SEED_LENGTHS = (2048, 32728, 65536, 131072, 262144, 524288, 2097152, 4194304)
_ONEFLOW_LENGTHS = (32, 64, 128, 256, 512, 768, 1024, 2048, 4096, 8192, 16384, 32768)
_ATTENTION_SIZES = (64, 128, 256, 512, 1024)
# The plane: its corners, where a launch is all there is, and where an array takes 4 GiB; a row for each multiprocessor
# or fewer, some, many; classes and vocabularies among the columns.
_PLANE_ROWS = (1, 8, 64, 512, 4096, 16384, 65536)
_PLANE_COLUMNS = (32, 256, 1000, 2048, 8192, 32768, 50257, 128256, 524288, 4194304)
_PLANE_BYTES = 4 << 30
# CuPy and JAX hold no place on it that others do not hold, and every cell costs seconds.
_PLANE_PEERS = ("torch.compile", "quack", "liger")
_WAITS = tuple(Variant(name, name) for name in ("block", "block_smem", "block_uncached", "online"))


def _tunings(lanes_of: int, item_bytes: int) -> tuple[Variant, ...]:
    """What each idea of the warp algorithm is worth on rows of that many elements: packs, rows per access, padding."""
    packs = (1, 2, 4) if item_bytes == 4 else (1, 2, 4, 8)
    variants = [Variant(f"pack {n}", "warp", Tuning(pack=n)) for n in packs if lanes_of >= n]
    variants += [Variant(f"rows {n}", "warp", Tuning(rows=n)) for n in (1, 2, 4)]
    return (*variants, Variant("padded", "warp", Tuning(padded=True)))


_BACKWARD = (
    # (shape, dim, dtype, why)
    ((32768, 4096), -1, "bfloat16", "the home of every peer"),
    ((4096, 131072), -1, "bfloat16", "rows of which two arrays fit no block"),
    ((1, 128256), -1, "float32", "one row of a vocabulary"),
    ((65536, 32), -1, "float32", "rows of a few lanes"),
    ((65536, 128), -1, "bfloat16", "rows of a few lanes, 16 bits"),
    ((32768, 256), -1, "bfloat16", "a warp"),
    ((65536, 1000), -1, "float32", "classes: a small block"),
    ((16384, 1024), -1, "float32", "attention scores"),
    ((16384, 2048), -1, "bfloat16", "attention scores, 16 bits"),
    ((8192, 8192), -1, "float32", "the longest row of registers with several blocks"),
    ((8192, 8192), -1, "bfloat16", "the same in 16 bits"),
    ((4096, 16384), -1, "bfloat16", "shared memory"),
    ((4096, 32000), -1, "bfloat16", "a vocabulary in shared memory"),
    ((4096, 50257), -1, "bfloat16", "an odd vocabulary"),
    ((2048, 32768), -1, "float32", "just beyond shared memory"),
    ((1024, 65536), -1, "bfloat16", "a little beyond shared memory"),
    ((128, 131072), -1, "float32", "a row for each multiprocessor"),
    ((16, 1048576), -1, "float32", "fewer rows than multiprocessors"),
    ((8, 128256), -1, "bfloat16", "decoding"),
    ((1, 1048576), -1, "float32", "one huge row"),
    ((32, 256, 56, 56), 1, "float32", "channels of an image"),
    ((64, 1000, 196), 1, "float32", "classes of a dense classifier"),
    ((8, 21, 512, 512), 1, "float32", "segmentation"),
    ((16, 150, 128, 128), 1, "bfloat16", "segmentation, 16 bits"),
    ((2, 128256, 16), 1, "float32", "vocabulary before a small inner"),
    ((4096, 4096), 0, "float32", "the columns of a matrix"),
)
_BACKWARD_BLOCKS = (
    *(Variant(f"block of {n}", "block", Tuning(threads=n)) for n in (256, 512)),
    Variant("block of 256, 5 resident", "block", Tuning(threads=256, resident=5)),
)
_BACKWARD_KEPT = (
    Variant("part in shared memory", "block_uncached"),
    Variant("512 threads", "block_uncached", Tuning(threads=512)),
    Variant("nothing kept", "block_uncached", Tuning(kept=0)),
)


_BACKWARD_SHARED = (
    Variant("all in shared memory", "block_smem"),
    Variant("a part, 2 blocks", "block_uncached", Tuning(threads=512, resident=2)),
    Variant("a part, 3 blocks", "block_uncached", Tuning(threads=512, resident=3)),
)


def _gradients() -> list[GpuCell]:
    cells = [
        GpuCell("backward", "softmax_backward", shape, why, dim, dtype, quick=shape == (32768, 4096))
        for shape, dim, dtype, why in _BACKWARD
    ]
    for op, shape in (
        ("log_softmax_backward", (32768, 4096)),
        ("log_softmax_backward", (8192, 32000)),
        ("log_softmax_backward", (4096, 50257)),
        ("logsumexp_backward", (32768, 4096)),
        ("logsumexp_backward", (4096, 128256)),
        ("logsumexp_backward", (4096, 50257)),
    ):
        cells.append(GpuCell("backward", op, shape, "the other gradients", dtype="bfloat16"))
    for shape, dtype, variants in (
        ((32768, 4096), "bfloat16", (*_BACKWARD_BLOCKS, Variant("shared memory", "block_smem"))),
        ((16384, 4096), "float32", (*_BACKWARD_BLOCKS, Variant("shared memory", "block_smem"))),
        ((8192, 32000), "bfloat16", _BACKWARD_SHARED),
        ((4096, 50257), "bfloat16", _BACKWARD_SHARED),
        ((8192, 16384), "float32", _BACKWARD_SHARED),
        ((4096, 131072), "bfloat16", _BACKWARD_KEPT),
        ((2048, 65536), "float32", _BACKWARD_KEPT),
    ):
        group, op, why = "backward_waiting", "softmax_backward", "where a row of two arrays waits"
        cells.append(GpuCell(group, op, shape, why, dtype=dtype, variants=variants, peers=()))
    return cells


def _long() -> list[GpuCell]:
    odd, megabytes = "rows off the boundaries of packs", "rows of megabytes"
    both = f"{megabytes}, off those boundaries"
    return [
        GpuCell("long", "softmax", shape, why, dtype=dtype, peers=_PLANE_PEERS)
        for dtype, shape, why in (
            ("float32", (4096, 50257), odd),
            ("float32", (4096, 128257), odd),
            ("bfloat16", (4096, 40001), odd),
            ("bfloat16", (4096, 50257), odd),
            ("bfloat16", (4096, 128257), odd),
            ("float32", (64, 524289), both),
            ("float32", (128, 1000003), both),
            ("float32", (128, 2097153), both),
            ("bfloat16", (128, 1000003), both),
            ("float32", (512, 524288), megabytes),
            ("float32", (256, 1048576), megabytes),
            ("float32", (8, 4194304), megabytes),
            ("bfloat16", (128, 2097152), megabytes),
            ("bfloat16", (32, 8388608), megabytes),
        )
    ]


# Shapes that no table of a peer has, and programs do.
_SHORT: dict[tuple[int, ...], str] = {
    (4194304, 3): "colours of pixels",
    (1048576, 10): "digits",
    (262144, 33): "a class more than a power of two",
    (131072, 77): "tokens of a caption",
    (131072, 100): "classes, whole packs of float32",
    (65536, 150): "classes of a segmentation",
    (65536, 197): "patches of an image",
}
_TILES: dict[tuple[int, ...], tuple[int, str]] = {
    (1024, 1000, 3): (1, "few neighbours"),
    (32, 1000, 3): (1, "few neighbours, few tiles"),
    (4096, 100, 5): (1, "few neighbours, a short dim"),
    (64, 50176, 3): (1, "pixels of images, few neighbours and a long dim"),
    (512, 300, 49): (1, "an odd number of neighbours"),
    (8, 21, 513, 513): (1, "segmentation, an odd image"),
    (16, 8400, 80): (1, "boxes of a detector"),
    (1000, 1000): (0, "the columns of a small matrix"),
    (10000, 1001): (0, "columns of samples, an odd number"),
    (65536, 64): (0, "few columns of many samples"),
}

# Dim 1 is long, and beyond it lie few neighbours: together they are a run of memory.
_RUNS = (
    # (op, shape, dtype, why)
    ("softmax", (3, 678102, 43), "float32", "an odd number of neighbours"),
    ("softmax", (675, 65410, 5), "float32", "five neighbours, many runs"),
    ("softmax", (8, 200000, 12), "bfloat16", "runs that L2 holds"),
    ("softmax", (1, 1000000, 32), "float32", "one run, whole packs"),
    ("softmax", (2, 204613, 392), "bfloat16", "many neighbours"),
    ("log_softmax", (2, 207377, 84), "float32", "neighbours in packs"),
    ("log_softmax", (1, 118429, 181), "bfloat16", "an odd number, 16 bits"),
    ("logsumexp", (3, 678102, 43), "float32", "read once"),
    ("logsumexp", (11, 1245213, 18), "bfloat16", "read once, 16 bits"),
    ("sum", (13, 121734, 56), "float32", "a plain reduction"),
    ("amax", (4, 1010660, 23), "bfloat16", "a plain reduction, 16 bits"),
    ("softmax_backward", (361, 177020, 3), "float32", "pixels of images"),
    ("softmax_backward", (300, 70000, 7), "bfloat16", "seven neighbours, 16 bits"),
    ("log_softmax_backward", (2, 861971, 40), "bfloat16", "a run that L2 does not hold"),
)

# Short rows of which a few take turns, and many such: along dim 1.
_SLABS = (
    ("softmax", (200000, 48, 2), "float32", "two neighbours"),
    ("softmax", (474412, 48, 3), "float32", "three neighbours"),
    ("softmax", (170000, 20, 5), "bfloat16", "five neighbours, 16 bits"),
    ("softmax", (12000, 200, 7), "float32", "steps of an odd number of heads"),
    ("softmax", (3424, 100, 49), "float32", "a patch of 7 x 7"),
    ("log_softmax", (100000, 20, 8), "bfloat16", "steps of eight heads"),
    ("log_softmax", (3424, 48, 49), "float32", "a patch of 7 x 7"),
    ("logsumexp", (56000, 100, 3), "bfloat16", "read once"),
    ("sum", (170000, 48, 2), "float32", "a plain reduction"),
    ("softmax_backward", (170000, 20, 5), "float32", "a gradient"),
    ("softmax_backward", (100000, 77, 2), "bfloat16", "a gradient, two neighbours of 16 bits"),
    ("log_softmax_backward", (116508, 48, 3), "bfloat16", "a gradient, 16 bits"),
)

# Columns that random problems found to be cut badly: along dim 1.
_COLUMNS = (
    ("log_softmax", (16, 150, 16384), "bfloat16", "classes of a segmentation, 16 bits"),
    ("log_softmax", (420, 536, 128), "bfloat16", "more steps of 16 bits"),
    ("log_softmax", (1, 427, 840), "bfloat16", "few columns of 16 bits"),
    ("softmax", (6, 4290, 3), "float32", "few long columns"),
    ("log_softmax", (26, 6591, 4), "float32", "few long columns, four neighbours"),
    ("logsumexp", (1, 29802, 24), "bfloat16", "few long columns, read once"),
    ("softmax_backward", (8, 16118, 2), "bfloat16", "a gradient of few long columns"),
    ("log_softmax", (41, 7263, 7), "float32", "few neighbours"),
    ("softmax", (1000, 5000, 3), "float32", "fewer of them"),
    ("logsumexp", (7, 29918, 19), "bfloat16", "few neighbours, read once"),
    ("softmax", (300, 30000, 2), "float32", "two channels, held instead of read twice"),
    ("log_softmax", (332, 32025, 2), "bfloat16", "two channels of 16 bits"),
    ("softmax", (361, 6839, 6), "float32", "six neighbours"),
    ("log_softmax", (718, 2888, 16), "bfloat16", "as many halves as threads of clusters hold"),
    ("softmax_backward", (300, 30000, 2), "float32", "a gradient of two channels"),
    ("log_softmax_backward", (335, 28230, 4), "float32", "a gradient of four neighbours"),
    ("logsumexp_backward", (232, 87589, 2), "bfloat16", "no sum is needed: two neighbours"),
    ("logsumexp_backward", (12, 88469, 64), "float32", "the same, many neighbours"),
    ("logsumexp_backward", (1, 1984, 32), "float32", "the same of few"),
)


# Rows a little longer than a power of two, or than what a block holds evenly: vocabularies of characters and of speech.
_UNEVEN = (
    ("softmax", (8000, 2056), "bfloat16", "a pack more than a power of two"),
    ("softmax", (1400, 5000), "bfloat16", "syllables"),
    ("softmax", (8000, 5001), "bfloat16", "syllables and one"),
    ("softmax", (1400, 3000), "float32", "words of a command"),
    ("log_softmax", (8000, 4104), "float32", "a pack more than a power of two"),
    ("log_softmax", (1400, 5001), "float32", "syllables and one"),
    ("log_softmax", (8000, 6288), "float32", "characters"),
    ("softmax_backward", (8000, 1304), "bfloat16", "a gradient"),
    ("softmax_backward", (1400, 3000), "bfloat16", "a gradient, longer"),
    ("softmax_backward", (400, 5568), "bfloat16", "a gradient of few rows"),
    ("softmax_backward", (8000, 5000), "bfloat16", "a gradient of many rows"),
    ("log_softmax_backward", (1335, 6288), "bfloat16", "a gradient, characters"),
    ("log_softmax_backward", (8000, 5001), "bfloat16", "a gradient, syllables and one"),
    ("log_softmax_backward", (1400, 10000), "bfloat16", "a gradient, longer than a block holds"),
    ("log_softmax_backward", (1400, 10001), "bfloat16", "the same and one"),
)


def _everyday() -> list[GpuCell]:
    cells = []
    for dtype in ("float32", "bfloat16"):
        for shape, why in _SHORT.items():
            ops = ["softmax", "log_softmax", "logsumexp", "sum"] + ["softmax_backward"] * (shape[1] in (3, 33))
            cells += [GpuCell("short", op, shape, why, dtype=dtype) for op in ops]
        for shape, (dim, why) in _TILES.items():
            cells += [GpuCell("tiles", op, shape, why, dim, dtype) for op in ("softmax", "logsumexp", "sum")]
    for group, of_group in (("runs", _RUNS), ("slabs", _SLABS), ("columns", _COLUMNS)):
        cells += [GpuCell(group, op, shape, why, 1, dtype, peers=()) for op, shape, dtype, why in of_group]
    cells += [GpuCell("uneven", op, shape, why, dtype=dtype) for op, shape, dtype, why in _UNEVEN]
    return cells


def _views() -> list[GpuCell]:
    return [
        GpuCell("views", op, shape, why, dim, dtype, view=view, peers=("torch.compile",))
        for _, shape, dim, view, why in VIEWS
        for dtype in ("float32", "bfloat16")
        for op in ("softmax", "logsumexp", "softmax_backward")
    ]


def _plane() -> list[GpuCell]:
    return [
        GpuCell(f"plane_{dtype}", "softmax", (rows, columns), "rows x columns", dtype=dtype, peers=_PLANE_PEERS)
        for dtype in ("float32", "bfloat16")
        for columns in _PLANE_COLUMNS
        for rows in _PLANE_ROWS
        if rows * columns * ITEM_BYTES[dtype] <= _PLANE_BYTES
    ]


def _registry() -> tuple[GpuCell, ...]:
    cells = []
    for n in _SEED_LENGTHS:
        why = "the online softmax seed's table: few rows, up to 16 MiB each"
        cells.append(GpuCell("seeds", "softmax", (128, n), why, variants=_SEED_KERNELS, quick=n in (2048, 131072)))
    for dtype in ("float32", "float16"):
        for n in _ONEFLOW_LENGTHS:
            why = "OneFlow's table: many rows"
            cells.append(GpuCell("oneflow", "softmax", (49152, n), why, dtype=dtype, quick=n == 1024))
    for n in _ATTENTION_SIZES:
        why = "OneFlow's table: attention scores"
        cells.append(GpuCell("oneflow", "softmax", (32, 64, n, n), why, dtype="float16"))
    for dtype, size in (("float32", 4), ("float16", 2)):
        for n in (128, 512, 1024) if size == 4 else (256, 1024):
            why = "warp: packs, rows per access, padding"
            cells.append(
                GpuCell("ablation", "softmax", (49152, n), why, dtype=dtype, variants=_tunings(n, size), peers=())
            )
    for n in (4096, 16384, 32768):
        why = "where a row waits: registers, shared memory, nowhere"
        cells.append(GpuCell("waiting", "softmax", (8192, n), why, variants=_WAITS, peers=()))
    for shape, dim, dtype, why in (
        ((32, 256, 56, 56), 1, "float32", "channels of an image"),
        ((64, 1000, 196), 1, "float32", "classes of a dense classifier"),
        ((8, 21, 512, 512), 1, "float32", "segmentation"),
        ((16, 150, 128, 128), 1, "bfloat16", "segmentation, 16 bits"),
        ((2, 128256, 16), 1, "float32", "vocabulary before a small inner"),
        ((4096, 8, 128), 1, "bfloat16", "a very short dim"),
        ((4096, 4096), 0, "float32", "the columns of a matrix"),
    ):
        cells.append(GpuCell("strided", "softmax", shape, why, dim, dtype))
    for op, shape, dtype in (
        ("log_softmax", (32768, 4096), "bfloat16"),
        ("logsumexp", (32768, 4096), "bfloat16"),
        ("logsumexp", (4096, 128256), "bfloat16"),
        ("logsumexp", (128, 2097152), "float32"),
        ("sum", (32768, 4096), "bfloat16"),
        ("amax", (32768, 4096), "bfloat16"),
    ):
        cells.append(GpuCell("ops", op, shape, "the other operations", dtype=dtype))
    for shape, dtype in (((32768, 4096), "bfloat16"), ((4096, 50257), "bfloat16"), ((32, 128256), "float32")):
        cells.append(GpuCell("logits", "softmax", shape, "vocabularies; an odd one", dtype=dtype))
    for shape, dtype, why in (
        ((49152, 1000), "float32", "classes of many samples"),
        ((32768, 256), "bfloat16", "a warp for each of many rows"),
        ((1, 1048576), "float32", "one row of 4 MiB"),
        ((32768, 65536), "bfloat16", "4 GiB of rows that one multiprocessor holds"),
        ((8192, 262144), "bfloat16", "4 GiB of rows that none holds"),
    ):
        cells.append(GpuCell("rows", "softmax", shape, why, dtype=dtype))
    cells += _long()
    cells += _everyday()
    cells += _views()
    cells += _gradients()
    # What torch.compile costs the host is in no table of ours.
    others = tuple(name for name in OTHERS if name != "torch.compile")
    cells.append(GpuCell("calls", "softmax", (8, 8), "what a call costs the host", quick=True, peers=others))
    cells += _plane()
    return tuple(cells)


GPU_CELLS = _registry()
