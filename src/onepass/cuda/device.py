"""GPUs as the planner sees them. Those listed here ship with the package, so that a plan can be made anywhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """What the planner knows of a GPU. Sizes in bytes, bandwidth in GB/s of a copy (bytes read and written)."""

    name: str
    architecture: str  # as NVRTC wants it, without "sm_"
    multiprocessors: int
    shared_per_block: int  # that a block may opt in to
    shared_per_multiprocessor: int
    registers: int  # of 32 bits, per multiprocessor
    max_threads: int  # per multiprocessor
    l2_bytes: int
    bandwidth: float
    bandwidth_is: str  # "measured" or "modelled"

    @property
    def major(self) -> int:
        """Of the compute capability."""
        return int(self.architecture.rstrip("af")[:-1])

    @property
    def most_clustered(self) -> int:
        """Blocks that a cluster may have; 1 before clusters. More than 8, which is what every later GPU takes, are not
        portable: those of data centres take 16."""
        return 1 if self.major < 9 else 16 if self.major in (9, 10) else 8

    @property
    def copies_go_on(self) -> bool:
        """Whether copies into shared memory go on while the thread does."""
        return self.major >= 8


# An H200 copies at 0.892 of the bandwidth that its memory is sold with; so it is modelled for the others.
COPY_SHARE = 4281 / 4800


def _device(
    name: str,
    architecture: str,
    multiprocessors: int,
    shared_kib: tuple[int, int],
    max_threads: int,
    l2_mib: int,
    *,
    memory: float = 0,
    measured: float = 0,
) -> Device:
    return Device(
        name=name,
        architecture=architecture,
        multiprocessors=multiprocessors,
        shared_per_block=shared_kib[0] << 10,
        shared_per_multiprocessor=shared_kib[1] << 10,
        registers=1 << 16,
        max_threads=max_threads,
        l2_bytes=l2_mib << 20,
        bandwidth=measured or round(memory * COPY_SHARE),
        bandwidth_is="measured" if measured else "modelled",
    )


_DEVICES = {
    "a100": _device("A100", "80", 108, (163, 164), 2048, 40, memory=2039),
    "l4": _device("L4", "89", 58, (99, 100), 1536, 48, memory=300),
    "rtx4090": _device("RTX 4090", "89", 128, (99, 100), 1536, 72, memory=1008),
    "h100": _device("H100", "90a", 132, (227, 228), 2048, 50, memory=3352),
    "h200": _device("H200", "90a", 132, (227, 228), 2048, 60, measured=4281),
    "b200": _device("B200", "100a", 148, (227, 228), 2048, 126, memory=8000),
    "rtx5090": _device("RTX 5090", "120", 170, (99, 100), 1536, 96, memory=1792),
}
NAMES = tuple(_DEVICES)


def by_name(name: str) -> Device:
    """The description that ships for a GPU.

    >>> by_name("h200").multiprocessors
    132
    >>> by_name("RTX 4090") == by_name("rtx4090")
    True

    Raises ValueError for a name that is not in `NAMES`.
    """
    key = name.lower().replace(" ", "").replace("-", "").replace("_", "")
    if key not in _DEVICES:
        raise ValueError(f"device {name!r} is not known; expected one of {', '.join(NAMES)}")
    return _DEVICES[key]
