"""Long rows that are added up: by streams from memory, in the order of memory from the cache. The same bits."""

import dataclasses

import numpy as np
import pytest
from helpers import nan_filled
from test_cpu_plans import LONG_VECTORS, plan_of

import onepass

# Blocks of four streams have 64 KiB; what is left of a row is less, or nothing, and chunks have 32768 elements.
LENGTHS = (16383, 16384, 16385, 20000, 32768, 50000, 131072 + 7)


# Operation, shape, dtype: whether the input, of at most 24 MiB, is read in order, by a machine with 32 MiB of L3.
CACHED = [
    ("sum", (1, 6 << 20), "float32", True),
    ("sum", (1, (6 << 20) + 1), "float32", False),  # more than the cache may have
    ("mean", (384, 16384), "float32", True),
    ("mean", (384, 16383), "float32", False),  # no streams otherwise
    ("sum", (1, 6 << 20), "bfloat16", False),
    ("sum", (1, 1 << 20), "float64", False),
    ("amax", (1, 6 << 20), "float32", False),  # whose zeros would have other signs
    ("softmax", (1, 1 << 20), "float32", False),
]


@pytest.mark.parametrize(("op", "shape", "dtype", "cached"), CACHED)
def test_what_is_read_in_order(op, shape, dtype, cached):
    plan = plan_of(LONG_VECTORS, op, shape, dtype)
    assert plan.cached == cached
    assert any("in the order of memory" in reason for reason in plan.why) == cached


@pytest.mark.parametrize(
    ("op", "length", "dtype", "cached"),
    [
        ("sum", 64, "float32", True),
        ("mean", 128, "float32", True),
        ("sum", 63, "float32", False),  # fetched from memory, too
        ("sum", 129, "float32", False),
        ("sum", 64, "bfloat16", False),
        ("amax", 64, "float32", False),
    ],
)
def test_rows_that_are_fetched_from_l3(op, length, dtype, cached):
    """By AVX2, of up to 24 MiB of an L3 of 32."""
    for bytes_, vectors, fetched in ((24 << 20, 32, cached), (25 << 20, 32, False), (24 << 20, 64, False)):
        machine = dataclasses.replace(LONG_VECTORS, vector_bytes=vectors)
        plan = plan_of(machine, op, (bytes_ // (length * 4), length), dtype)
        assert fetched == any("rows that follow are fetched" in reason for reason in plan.why)
        assert plan.cached == fetched or vectors == 64


@pytest.mark.parametrize(
    ("op", "length", "dtype", "cached"),
    [
        ("sum", 33, "float32", True),
        ("amax", 64, "float32", True),
        ("amax", 65, "float32", False),
        ("amin", 64, "bfloat16", False),
        ("logsumexp", 40, "float32", False),
    ],
)
def test_rows_whose_lines_are_asked_for(op, length, dtype, cached):
    """Not those of up to 24 MiB of an L3 of 32, where they go across."""
    for bytes_, in_l3 in ((24 << 20, cached), (25 << 20, False)):
        assert plan_of(LONG_VECTORS, op, (bytes_ // (length * 4), length), dtype).cached == in_l3


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("far", [False, True], ids=["hints", "no hints"])
def test_the_order_changes_no_bit(op, length, far, cached_share, looking_far_ahead):
    x = np.random.default_rng(length).standard_normal((3, length)).astype(np.float32)
    x[1, length // 2] = np.nan
    looking_far_ahead(far)
    for rows in (slice(0, 3), slice(2, 3)):
        results = []
        for number in (0, 1e9):
            cached_share(number)
            cached = bool(number) and length >= 16384
            assert onepass.explain(op, x[rows]).plan.cached == cached
            out = nan_filled(x[rows].shape[:1], np.float32)
            results.append(getattr(onepass, op)(x[rows], out=out).tobytes())
        assert results[0] == results[1]


@pytest.mark.parametrize("share_of_l3", [0, 1e9])
def test_every_element_is_added_once(cached_share, share_of_l3):
    cached_share(share_of_l3)
    for length in LENGTHS:
        x = np.ones((2, length), np.float32)
        assert onepass.sum(x).tolist() == [length, length]
