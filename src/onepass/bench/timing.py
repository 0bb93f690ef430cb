"""Interleaved timing in windows, and how much of the machine other processes used during each."""

from __future__ import annotations

import os
import random
import statistics
import time
import timeit
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

QUIET_SHARE = 0.04  # of all processors, used by others: below it medians of a cell repeat within a few percent
MOST_WARM_UP_CALLS = 100  # of calls so short that the clock itself makes them unlike each other
ENOUGH_QUIET = 3  # windows; with fewer, the median is over all windows and the timing is marked noisy


@dataclass(frozen=True)
class Effort:
    """How long to look: rounds, more of them up to `most_rounds` while someone lacks quiet windows, window length."""

    rounds: int
    most_rounds: int
    window_seconds: float


@dataclass(frozen=True)
class Window:
    """Consecutive calls of one contender: seconds per call, and the share of all processors that others used."""

    seconds: float
    calls: int
    others: float | None  # None: this system does not tell
    noisy: bool


@dataclass(frozen=True)
class Timing:
    """All windows of one contender. The median and the spread are over the quiet ones, when there are enough."""

    windows: tuple[Window, ...]

    @property
    def quiet(self) -> int:
        return sum(not window.noisy for window in self.windows)

    @property
    def noisy(self) -> bool:
        return self.quiet < min(ENOUGH_QUIET, len(self.windows))

    @property
    def used(self) -> list[float]:
        return [window.seconds for window in self.windows if self.noisy or not window.noisy]

    @property
    def median(self) -> float:
        return statistics.median(self.used)

    @property
    def spread(self) -> float:
        """The interquartile range as a fraction of the median."""
        if len(self.used) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.used, n=4, method="inclusive")
        return (high - low) / self.median


@dataclass(frozen=True)
class Reading:
    wall: float
    own: float  # processor seconds of this process, all threads
    busy: float | None  # processor seconds of the whole machine, with what a hypervisor took away


class Meter:
    """Reads the clocks; `window` turns two readings into a Window."""

    tick = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
    processors = os.cpu_count() or 1

    def read(self) -> Reading:
        return Reading(time.perf_counter(), time.process_time(), self._busy())

    def _busy(self) -> float | None:
        try:
            with open("/proc/stat") as stat:
                fields = [int(field) for field in stat.readline().split()[1:9]]
        except (OSError, ValueError):
            return None
        user, nice, system, _idle, _iowait, irq, softirq, steal = fields
        return (user + nice + system + irq + softirq + steal) * self.tick

    def window(self, before: Reading, after: Reading, seconds: float, calls: int) -> Window:
        if before.busy is None or after.busy is None:
            return Window(seconds / calls, calls, None, False)
        capacity = (after.wall - before.wall) * self.processors
        others = max(0.0, (after.busy - before.busy) - (after.own - before.own))
        # The machine's count moves in whole ticks, on each processor: one tick more than the truth is no evidence.
        noisy = others > QUIET_SHARE * capacity + self.tick
        return Window(seconds / calls, calls, others / capacity if capacity else 0.0, noisy)


def warm_up(timer: timeit.Timer, seconds: float, usual: float = 0.0) -> float:
    """Call for so many seconds, or until three calls in a row take hardly longer than the `usual` seconds; the fastest.

    Threads that sleep are late for more than the first call: on sixteen cores torch's take 6 ms to each of about five,
    of its own operators too, and 0.2 from then on.
    """
    fastest, as_usual, calls = float("inf"), 0, 0
    while seconds > 0 and as_usual < 3 and calls < MOST_WARM_UP_CALLS:
        took = timer.timeit(1)
        seconds -= took
        calls += 1
        fastest = min(took, fastest)
        as_usual = as_usual + 1 if took < 1.5 * usual else 0
    return fastest


def calls_for(timer: timeit.Timer, window_seconds: float) -> int:
    """How many calls fill a window; at least one."""
    calls = 1
    while (seconds := timer.timeit(calls)) < window_seconds / 8:
        calls = max(2 * calls, round(calls * window_seconds / max(seconds, 1e-9) / 4))
    return max(1, round(calls * window_seconds / seconds))


def settle() -> None:
    """Wait until the worker threads of the previous contender stop spinning (20 ms at most)."""
    for _ in range(20):
        own = time.process_time()
        time.sleep(0.001)
        if time.process_time() - own < 0.0003:
            return


def seed_of(cell: str) -> int:
    """What the order of a cell's contenders is drawn from: by one seed for all cells, the same would follow the same
    others in each."""
    return zlib.crc32(cell.encode())


def interleave(
    timers: Mapping[str, timeit.Timer], effort: Effort, seed: int, meter: Meter | None = None
) -> dict[str, Timing]:
    """Time every contender once per round, in a new random order each round.

    A result is dropped before the next call begins. Each window starts after the previous contender's threads went
    to sleep and, unless a call outlasts the window, after some that are not counted: caches hold what the same
    contender left there, and its threads are awake.
    """
    meter = meter or Meter()
    order = random.Random(seed)
    fastest: dict[str, float] = {}
    calls: dict[str, int] = {}
    for name, timer in timers.items():
        fastest[name] = warm_up(timer, effort.window_seconds)
        calls[name] = calls_for(timer, effort.window_seconds)
    windows: dict[str, list[Window]] = {name: [] for name in timers}
    for done in range(effort.most_rounds):
        if done >= effort.rounds and not any(Timing(tuple(mine)).noisy for mine in windows.values()):
            break
        for name in order.sample(sorted(timers), len(timers)):
            settle()
            if calls[name] > 1:
                warm_up(timers[name], effort.window_seconds, fastest[name])
            before = meter.read()
            seconds = timers[name].timeit(calls[name])
            windows[name].append(meter.window(before, meter.read(), seconds, calls[name]))
    return {name: Timing(tuple(mine)) for name, mine in windows.items()}
