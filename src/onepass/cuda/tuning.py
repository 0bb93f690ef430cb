"""What is held fixed of a plan."""

from __future__ import annotations

from dataclasses import dataclass

# Fields of which kernels take powers of two: up to how many, and of what.
_POWERS = {
    "pack": (16, "elements of an access"),
    "lanes": (32, "lanes of a warp"),
    "across": (1024, "threads of a block"),
}
_COUNTS = ("rows", "resident", "held", "blocks", "parts", "spread")


@dataclass(frozen=True)
class Tuning:
    """Parameters to be held fixed while the planner chooses the others: for ablations. None leaves the choice."""

    pack: int | None = None
    rows: int | None = None  # per access, warp
    lanes: int | None = None  # per row, warp
    threads: int | None = None
    across: int | None = None  # of them side by side across rows, strided
    padded: bool | None = None  # True also where a row fills its packs, warp and block
    resident: int | None = None  # blocks that a multiprocessor must have room for
    # Packs that wait in shared memory: of a row, block_uncached of a gradient; of a thread, of claimed slices
    kept: int | None = None
    held: int | None = None  # packs of a slice that is claimed, in registers of each thread
    # True waits in shared memory; False: strided and strided_split read twice, split and cluster wait in registers
    staged: bool | None = None
    blocks: int | None = None  # per row, split, cluster and stream
    parts: int | None = None  # of a slice of split or cluster that waits in shared memory
    spread: int | None = None  # slices that take turns at their packs, of those that are claimed
    # Clusters take rows as they are ready for them; False: each has one. Of split, blocks claim slices.
    handed: bool | None = None
    # Blocks that share a tile in their registers are a cluster, strided_split; of a gradient also one block, strided.
    clustered: bool | None = None
    interleaved: bool | None = None  # columns that are a run of memory are read as one, strided_split; False: by tiles
    turned: bool | None = None  # Rows that lie one way in one array and another in another: by squares; False: by tiles

    by_rows: bool | None = None  # Results of rows that x has across memory go through shared memory, strided

    def __post_init__(self) -> None:
        for name in (*_POWERS, *_COUNTS, "threads", "kept"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int):
                raise TypeError(f"Tuning: {name} is a {type(value).__name__}; expected an int")
        for name, (most, what) in _POWERS.items():
            value = getattr(self, name)
            if value is not None and not (0 < value <= most and value & (value - 1) == 0):
                raise ValueError(f"Tuning: {name}={value}; expected a power of two up to {most}, {what}")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Tuning: {name}={value}; expected one or more")
        if self.threads is not None and (self.threads % 32 or not 32 <= self.threads <= 1024):
            raise ValueError(f"Tuning: threads={self.threads}; expected whole warps, a multiple of 32 up to 1024")
        if self.kept is not None and self.kept < 0:
            raise ValueError(f"Tuning: kept={self.kept}; expected none or more")
