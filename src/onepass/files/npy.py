"""The .npy format, as a file, a pipe, or a member of an .npz file (a zip file of .npy files)."""

from __future__ import annotations

import contextlib
import io
import lzma
import math
import os
import struct
import sys
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from numpy.lib import format as npy_format

from .atomic import preallocate, replacing
from .tensor import FLOATS, Access, FileError, Info, Reader, Source, Tensor, UsageError, Writer, check_sizes

# A single array has no name in an .npy file; np.savez calls it this.
DEFAULT_NAME = "arr_0"

# What damaged input makes zipfile and the decompressors, and in a header NumPy, raise.
_ZIP_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError)
_HEADER_DAMAGE = (*_ZIP_DAMAGE, ValueError, TypeError, SyntaxError, RecursionError, tokenize.TokenError)


def _read_header(stream: BinaryIO, name: str, title: str) -> Info:
    try:
        version = npy_format.read_magic(stream)
        if version == (3, 0):  # NumPy has nothing public that reads these alone
            raise FileError(f"{title} is of .npy format 3.0, which structured types with Unicode names have: not read")
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"format version {version[0]}.{version[1]} is not known")
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, fortran, dtype = read(stream)
        check_sizes(shape, dtype.itemsize)
    except _HEADER_DAMAGE as error:
        raise FileError(f"{title} is not a valid .npy file: {_first_line(error)}") from error
    if dtype.hasobject:
        raise FileError(f"{title} holds pickled Python objects (dtype {dtype}), which onepass never loads")
    label = "bfloat16 or other raw bytes" if dtype.kind == "V" and dtype.names is None else str(dtype)
    fortran = fortran and sum(n != 1 for n in shape) > 1
    return Info(name, dtype, shape, math.prod(shape) * dtype.itemsize, fortran, label)


def _header(info: Info) -> bytes:
    if info.dtype is None or info.dtype == FLOATS["bfloat16"]:
        raise UsageError(
            f".npy has no type for {info}: NumPy would store raw bytes; write a .safetensors file, or give --dtype"
        )
    fields: dict[str, Any] = {
        "descr": npy_format.dtype_to_descr(info.dtype),
        "fortran_order": info.fortran,
        "shape": info.shape,
    }
    stream = io.BytesIO()
    try:
        npy_format.write_array_header_1_0(stream, fields)
    except ValueError:  # over 64 KiB: a structured type with very many fields
        stream = io.BytesIO()
        npy_format.write_array_header_2_0(stream, fields)
    return stream.getvalue()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def read_npy(path: Path) -> Iterator[Source]:
    """The one array of an .npy file."""
    with open(path, "rb") as stream:
        yield _plain(stream, str(path))


@contextlib.contextmanager
def read_pipe() -> Iterator[Source]:
    """The one array of an .npy stream on standard input; `< file.npy` reads like the file itself."""
    if sys.stdin is None:
        raise FileError("standard input is closed; IN '-' expects an .npy stream")
    if sys.stdin.isatty():
        raise UsageError("standard input is a terminal; IN '-' expects an .npy stream")
    yield _plain(cast(BinaryIO, sys.stdin.buffer), "standard input")


def _plain(stream: BinaryIO, title: str) -> Source:
    size = None
    with contextlib.suppress(OSError, ValueError):
        if stream.seekable():
            size = os.fstat(stream.fileno()).st_size
    info = _read_header(stream, DEFAULT_NAME, title)
    start = 0 if size is None else stream.tell()
    if size is not None and size < start + info.nbytes:
        raise FileError(f"{title} is cut short: {info} needs {info.nbytes:,} bytes of data, it has {size - start:,}")
    access = Access.ONCE if size is None else Access.RANDOM
    return Source([Tensor(info, access, lambda: Reader(stream, start, title, access))])


