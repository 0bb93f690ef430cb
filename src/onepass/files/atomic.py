"""Output that is whole or absent: a temporary name in the same directory, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .tensor import FileError, UsageError

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A writable file that becomes `path` when the block ends well, and disappears when it does not."""
    path = Path(os.path.realpath(path))  # renaming onto a symbolic link would replace the link, not the file behind it
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} exists and is not a file")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a directory")
    temporary = path.parent / f".onepass-{secrets.token_hex(8)}.tmp"  # short: a name may have as many bytes as fit
    try:
        with open(temporary, "xb") as stream:
            with contextlib.suppress(FileNotFoundError):  # who may read what is replaced may read this
                os.fchmod(stream.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise FileError(f"{path}: {os.strerror(error.errno)}") from error
        raise
    _sync_directory(path.parent)


def preallocate(stream: BinaryIO, nbytes: int, path: Path) -> None:
    """Reserve the whole output now, so that a full disk shows before the work and not after it."""
    if nbytes == 0 or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(stream.fileno(), 0, nbytes)
    except OverflowError as error:
        raise FileError(f"{path}: it needs {nbytes:,} bytes, more than a file may have") from error
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return  # this file system cannot reserve: find out while writing
        free = shutil.disk_usage(path.parent).free
        raise FileError(
            f"{path}: {os.strerror(error.errno)}: it needs {nbytes:,} bytes, {path.parent} has {free:,} free"
        ) from error


def _sync_directory(directory: Path) -> None:
    # The rename itself reaches the disk with its directory. The file is whole either way, so a file system that
    # cannot sync a directory is no failure.
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
