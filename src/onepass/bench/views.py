"""Where the elements of a cell's input lie, if they do not follow each other: what is taken of contiguous memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# As a cell's name spells it, behind the dim.
SPELLING = r"(?:-order(?P<order>\d+(?:\.\d+)+))?(?:-pitch(?P<pitch>[1-9]\d*))?(?:-step(?P<step>[1-9]\d*))?"


@dataclass(frozen=True)
class View:
    """The dims of memory in another order; elements from one line of memory to the next; each `step`-th of a line.

    >>> import numpy as np
    >>> View(order=(1, 0), pitch=5, step=2).of(np.arange(10).reshape(2, 5), (3, 2)).tolist()
    [[0, 5], [2, 7], [4, 9]]
    """

    order: tuple[int, ...] = ()  # dim i of the call is dim order[i] of memory
    pitch: int = 0  # 0: as many as are taken
    step: int = 1

    @property
    def parts(self) -> dict[str, str]:
        """What is not as in contiguous memory."""
        parts = {"order": ".".join(map(str, self.order))} if self.order else {}
        parts |= {"pitch": str(self.pitch)} if self.pitch else {}
        return parts | ({"step": str(self.step)} if self.step > 1 else {})

    def memory_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the memory that an array of this shape is taken of. Raises ValueError where it cannot be."""
        order = self.order or tuple(range(len(shape)))
        if sorted(order) != list(range(len(shape))):
            raise ValueError(f"order {order} is not one of the dims of {shape}")
        lines = [shape[order.index(axis)] for axis in range(len(shape))]
        needed = (lines[-1] - 1) * self.step + 1
        if self.pitch and self.pitch < needed:
            raise ValueError(f"pitch is {self.pitch}; a line of {shape} takes {needed} elements")
        return (*lines[:-1], self.pitch or lines[-1] * self.step)

    def of(self, memory: Any, shape: tuple[int, ...]) -> Any:
        """The view of such memory, an array of NumPy or a tensor."""
        order = self.order or tuple(range(len(shape)))
        taken = memory[..., : (shape[order.index(len(shape) - 1)] - 1) * self.step + 1 : self.step]
        return taken.permute(order) if hasattr(taken, "permute") else taken.transpose(order)


CONTIGUOUS = View()


def said(parts: Mapping[str, str]) -> str:
    """The parts of a view as a person would say them, behind the dim.

    >>> said(View(order=(1, 0), step=2).parts)
    ', order 1.0, step 2'
    """
    return "".join(f", {name} {value}" for name, value in parts.items())


def spelled(found: re.Match[str]) -> View:
    """What a name that matches `SPELLING` says."""
    order = tuple(map(int, found["order"].split("."))) if found["order"] else ()
    return View(order, int(found["pitch"] or 0), int(found["step"] or 1))