@contextlib.contextmanager
def read_npz(path: Path) -> Iterator[Source]:
    """Every array of an .npz file, compressed or not."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield Source([_member_or_error(archive, entry, path) for entry in archive.infolist()])
    except _ZIP_DAMAGE as error:
        raise FileError(f"{path} is not a valid .npz file: {_first_line(error)}") from error


def _member_or_error(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Tensor:
    try:
        return _member(archive, entry, path)
    except FileError as error:
        raised = error

    def unreadable() -> Reader:
        raise raised

    return Tensor(Info(_name(entry), None, (), 0), Access.ONCE, unreadable, raised)


def _name(entry: zipfile.ZipInfo) -> str:
    return entry.filename.removesuffix(".npy")


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Tensor:
    title = f"{path}: {entry.filename}"
    if entry.flag_bits & 1:
        raise FileError(f"{title} is encrypted")
    try:
        with archive.open(entry) as stream:
            info = _read_header(cast(BinaryIO, stream), _name(entry), title)
            start = stream.tell()
    except (OSError, ValueError) as error:  # a damaged directory points before or past the file
        raise FileError(f"{title} cannot be read: {_first_line(error)}") from error
    if entry.file_size < start + info.nbytes:
        raise FileError(f"{title} is cut short: {info} needs {info.nbytes:,} bytes of data")

    def reopen() -> Reader:
        # Read up to the data, not sought: from Python 3.12 on a seek gives up the check of what is read after it.
        stream = cast(BinaryIO, archive.open(entry))
        stream.read(start)
        return Reader(stream, start, title, Access.REWIND)

    return Tensor(info, Access.REWIND, reopen)


class NpySink:
    """Writes one array as .npy, to a file or (path None) to standard output."""

    def __init__(self, stream: BinaryIO, path: Path | None) -> None:
        self._stream, self._path = stream, path

    def begin(self, infos: list[Info], metadata: dict[str, str]) -> None:
        (info,) = infos
        header = _header(info)
        if self._path is not None:
            preallocate(self._stream, len(header) + info.nbytes, self._path)
        self._stream.write(header)
        self._start = len(header)

    @contextlib.contextmanager
    def writer(self, info: Info) -> Iterator[Writer]:
        yield Writer(self._stream, self._start, Access.ONCE if self._path is None else Access.RANDOM)


def _encoded(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError as error:  # half of a pair of surrogates, which JSON can hold
        raise UsageError(f"the name {name!r} cannot be written in an .npz file: {error.reason}") from error


class NpzSink:
    """Writes arrays as an uncompressed .npz file, one after the other."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path = stream, path
        self._archive = zipfile.ZipFile(stream, "w", allowZip64=True)

    def begin(self, infos: list[Info], metadata: dict[str, str]) -> None:
        headers = [_header(info) for info in infos]
        # Per member: a local header and a directory entry, both with the name and 64-bit sizes; then the end records.
        directory = 200 + sum(200 + 2 * len(_encoded(info.name)) for info in infos)
        preallocate(self._stream, sum(map(len, headers)) + sum(info.nbytes for info in infos) + directory, self._path)

    @contextlib.contextmanager
    def writer(self, info: Info) -> Iterator[Writer]:
        with self._archive.open(f"{info.name}.npy", "w", force_zip64=True) as member:
            member.write(_header(info))
            yield Writer(cast(BinaryIO, member), 0, Access.ONCE)

    def finish(self) -> None:
        self.close()
        self._stream.truncate(self._stream.tell())  # the reservation was an upper estimate

    def close(self) -> None:
        self._archive.close()


@contextlib.contextmanager
def write_npy(path: Path) -> Iterator[NpySink]:
    with replacing(path) as stream:
        yield NpySink(stream, path)


@contextlib.contextmanager
def write_npz(path: Path) -> Iterator[NpzSink]:
    with replacing(path) as stream:
        sink = NpzSink(stream, path)
        try:
            yield sink
            sink.finish()
        except BaseException:
            with contextlib.suppress(Exception):  # else it tries to finish the file when it is collected, and complains
                sink.close()
            raise


@contextlib.contextmanager
def write_pipe() -> Iterator[NpySink]:
    if sys.stdout is None:
        raise FileError("standard output is closed; send OUT '-' to a file or a pipe")
    if sys.stdout.isatty():
        raise UsageError("standard output is a terminal; send OUT '-' to a file or a pipe")
    stream = cast(BinaryIO, sys.stdout.buffer)
    yield NpySink(stream, None)
    stream.flush()
