"""What a program may set while it runs: threads, and the cache of result memory."""

from __future__ import annotations

import os

from . import _engine
from .machine import MOST_THREADS, default_threads, is_number, memory_bytes


def set_num_threads(n: int) -> None:
    """Use at most n threads from the next call on; results keep their bits whatever n is.

    Calls with torch tensors run on torch's threads, of which torch.set_num_threads is a bound too.

    >>> import onepass
    >>> before = onepass.get_num_threads()
    >>> onepass.set_num_threads(1)
    >>> onepass.get_num_threads()
    1
    >>> onepass.set_num_threads(before)

    Raises TypeError if n is not an int, ValueError unless 1 <= n <= 4096.
    """
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise TypeError(f"set_num_threads: n must be an int, got {n!r}")
    if not 1 <= n.__index__() <= MOST_THREADS:
        raise ValueError(f"set_num_threads: n must be between 1 and {MOST_THREADS}, got {n}")
    _engine.set_num_threads(n.__index__())
    _engine.forget_all()  # plans name their threads


def get_num_threads() -> int:
    """How many threads a call may use: ONEPASS_NUM_THREADS, OMP_NUM_THREADS or the cores this process may use.

    >>> import onepass
    >>> onepass.get_num_threads() >= 1
    True
    """
    return _engine.get_num_threads()


def empty_cache() -> int:
    """Give the memory of dead results back to the system; returns the bytes.

    >>> import onepass
    >>> _ = onepass.empty_cache()
    >>> onepass.memory_stats()["cached_bytes"]
    0
    """
    return _engine.empty_cache()


def memory_stats() -> dict[str, int]:
    """The cache of result memory: its bound, what it holds, what results hold, and how often it served (bytes, counts).

    >>> import onepass
    >>> sorted(onepass.memory_stats())
    ['bound_bytes', 'cached_blocks', 'cached_bytes', 'hits', 'live_blocks', 'live_bytes', 'misses']
    """
    return _engine.memory_stats()


def default_cache_bytes() -> int:
    """ONEPASS_CACHE_BYTES, else the lesser of 2 GiB and a tenth of the machine's memory."""
    text = os.environ.get("ONEPASS_CACHE_BYTES", "").strip()
    if is_number(text) and int(text) < 1 << 63:
        return int(text)
    if text:
        raise ValueError(f"ONEPASS_CACHE_BYTES must be a number of bytes, got {text!r}")
    return min(2 << 30, memory_bytes() // 10)


def _choose_isa() -> None:
    name = os.environ.get("ONEPASS_ISA", "")
    if not _engine.isas():
        raise ImportError("onepass: this processor lacks SSE4.2 (x86-64-v2), which the engine needs")
    if not _engine.choose_isa(name):
        raise ImportError(f"ONEPASS_ISA={name}: this processor runs {', '.join(_engine.isas())}")


_choose_isa()
_engine.set_num_threads(default_threads())
_engine.set_cache_bound(default_cache_bytes())
