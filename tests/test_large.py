"""C1: more elements than a 32-bit index counts. Gigabytes and a minute each: `pytest -m slow`.

Nothing is checked against a float64 copy of everything: rows repeat a block whose results the reference has.
"""

import numpy as np
import pytest
from helpers import FLOORS, random_array
from ulp import max_ulp, ulp_error

import onepass
from onepass import reference

pytestmark = pytest.mark.slow

PAST_32_BITS = 2**31 + 8
BLOCK = 1_000_003  # a prime: an element that came from a wrong place has the wrong value


def test_one_row_of_more_than_2_to_the_31():
    """float16. Bits 31 and up of an offset matter from the last eight elements on, which are the largest."""
    block = random_array(BLOCK, "float16", sigma=2, seed=1)
    last = np.array([14, 13.5, 13, 12.5, 12, 11.5, 11, 15], np.float16)
    x = np.resize(block, PAST_32_BITS)
    x[-8:] = last
    x[2**31 - 1] = 12.25

    whole, part = divmod(PAST_32_BITS, BLOCK)
    terms = np.exp(block.astype(np.longdouble))
    total = terms.sum() * whole + terms[:part].sum()
    for at in range(2**31 - 1, PAST_32_BITS):
        total += np.exp(np.longdouble(x[at])) - terms[at % BLOCK]
    lse = np.log(total)

    assert max_ulp(onepass.logsumexp(x, keepdim=True), [lse]) <= 0.51
    assert onepass.amax(x) == 15
    assert onepass.amin(x) == block.min()

    out = np.full(PAST_32_BITS, np.nan, np.float16)
    onepass.log_softmax(x, out=out)
    _check_chunks(out, x, lambda v: v - lse)
    out[:] = np.nan
    onepass.softmax(x, out=out, algorithm="split")
    _check_chunks(out, x, lambda v: np.exp(v - lse))
    assert out[-1] > out[-8] > 0
    online = np.full(PAST_32_BITS, np.nan, np.float16)
    onepass.softmax(x, out=online, algorithm="online")
    assert all(np.array_equal(online[i : i + BLOCK], out[i : i + BLOCK]) for i in range(0, PAST_32_BITS, BLOCK))


def _check_chunks(out, x, expected):
    """The first and the last chunks, and every 50th, against the exact values; all of them against the first."""
    starts = range(0, PAST_32_BITS, BLOCK)
    first = out[:BLOCK].copy()
    assert np.any(first != 0)
    for k, start in enumerate(starts):
        chunk, source = out[start : start + BLOCK], x[start : start + BLOCK]
        if k % 50 == 0 or k >= len(starts) - 2:
            error = ulp_error(chunk, expected(source.astype(np.longdouble)))
            assert error.max() <= 0.51, (start, error.max())
        else:
            assert np.array_equal(chunk, first), start


def test_more_than_2_to_the_31_in_short_rows():
    rows = 2**31 // 64 + 1
    block = random_array((65_537, 64), "float16", sigma=2, seed=2)
    x = np.resize(block, (rows, 64))
    x[-1] = np.arange(64) / 8
    for op in ("softmax", "log_softmax"):
        expected = getattr(onepass, op)(block)
        assert max_ulp(expected, getattr(reference, op)(block, dtype=np.longdouble)) <= 0.51
        out = np.full(x.shape, np.nan, np.float16)
        getattr(onepass, op)(x, out=out)
        for start in range(0, rows - 1, len(block)):
            stop = min(start + len(block), rows - 1)
            assert np.array_equal(out[start:stop], expected[: stop - start]), start
        assert max_ulp(out[-1], getattr(reference, op)(x[-1], dtype=np.longdouble)) <= 0.51
    del out
    sums = onepass.logsumexp(x)
    expected = onepass.logsumexp(block)
    assert max_ulp(expected, reference.logsumexp(block, dtype=np.longdouble)) <= 0.51
    for start in range(0, rows - 1, len(block)):
        stop = min(start + len(block), rows - 1)
        assert np.array_equal(sums[start:stop], expected[: stop - start]), start
    assert max_ulp(sums[-1:], reference.logsumexp(x[-1:], dtype=np.longdouble)) <= 0.51


def test_more_than_2_to_the_31_in_columns():
    """The long dim first: offsets of strided tiles."""
    columns = 33
    steps = 2**31 // columns + 1
    block = random_array((65_537, columns), "float16", sigma=2, seed=3)
    x = np.resize(block, (steps, columns))
    x[-1] = 20
    whole, part = divmod(steps, len(block))
    terms = np.exp(block.astype(np.longdouble))
    total = terms.sum(axis=0) * whole + terms[:part].sum(axis=0)
    total += np.exp(np.longdouble(20)) - terms[(steps - 1) % len(block)]
    lse = onepass.logsumexp(x, 0)
    assert max_ulp(lse, np.log(total)) <= 0.51
    y = onepass.log_softmax(x, 0)
    assert max_ulp(y[-3:], x[-3:].astype(np.longdouble) - np.log(total)) <= 0.51
    assert max_ulp(y[:1000], x[:1000].astype(np.longdouble) - np.log(total)) <= 0.51


def test_more_than_2_to_the_31_columns_side_by_side(threads):
    """Two steps of each, which overlap in memory; one thread, which takes them all at once."""
    block = random_array(BLOCK, "float16", sigma=2, seed=4)
    memory = np.resize(block, PAST_32_BITS + 64)
    memory[-64:] = np.arange(64) / 8
    x = np.lib.stride_tricks.as_strided(memory, (2, PAST_32_BITS), (64 * 2, 2))
    out = np.full(PAST_32_BITS, np.nan, np.float16)
    threads(1)
    onepass.logsumexp(x, 0, out=out)
    for start in (*range(0, PAST_32_BITS, BLOCK), PAST_32_BITS - 1000):
        stop = min(start + BLOCK, PAST_32_BITS)
        if start % (50 * BLOCK) == 0 or stop == PAST_32_BITS:
            expected = reference.logsumexp(x[:, start:stop], 0, dtype=np.longdouble)
            assert max_ulp(out[start:stop], expected, floor=FLOORS["logsumexp"]) <= 0.51, start
        else:
            assert np.array_equal(out[start : stop - 64], out[: stop - start - 64]), start
