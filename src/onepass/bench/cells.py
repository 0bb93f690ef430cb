"""What is measured: the one registry of benchmark cells, each with the regime it stands for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onepass.bench.views import CONTIGUOUS, View

ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
REDUCTIONS = ("logsumexp", "sum", "amax")
GRADIENTS = ("softmax_backward", "log_softmax_backward")  # of y, the result of the forward operation, and dy


@dataclass(frozen=True)
class Cell:
    """One operation on one array. Every contender runs it with a fresh result, into `out=`, or both."""

    group: str
    op: str
    shape: tuple[int, ...]
    why: str
    dim: int = -1
    dtype: str = "float32"
    framework: str = "any"  # of the input: "torch", "numpy", or "any": torch where it takes part, else NumPy
    quick: bool = False
    view: View = CONTIGUOUS  # of the input; of a gradient, of dy

    @property
    def name(self) -> str:
        parts = [self.op, "x".join(map(str, self.shape))]
        parts += [f"dim{self.dim}"] if self.dim != -1 else []
        parts += [f"{name}{value}" for name, value in self.view.parts.items()]
        parts += [self.dtype] if self.dtype != "float32" else []
        parts += [self.framework] if self.framework != "any" else []
        return "-".join(parts)

    @property
    def axis(self) -> int:
        return self.dim % len(self.shape)

    @property
    def length(self) -> int:
        """Elements of one row: what is reduced."""
        return self.shape[self.axis]

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """Of the memory that the input is taken of."""
        return self.view.memory_shape(self.shape)

    @property
    def result_shape(self) -> tuple[int, ...]:
        if self.op in REDUCTIONS:
            return self.shape[: self.axis] + self.shape[self.axis + 1 :]
        return self.shape

    @property
    def input_bytes(self) -> int:
        elements = math.prod(self.shape)
        beside = elements if self.op in GRADIENTS else 0
        if self.op == "logsumexp_backward":  # dy and lse have one value for a row
            beside = 2 * elements // self.length
        return (elements + beside) * ITEM_BYTES[self.dtype]

    @property
    def moved_bytes(self) -> int:
        """The bytes that must cross memory: every input once, the result once."""
        return self.input_bytes + math.prod(self.result_shape) * ITEM_BYTES[self.dtype]

    @property
    def checked_rows(self) -> int:
        """Rows compared with the reference: about two million elements; the first and the last row at least."""
        rows = math.prod(self.shape) // self.length
        return min(rows, max(2, (1 << 21) // self.length))

    @property
    def needed_bytes(self) -> int:
        """Memory for the run: input, `out=`, a fresh result and four temporaries of the naive contenders; the
        reference takes some six temporaries of 16 bytes per element."""
        between = (math.prod(self.memory_shape) - math.prod(self.shape)) * ITEM_BYTES[self.dtype]
        return 7 * self.input_bytes + between + 100 * self.checked_rows * self.length


_SHAPES = (
    # (shape, dim, dtype, why)
    ((4096, 1024), -1, "float32", "rows that fit registers or L1, array in L3"),
    ((32768, 128), -1, "float32", "many short rows"),
    ((1024, 32768), -1, "float32", "rows of 128 KiB: past L1, inside L2"),
    ((128, 262144), -1, "float32", "rows of 1 MiB: at the edge of L2"),
    ((8, 2097152), -1, "float32", "rows of 8 MiB: past L2"),
    ((1, 16777216), -1, "float32", "one row for all threads"),
    ((32, 256, 56, 56), 1, "float32", "channels of an image: dim is not the last"),
    ((4096, 4096), -1, "bfloat16", "16-bit input, 32-bit arithmetic"),
)
_QUICK = {("softmax", (4096, 1024)), ("softmax", (32768, 128)), ("softmax", (8, 2097152)), ("sum", (4096, 1024))}

_STRIDED = (
    ((4096, 4096), 0, "reduce down the columns of a matrix"),
    ((64, 1000, 196), 1, "classes of a dense classifier: inner size not a multiple of a vector"),
    ((8, 21, 512, 512), 1, "few classes, large inner: segmentation"),
    ((2, 128256, 16), 1, "vocabulary before a small inner"),
    ((4096, 8, 128), 1, "a very short dim"),
    ((65536, 32, 4), 1, "inner smaller than a vector"),
)

# Shapes that programs have and tables of softmax do not, in caches as they nearly always are.
_TINY_ROWS = {
    (666_666, 3): "colours, gates: a vector has room for five rows",
    (250_000, 8): "experts, small choices: half a vector",
    (117_647, 17): "an element more than a vector",
    (31_250, 64): "attention to 64 positions",
}
_ODD_COLUMNS: dict[tuple[tuple[int, ...], int], str] = {
    ((100_000, 5, 4), 1): "a few classes beside a few others",
    ((1024, 300, 3), 1): "sequences of colours",
    ((15_000, 30, 5), 1): "windows over a few measurements",
    ((256, 3, 1000), 1): "three classes, many places",
    ((2, 21, 257, 257), 1): "segmentation of an odd image",
    ((3, 700_000), 0): "the channels of an image as planes",
    ((1000, 1001), 0): "columns of samples, an odd number",
    ((2000, 100, 20), 1): "columns that more than fill a vector: packed, where each is long",
    ((5000, 8, 30), 1): "the same, short",
    ((32_000, 1), -1): "an axis of one: nothing to compute",
}
_ODD_GRADIENTS = ((2048, 12, 100), (2048, 40, 100), (500, 100, 49))

_HEADS = "heads of attention, from beside each other to apart"
_LOGITS = "logits of an image, whose classes lie apart, put last"
_TURNED = "dims turned round: neighbours of input and result along different ones"
# Arrays as programs take them of others: (shape on a CPU, on a GPU, dim, view, why).
VIEWS = (
    ((4096, 4096), (8192, 8192), -1, View((1, 0)), "a transposed matrix"),
    ((32, 256, 56, 56), (64, 256, 56, 56), 1, View((0, 3, 1, 2)), "channels of an image that lie last"),
    ((4, 256, 256, 21), (8, 512, 512, 21), -1, View((0, 2, 3, 1)), _LOGITS),
    ((16, 12, 256, 256), (32, 16, 512, 512), -1, View((0, 2, 1, 3)), _HEADS),
    ((300, 200, 126), (788, 480, 126), 1, View((2, 1, 0)), _TURNED),
    ((256, 50257), (4096, 50257), -1, View(pitch=50304), "a vocabulary of a padded matrix"),
    ((4096, 2048), (8192, 4096), -1, View(step=2), "every second element"),
)


def _views() -> list[Cell]:
    ops = ("softmax", "log_softmax", "logsumexp", "sum", "softmax_backward")
    return [Cell("views", op, shape, why, dim, view=view) for shape, _, dim, view, why in VIEWS for op in ops]


def _everyday() -> list[Cell]:
    ops = ("softmax", "log_softmax", "logsumexp", "sum", "amax")
    rows = [
        Cell("everyday", op, shape, why, dtype=dtype)
        for shape, why in _TINY_ROWS.items()
        for dtype in ("float32", "bfloat16")
        for op in (*ops, "softmax_backward")
    ]
    columns = [
        Cell("everyday", op, of_columns, why, dim) for (of_columns, dim), why in _ODD_COLUMNS.items() for op in ops
    ]
    why = "results whose rows end within cache lines"
    gradients = [Cell("everyday", op, shape, why, 1) for shape in _ODD_GRADIENTS for op in GRADIENTS]
    return rows + columns + gradients


def _registry() -> tuple[Cell, ...]:
    cells = [
        Cell(op, op, shape, why, dim, dtype, quick=(op, shape) in _QUICK)
        for op in ("softmax", "log_softmax", "logsumexp", "sum", "amax")
        for shape, dim, dtype, why in _SHAPES
    ]
    for rows, widths in ((4096, (1023, 1024, 1025)), (256, (50256, 50257))):
        for width in widths:
            if (rows, width) != (4096, 1024):  # already in the group softmax
                why = "even width, to compare the odd ones with" if width % 2 == 0 else "odd width: every row unaligned"
                cells.append(Cell("widths", "softmax", (rows, width), why))
    cells += [Cell("strided", "softmax", shape, why, dim) for shape, dim, why in _STRIDED]
    cells += [Cell("backward", op, shape, why, dim, dtype) for op in GRADIENTS for shape, dim, dtype, why in _SHAPES]
    cells += [Cell("backward", op, shape, why, dim) for op in GRADIENTS for shape, dim, why in _STRIDED]
    for shape in ((4096, 1024), (32768, 128), (128, 262144)):
        why = "arrays as NumPy makes them: they begin 16 bytes into a cache line, where tensors begin with one"
        cells += [Cell("numpy", op, shape, why, framework="numpy") for op in ("softmax", "log_softmax")]
    for framework in ("numpy", "torch"):
        for op in ("softmax", "log_softmax", "logsumexp", "sum", "amax"):
            why = f"the cost of one call from {framework}"
            cells.append(Cell("calls", op, (8, 8), why, framework=framework, quick=op == "softmax"))
    cells += [Cell("calls", op, (8, 8), "the cost of one call from torch", framework="torch") for op in GRADIENTS]
    cells += _everyday()
    cells += _views()
    return tuple(cells)


CELLS = _registry()
GROUPS = tuple(dict.fromkeys(cell.group for cell in CELLS))
