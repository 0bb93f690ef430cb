"""Integers, rounded to what plans are made of."""

from __future__ import annotations

import math


def ceil_power(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def floor_power(n: int) -> int:
    """The largest power of two that is not above n; 1 at least."""
    return 1 << max(1, n).bit_length() - 1


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def near_power(n: float) -> int:
    """The power of two that is nearest to n, as a factor; 1 at least."""
    return 1 << max(0, round(math.log2(max(1.0, n))))


def doublings(size: float, wanted: float) -> float:
    """That make of one size at least another; none, if it is."""
    return max(0.0, math.log2(wanted / size))
