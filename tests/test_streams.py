"""Long rows that are read once: by streams from memory, in the order of memory from the cache. The same bits."""

import ml_dtypes
import numpy as np
import pytest
from helpers import nan_filled
from test_cpu_plans import LONG_VECTORS, plan_of

import onepass
from onepass import _engine
from onepass.cpu import plan_rows

# Blocks of four streams have 64 KiB; what is left of a row is less, or nothing, and chunks have 32768 elements.
LENGTHS = (16383, 16384, 16385, 20000, 32768, 50000, 131072 + 7)


@pytest.fixture
def share(monkeypatch):
    """Sets the share of L3 that an input may have, and has calls planned anew."""

    def set_share(number):
        monkeypatch.setattr(plan_rows, "CACHED_SHARE_OF_L3", number)
        _engine.forget_all()

    yield set_share
    _engine.forget_all()


def test_an_input_of_most_of_the_cache_is_read_in_order():
    for op, columns, cached in (("sum", 6 << 20, True), ("amax", (6 << 20) + 1, False), ("mean", 6 << 20, True)):
        assert plan_of(LONG_VECTORS, op, (1, columns)).cached == cached, (op, columns)


@pytest.mark.parametrize("op", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_order_changes_no_bit(op, dtype, length, share):
    x = np.random.default_rng(length).standard_normal((3, length)).astype(dtype)
    x[1, length // 2] = np.nan
    for rows in (slice(0, 3), slice(2, 3)):
        results = []
        for number in (0, 1e9):
            share(number)
            assert onepass.explain(op, x[rows]).plan.cached == bool(number)
            out = nan_filled(x[rows].shape[:1], dtype)
            results.append(getattr(onepass, op)(x[rows], out=out).tobytes())
        assert results[0] == results[1]


@pytest.mark.parametrize("length", LENGTHS)
def test_extremes_are_found_wherever_they_are(length, share):
    x = np.zeros((1, length), np.float32)
    for number in (0, 1e9):
        share(number)
        for at in {0, 5000, 16383 % length, length // 2, length - 1}:
            x[0, at] = 7
            assert onepass.amax(x).tolist() == [7.0] and onepass.amin(-x).tolist() == [-7.0]
            x[0, at] = np.nan
            assert np.isnan(onepass.amax(x)).all() and np.isnan(onepass.amin(x)).all()
            x[0, at] = 0


@pytest.mark.parametrize("share_of_l3", [0, 1e9])
def test_every_element_is_added_once(share, share_of_l3):
    share(share_of_l3)
    for length in LENGTHS:
        x = np.ones((2, length), np.float32)
        assert onepass.sum(x).tolist() == [length, length]
