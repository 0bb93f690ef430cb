"""Which cells are measured: those of a registry, a problem spelled by its name, samples of shapes that nobody chose."""

from __future__ import annotations

import difflib
import fnmatch
import math
import random
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from onepass.bench import views
from onepass.bench.cells import CELLS, GRADIENTS, ITEM_BYTES, REDUCTIONS, Cell

AnyCell = TypeVar("AnyCell", bound=Cell)

OPS = ("softmax", "log_softmax", *REDUCTIONS, *GRADIENTS)
_SPELLING = re.compile(
    rf"(?P<op>{'|'.join(OPS)})-(?P<shape>[1-9]\d*(?:x[1-9]\d*)*)(?:-dim(?P<dim>-?\d+))?{views.SPELLING}"
    rf"(?:-(?P<dtype>{'|'.join(ITEM_BYTES)}))?(?:-(?P<framework>numpy|torch))?"
)
SAMPLED_DTYPES = ("float32", "bfloat16")
# Elements of an array, on a CPU and on a GPU: from what a cache close to the cores holds to what memory has to serve.
CPU_ELEMENTS = (1 << 13, 1 << 25)
GPU_ELEMENTS = (1 << 16, 1 << 28)
_MOST_INNER = 1 << 16


def select(
    patterns: Iterable[str] | None, quick: bool, registry: Sequence[Cell] = CELLS, kind: type[Cell] = Cell
) -> list[Cell]:
    """The cells that match any of the patterns (a name, a group, or a glob over names), in registry order, then those
    that patterns spell and the registry lacks.

    >>> [cell.name for cell in select(["softmax-*x128", "strided"], quick=False)][:2]
    ['softmax-32768x128', 'softmax-4096x4096-dim0']
    >>> select(["amax-12x34567"], quick=False)[0].group
    'asked'
    """
    if patterns is None:
        return [cell for cell in registry if cell.quick or not quick]
    chosen, asked = set(), {}
    for pattern in map(str.strip, patterns):
        hits = {cell.name for cell in registry if pattern == cell.group or fnmatch.fnmatchcase(cell.name, pattern)}
        if not hits and (cell := spelled(pattern, kind)) is not None:
            asked[cell.name] = cell
        elif not hits:
            names = [*dict.fromkeys(cell.group for cell in registry), *(cell.name for cell in registry)]
            near = difflib.get_close_matches(pattern, names, 3, 0.5) or names[:5]
            raise ValueError(
                f"no benchmark cell or group is named {pattern!r}; near it: {', '.join(near)}; "
                f"any other problem of {', '.join(OPS)} is spelled like softmax-64x1000x196-dim1-bfloat16"
            )
        chosen |= hits
    return [cell for cell in registry if cell.name in chosen] + list(asked.values())


def spelled(name: str, kind: type[AnyCell]) -> AnyCell | None:
    """The cell that is named as cells are, such as softmax-64x1000x196-dim1-bfloat16; None for another text, or a dim
    or a view that the shape does not have.

    >>> spelled("sum-8x1001-dim0", Cell).length
    8
    >>> spelled("softmax-30x1001-order1.0-pitch32", Cell).memory_shape
    (1001, 32)
    """
    found = _SPELLING.fullmatch(name)
    if found is None:
        return None
    shape, dim = tuple(map(int, found["shape"].split("x"))), int(found["dim"] or -1)
    view = views.spelled(found)
    try:
        view.memory_shape(shape)
    except ValueError:
        return None
    if not -len(shape) <= dim < len(shape):
        return None
    dtype, framework = found["dtype"] or "float32", found["framework"] or "any"
    return kind("asked", found["op"], shape, "asked for", dim, dtype, framework, view=view)


def sample(count: int, seed: int, elements: tuple[int, int], kind: type[AnyCell]) -> list[AnyCell]:
    """As many cells, the same for the same seed: sizes of all magnitudes, half of them rows, half of them columns with
    others beside them.

    >>> sample(2, 7, CPU_ELEMENTS, Cell) == sample(3, 7, CPU_ELEMENTS, Cell)[:2]
    True
    """
    draw = random.Random(seed)
    cells: dict[str, AnyCell] = {}
    while len(cells) < count:
        total = _magnitude(draw, *elements)
        inner = 1 if draw.random() < 0.5 else _magnitude(draw, 2, min(_MOST_INNER, total // 4))
        length = _magnitude(draw, 2, total // inner)
        shape = (max(1, total // (inner * length)), length, *([inner] if inner > 1 else []))
        op, dtype = draw.choice(OPS), draw.choice(SAMPLED_DTYPES)
        cell = kind("sample", op, shape, "a shape that nobody chose", 1 if inner > 1 else -1, dtype)
        cells[cell.name] = cell
    return list(cells.values())


def _magnitude(draw: random.Random, least: int, most: int) -> int:
    """A number in a range, each magnitude as likely as another."""
    return round(math.exp(draw.uniform(math.log(least), math.log(most))))
