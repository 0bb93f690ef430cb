"""Distances in units in the last place, against a reference that is more precise than the type measured.

They are computed in float64, and of float64 in extended precision: of a float32, 2^-29 ULP are lost.
"""

import ml_dtypes
import numpy as np

# name: (bits of the significand with the hidden one, exponent of the smallest normal number, of the largest)
_FORMATS = {
    np.dtype(np.float16): (11, -14, 15),
    np.dtype(ml_dtypes.bfloat16): (8, -126, 127),
    np.dtype(np.float32): (24, -126, 127),
    np.dtype(np.float64): (53, -1022, 1023),
}


def spacing(value, dtype):
    """The gap between neighbouring numbers of `dtype` at `value`; that of the smallest normal number below it."""
    bits, lowest, highest = _FORMATS[np.dtype(dtype)]
    wide = wider_than(dtype)
    value = _widened(value, wide)
    exponent = np.minimum(np.maximum(np.frexp(value)[1] - 1, lowest), highest)
    exponent = np.where(value == 0, lowest, exponent)
    return np.ldexp(wide(1), exponent - (bits - 1))


def ulp_error(actual, expected, dtype=None, floor=0.0):
    """|actual - expected| in units of the last place of `dtype` (that of `actual`), element by element.

    A correctly rounded result is within 0.5. An infinity stands for the number after the largest finite one, so a
    result that overflows because it should is right. NaN against a number, or an expected infinity missed, is inf.
    `floor`: expected values nearer to zero than this are measured in units of `floor`: where the result is a
    difference of numbers of that size.
    """
    dtype = np.dtype(np.asarray(actual).dtype if dtype is None else dtype)
    highest = _FORMATS[dtype][2]
    wide = wider_than(dtype)
    after_largest = np.ldexp(wide(1), highest + 1)
    got, want = _widened(actual, wide), _widened(expected, wide)
    with np.errstate(invalid="ignore"):
        if np.isfinite(got).all() and np.abs(want).max(initial=0) < after_largest:  # nothing special
            return (np.abs(got - want) / spacing(np.maximum(np.abs(want), floor), dtype)).astype(np.float64)
        distance = np.abs(np.clip(got, -after_largest, after_largest) - np.clip(want, -after_largest, after_largest))
        error = distance / spacing(np.maximum(np.abs(np.where(np.isfinite(want), want, 1)), floor), dtype)
        error = np.where(np.isinf(want), distance / spacing(after_largest, dtype), error)
    error = np.where(np.isinf(want) & (got != want), np.inf, error)
    error = np.where(np.isnan(got) != np.isnan(want), np.inf, error)
    return np.where(np.isnan(got) & np.isnan(want), 0, error).astype(np.float64)


def max_ulp(actual, expected, dtype=None, floor=0.0):
    """The largest `ulp_error`; 0 of nothing."""
    return float(ulp_error(actual, expected, dtype, floor).max(initial=0.0))


def wider_than(*dtypes):
    """Where numbers of these are told apart: float64, or extended precision where one of them is a float64."""
    return np.longdouble if any(np.dtype(dtype).itemsize == 8 for dtype in dtypes) else np.float64


def _widened(values, wide):
    array = np.asarray(values)
    with np.errstate(invalid="ignore", over="ignore"):  # a signalling NaN; what float64 does not hold is infinite
        return array.astype(wide) if array.dtype == np.longdouble else array.astype(np.float64).astype(wide)
