"""A folder of compiled kernels, shared by all processes of a user.

An entry is written under another name and renamed, so it is there whole or not at all, and it is read, never mapped, so
it may be replaced or removed under a reader. It carries a digest over its key and contents: one that was cut short,
damaged, or put there under another key's name is as good as missing. Processes that compile the same key at once do the
same work and write the same bytes; nobody waits for anybody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from ..cache_folder import TEMPORARY, only_mine

_MAGIC = b"onepass\x01"
_HEADER = struct.Struct("<8s32sQ")  # magic, digest, bytes that follow
_SUFFIX = ".kernel"
_MOST_BYTES = 256 << 20  # about ten thousand kernels
_KEPT_SHARE = 0.75  # of the bound is left when it was passed: not every write should have to look for the oldest
_ABANDONED_SECONDS = 3600.0  # after which what somebody was writing will not be finished
_TOUCH_SECONDS = 86400.0  # how stale the time of last use may be


@dataclass(frozen=True)
class CacheInfo:
    """What a cache holds. Without a folder, kernels are compiled again by every process."""

    folder: Path | None
    entries: int
    bytes: int
    most_bytes: int


class KernelCache:
    """Bytes by key, on disk where that is possible. Its failures cost time, never a call: they are one warning."""

    def __init__(self, folder: Path | None, most_bytes: int = _MOST_BYTES) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """What was put under this key, or None."""
        if self.folder is None or not self._safe():
            return None
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                entry = file.read()
                if time.time() - os.fstat(file.fileno()).st_mtime > _TOUCH_SECONDS:
                    with contextlib.suppress(OSError):
                        os.utime(path)  # the time of last use decides what goes first
        except OSError:
            return None
        return _unpack(key, entry)

    def put(self, key: str, payload: bytes) -> None:
        """Keep these bytes, and drop the least recently used entries if there are now too many."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._safe():
                return
            handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=self.folder)  # for this user only
            try:
                with open(handle, "wb") as file:
                    file.write(_pack(key, payload))
                os.replace(temporary, self._path(key))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            self._trim()
        except OSError as error:
            self._warn(f"cannot write there ({error.strerror or error})")

    def info(self) -> CacheInfo:
        """How many entries there are and what they take."""
        sizes = [status.st_size for path, status in self._files() if path.suffix == _SUFFIX]
        return CacheInfo(self.folder, len(sizes), sum(sizes), self.most_bytes)

    def clear(self) -> int:
        """Remove every entry; returns how many there were. Raises OSError if one cannot be removed."""
        removed = 0
        for path, _ in self._files():
            with contextlib.suppress(FileNotFoundError):  # by another process
                path.unlink()
                removed += path.suffix == _SUFFIX
        return removed

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / (hashlib.sha256(key.encode()).hexdigest() + _SUFFIX)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """The cache's own files, whatever else lies in the folder."""
        found = []
        try:
            for item in os.scandir(self.folder) if self.folder is not None else ():
                if item.name.endswith(_SUFFIX) or item.name.startswith(TEMPORARY):
                    with contextlib.suppress(OSError):
                        found.append((Path(item.path), item.stat(follow_symlinks=False)))
        except FileNotFoundError:
            pass
        return found

    def _trim(self) -> None:
        files = self._files()
        now = time.time()
        for path, status in files:
            if path.suffix != _SUFFIX and now - status.st_mtime > _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)
        entries = sorted((f for f in files if f[0].suffix == _SUFFIX), key=lambda f: f[1].st_mtime)
        total = sum(status.st_size for _, status in entries)
        if total <= self.most_bytes:
            return
        for path, status in entries:
            path.unlink(missing_ok=True)
            total -= status.st_size
            if total <= self.most_bytes * _KEPT_SHARE:
                break

    def _safe(self) -> bool:
        """Whether nobody but this user may put code into the folder that this user's GPU would run."""
        assert self.folder is not None
        try:
            if only_mine(self.folder):
                return True
        except OSError:
            return False
        self._warn("others may write there: make it yours alone (chown, chmod 700) or set ONEPASS_CACHE_DIR")
        return False

    def _warn(self, reason: str) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"onepass: compiled kernels are not kept in {self.folder}: {reason}. Every process compiles its own",
            RuntimeWarning,
            stacklevel=2,
        )


def _digest(key: str, payload: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + payload).digest()


def _pack(key: str, payload: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, _digest(key, payload), len(payload)) + payload


def _unpack(key: str, entry: bytes) -> bytes | None:
    if len(entry) < _HEADER.size:
        return None
    magic, digest, length = _HEADER.unpack_from(entry)
    payload = entry[_HEADER.size :]
    whole = magic == _MAGIC and length == len(payload) and digest == _digest(key, payload)
    return payload if whole else None
