"""The .safetensors format: 8 bytes of header length, a JSON header, the arrays one after the other.

Written here and not left to the safetensors package: it saves only from a dict of arrays that are all in memory, and
reads through a memory map of the whole file, while `onepass run` keeps within a given amount of memory. The tests read
and write across to that package.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .atomic import preallocate, replacing
from .tensor import FLOATS, Access, FileError, Info, Reader, Source, Tensor, UsageError, Writer, check_sizes

# Names of the format for types NumPy has. Others (8-bit floats and smaller) are copied under the name they came with.
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": FLOATS["bfloat16"],
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
    "C64": np.dtype("<c8"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

_METADATA = "__metadata__"  # of the header: what is not the name of an array

# The limit the safetensors package sets itself.
_MAX_HEADER = 100_000_000


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name appears twice")
    return names


def _entry(name: str, entry: Any) -> tuple[int, int, Info]:
    label, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)) or start > stop or type(label) is not str:
        raise ValueError(f"the entry of {name!r} is malformed")
    dtype = _DTYPES.get(label)
    check_sizes(shape, 1 if dtype is None else dtype.itemsize)
    if dtype is not None and math.prod(shape) * dtype.itemsize != stop - start:
        raise ValueError(f"{name!r} has {stop - start} bytes, not those of {label} {list(shape)}")
    return start, stop, Info(name, dtype, shape, stop - start, label=label)


def _read_header(stream: BinaryIO, size: int) -> tuple[int, dict[str, str], list[tuple[int, Info]]]:
    """Where the data starts, the metadata, and each array with the offset of its first byte."""
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > min(size - 8, _MAX_HEADER):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = json.loads(stream.read(length), object_pairs_hook=_no_duplicates)
    if not isinstance(header, dict):
        raise TypeError("the header is not a JSON object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise TypeError(f"{_METADATA} is not an object of strings")
    entries = [_entry(name, entry) for name, entry in header.items()]
    end = 0
    for start, stop, info in sorted(entries, key=lambda entry: entry[:2]):
        if start != end:
            raise ValueError(f"{info.name!r} does not start where the array before it ends")
        end = stop
    if 8 + length + end != size:
        raise ValueError(f"the arrays need {end} bytes, the file has {size - 8 - length}")
    return 8 + length, metadata, [(start, info) for start, _, info in entries]


@contextlib.contextmanager
def read_safetensors(path: Path) -> Iterator[Source]:
    """Every array of a .safetensors file."""
    with open(path, "rb") as stream:
        try:
            base, metadata, entries = _read_header(stream, os.fstat(stream.fileno()).st_size)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FileError(f"{path} is not a valid .safetensors file: {type(error).__name__}: {error}") from error

        def tensor(start: int, info: Info) -> Tensor:
            title = f"{path}: {info.name}"
            return Tensor(info, Access.RANDOM, lambda: Reader(stream, base + start, title, Access.RANDOM))

        yield Source([tensor(start, info) for start, info in entries], metadata)


class SafetensorsSink:
    """Writes arrays as a .safetensors file; their places are fixed by the header, so in any order."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path = stream, path
        self._starts: dict[str, int] = {}

    def begin(self, infos: list[Info], metadata: dict[str, str]) -> None:
        header: dict[str, Any] = {_METADATA: metadata} if metadata else {}
        end = 0
        # Wide types first, as the safetensors package does: every array is then aligned to its own type.
        if any(info.name == _METADATA for info in infos):
            raise UsageError(f".safetensors keeps the name {_METADATA!r} for its own; write an .npz file")
        for info in sorted(infos, key=lambda info: -(info.dtype.itemsize if info.dtype else 1)):
            header[info.name] = {
                "dtype": _label(info),
                "shape": list(info.shape),
                "data_offsets": [end, end + info.nbytes],
            }
            self._starts[info.name] = end
            end += info.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        base = 8 + len(text)
        self._starts = {name: base + start for name, start in self._starts.items()}
        preallocate(self._stream, base + end, self._path)
        self._stream.write(len(text).to_bytes(8, "little") + text)

    @contextlib.contextmanager
    def writer(self, info: Info) -> Iterator[Writer]:
        yield Writer(self._stream, self._starts[info.name], Access.RANDOM)


def _label(info: Info) -> str:
    name = info.label if info.dtype is None else _NAMES.get(info.dtype)
    if name is None:
        raise UsageError(f".safetensors has no type for {info}; write an .npz file, or pick others with --name")
    return name


@contextlib.contextmanager
def write_safetensors(path: Path) -> Iterator[SafetensorsSink]:
    with replacing(path) as stream:
        yield SafetensorsSink(stream, path)
