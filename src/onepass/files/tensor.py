"""One array in a file: what it is, how its bytes are reached, and the errors a user can act on."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, BinaryIO, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# Copies and decompressed data move in pieces of this size: large enough that a system call costs nothing beside it.
PIECE = 1 << 20

FLOATS = {name: np.dtype(name) for name in ("float32", "float64", "float16")} | {
    "bfloat16": np.dtype(ml_dtypes.bfloat16)
}


class FileError(Exception):
    """A file cannot be read, processed or written. The message is one line, meant for the user."""


class UsageError(FileError):
    """What was asked for cannot be meant: another option or another file name is needed."""


class Access(IntEnum):
    """What the bytes of an array allow, from least to most."""

    ONCE = 0  # a pipe
    REWIND = 1  # from the start again, as often as needed: a compressed member of a zip file
    RANDOM = 2  # anywhere: a plain file


@dataclass(frozen=True)
class Info:
    """An array without its bytes. `dtype` is None for a type NumPy has no name for; such arrays can only be copied."""

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    nbytes: int
    fortran: bool = False
    label: str = ""  # the file format's own name for the type

    def __str__(self) -> str:
        return f"array {self.name!r} ({self.label or self.dtype}, shape {list(self.shape)})"

    @property
    def floating(self) -> bool:
        return self.dtype is not None and (self.dtype.kind == "f" or self.dtype == FLOATS["bfloat16"])


def check_sizes(shape: tuple[int, ...], itemsize: int) -> None:
    """Raise ValueError for sizes that no array has: as NumPy sees it also where another size is 0."""
    if any(isinstance(n, bool) for n in shape):
        raise ValueError(f"shape {list(shape)} has a size that is no number")
    if any(n < 0 for n in shape):
        raise ValueError(f"shape {list(shape)} has a negative size")
    if math.prod(n for n in shape if n) * max(itemsize, 1) > sys.maxsize:
        raise ValueError(f"shape {list(shape)} is larger than any array")


class Reader:
    """Reads byte ranges of one array out of an open file. As a context it closes what was opened for it alone."""

    def __init__(self, stream: BinaryIO, start: int, title: str, access: Access) -> None:
        self._stream, self._start, self._title = stream, start, title
        self._own = access == Access.REWIND  # a member; other files are also other arrays'
        self._position = -1 if access == Access.RANDOM else 0  # -1: seek first, the stream may stand anywhere

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._own:
            self._stream.close()

    def read(self, offset: int, into: Bytes) -> None:
        # A read into our own buffer, not a memory map: a map counts as resident until the kernel takes it back, and a
        # file that shrinks meanwhile, or a disk that fills up, kills the process by SIGBUS instead of raising OSError.
        if offset != self._position:
            self._stream.seek(self._start + offset)
        done = 0
        while done < len(into):
            got = self._stream.readinto(into[done : done + PIECE])  # type: ignore[attr-defined]
            if not got:
                raise FileError(f"{self._title} ends after {offset + done} bytes of data: it is cut short")
            done += got
        self._position = offset + done


class Writer:
    """Writes byte ranges of one array into an open file; in order when the file is a pipe or a zip member."""

    def __init__(self, stream: BinaryIO, start: int, access: Access) -> None:
        self._stream, self._start = stream, start
        self._position = -1 if access == Access.RANDOM else 0

    def write(self, offset: int, data: Bytes) -> None:
        if offset != self._position:
            self._stream.seek(self._start + offset)
        self._stream.write(data.data)
        self._position = offset + len(data)


class MemoryWriter(Writer):
    """Collects the bytes of an array in `data`, for an array that has to be turned round before it can be written."""

    def __init__(self, nbytes: int) -> None:
        self.data = np.empty(nbytes, np.uint8)

    def write(self, offset: int, data: Bytes) -> None:
        self.data[offset : offset + len(data)] = data


@dataclass(frozen=True)
class Tensor:
    """An array waiting in a file. With an `error` nothing but its name is known: it is raised when the array is needed,
    not when another one of the file is."""

    info: Info
    access: Access
    open: Callable[[], Reader]
    error: FileError | None = None


@dataclass(frozen=True)
class Source:
    """What an input file holds. `metadata` is free text that .safetensors files carry along."""

    tensors: list[Tensor]
    metadata: dict[str, str] = field(default_factory=dict)


class Sink(Protocol):
    """An output file: first what it will hold, then the bytes of each array."""

    def begin(self, infos: list[Info], metadata: dict[str, str]) -> None: ...

    def writer(self, info: Info) -> AbstractContextManager[Writer]: ...


def as_bytes(array: npt.NDArray[Any]) -> Bytes:
    """The bytes of a contiguous array, shared with it (bfloat16 has no buffer format, so memoryview cannot do this)."""
    return array.reshape(-1).view(np.uint8)
