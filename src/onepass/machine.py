"""The machine a plan is made for: caches, memory, threads, instruction set. Read once; a plan needs nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from . import _engine

MOST_THREADS = 4096  # of a call


@dataclass(frozen=True)
class Machine:
    """What the planner knows of a processor. Sizes in bytes; `l2_bytes` is one core's, `l3_bytes` is shared."""

    processor: str
    isa: str
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    memory_bytes: int
    cores: int


def _size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    text = text.strip()
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def _caches(root: Path) -> dict[int, int]:
    """Data cache sizes of the first processor by level."""
    sizes: dict[int, int] = {}
    for index in sorted(root.glob("sys/devices/system/cpu/cpu0/cache/index*")):
        try:
            if (index / "type").read_text().strip() != "Instruction":
                sizes[int((index / "level").read_text())] = _size((index / "size").read_text())
        except (OSError, ValueError, KeyError):
            continue
    return sizes


def _processor(root: Path) -> str:
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "CPU part"):
                return value.strip()
    except OSError:
        pass
    return "unknown"


def _quota(root: Path) -> float:
    """Processors' worth of time that the control groups of this process allow; inf without a limit."""
    quota = float("inf")
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return quota
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
            group = base / path.lstrip("/")
            # Every ancestor's limit holds too.
            for folder in [group, *group.parents]:
                try:
                    limit, period = (folder / "cpu.max").read_text().split()
                    if limit != "max":
                        quota = min(quota, int(limit) / int(period))
                except (OSError, ValueError):
                    pass
                if folder == base:
                    break
        elif "cpu" in controllers.split(","):
            for folder in (root / "sys/fs/cgroup/cpu" / path.lstrip("/"), root / "sys/fs/cgroup/cpu"):
                try:
                    limit_us = int((folder / "cpu.cfs_quota_us").read_text())
                    period_us = int((folder / "cpu.cfs_period_us").read_text())
                    if limit_us > 0:
                        quota = min(quota, limit_us / period_us)
                except (OSError, ValueError):
                    pass
    return quota


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may use at once: its affinity, cut down to its control group's quota."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:
        allowed = os.cpu_count() or 1
    quota = _quota(root)
    return max(1, allowed if quota == float("inf") else min(allowed, -int(-quota // 1)))


def is_number(text: str) -> bool:
    """Whether it is written in the digits 0 to 9 alone, and few enough of them for Python."""
    return text.isascii() and text.isdigit() and len(text) < 100


def default_threads() -> int:
    """ONEPASS_NUM_THREADS, else OMP_NUM_THREADS, else the usable cores. Raises ValueError for a number of the first
    that is none; what is meant for others, and is not understood, is passed over."""
    ours = os.environ.get("ONEPASS_NUM_THREADS", "").strip()
    if ours and not (is_number(ours) and 1 <= int(ours) <= MOST_THREADS):
        raise ValueError(f"ONEPASS_NUM_THREADS must be a number from 1 to {MOST_THREADS}, got {ours!r}")
    text = ours or os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(int(text), MOST_THREADS) if is_number(text) and int(text) > 0 else usable_cores()


def memory_bytes() -> int:
    """Physical memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    """The machine this process runs on."""
    root = Path("/")
    caches = _caches(root)
    return Machine(
        processor=_processor(root),
        isa=_engine.isa(),
        vector_bytes=_engine.vector_bytes(),
        # What a system that does not tell most likely has.
        l1_bytes=caches.get(1, 32 << 10),
        l2_bytes=caches.get(2, 1 << 20),
        l3_bytes=caches.get(3, 8 << 20),
        memory_bytes=memory_bytes(),
        cores=usable_cores(),
    )
