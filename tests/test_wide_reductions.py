"""Reductions of many columns: from memory a few rows at a time along all, with the bits of one after the other."""

import numpy as np
import pytest
from helpers import nan_filled
from test_cpu_plans import LONG_VECTORS, plan_of

import onepass
from onepass import _engine
from onepass.cpu import cpu_plan

OPS = ("sum", "mean", "amax", "amin")
# Rows: eight at a time, sixteen (of float64 two) before they go to float64. Columns: eight vectors at a time (sixteen
# of 16 bits), pieces of at most 8192, the least of float32 (768), float64 (384) and float16 (8192).
SHAPES = [(9, 768), (16, 769), (17, 1000), (24, 1543), (40, 8191), (33, 8193), (60, 2048), (10, 20011)]


@pytest.fixture
def looks_no_further(looking_far_ahead, threads):
    """Of one thread all columns are one run."""
    looking_far_ahead(False)
    threads(1)


def array_of(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def both_ways(op, x, cached_share, axis=1):
    """The bits of both ways, and how the second one went about it."""
    shape = tuple(size for a, size in enumerate(x.shape) if a != axis)
    results = []
    for share in (1e9, 0):
        cached_share(share)
        out = nan_filled(shape, x.dtype)
        getattr(onepass, op)(x, axis, out=out)
        assert share == 0 or _engine.last_form() == "usual"
        results.append(out.tobytes())
    return results, _engine.last_form()


@pytest.mark.usefixtures("looks_no_further")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_the_order_changes_no_bit(op, dtype, cached_share):
    least = {"float32": 768, "float64": 384, "float16": 8192 if _engine.vector_bytes() > 16 else np.inf}[dtype]
    for rows, columns in SHAPES:
        (by_columns, by_rows), form = both_ways(op, array_of((5, rows, columns), dtype), cached_share)
        assert form == ("wide" if columns >= least else "usual"), (rows, columns)
        assert by_columns == by_rows, (rows, columns)


# Shape, threads: the columns of an outer index are one run, or several of about 2048 and more that need not be as wide
# as each other, if threads have nothing to do for at most a tenth of their time.
SHARED = [
    ((20, 16384), 2, "wide"),  # eight parts
    ((20, 16384), 8, "wide"),  # a part for each
    ((20, 5001), 2, "wide"),  # two parts, one with less
    ((20, 5001), 3, "usual"),  # a thread would have none
    ((20, 10000), 4, "wide"),  # of up to four parts, not the five there might be
    ((2, 20, 5000), 2, "wide"),
    ((2, 20, 5000), 8, "usual"),
    ((3, 12, 7001), 3, "wide"),  # nine runs
    ((3, 20, 30000), 8, "wide"),  # of eleven parts a fifth of the last round would be idle
    ((17, 9, 8192), 4, "wide"),  # of one part each, too: so four
    ((3, 12, 2048), 2, "usual"),  # three runs
    ((5, 12, 2048), 2, "usual"),
    ((7, 9, 800), 2, "usual"),
    ((9, 9, 800), 2, "wide"),  # nine of ten
]


@pytest.mark.usefixtures("looks_no_further")
@pytest.mark.parametrize("op", ["sum", "amax"])
def test_columns_are_shared_out(op, cached_share, threads, monkeypatch):
    monkeypatch.setattr(cpu_plan, "PARALLEL_ELEMENTS", 1)  # among all threads, little as there is
    for shape, count, form in SHARED:
        threads(count)
        (by_columns, by_rows), how = both_ways(op, array_of(shape, "float32"), cached_share, len(shape) - 2)
        assert (how == "wide", by_columns == by_rows) == (form == "wide", True), (shape, count)


@pytest.mark.usefixtures("looks_no_further")
@pytest.mark.parametrize("op", OPS)
def test_outer_axes_that_are_not_one(op, cached_share):
    x = array_of((4, 3, 20, 1000), "float32")[:, :2]
    (by_columns, by_rows), form = both_ways(op, x, cached_share, 2)
    assert form == "wide"
    assert by_columns == by_rows


@pytest.mark.usefixtures("looks_no_further")
@pytest.mark.parametrize("op", ["sum", "amax"])
def test_bfloat16(op, cached_share):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(array_of((4, 20, 8200), "float32")).bfloat16()
    results = []
    for share in (1e9, 0):
        cached_share(share)
        out = torch.full((4, 8200), torch.nan, dtype=torch.bfloat16)
        results.append(getattr(onepass, op)(x, 1, out=out).view(torch.int16))
        assert (_engine.last_form() == "wide") == (share == 0 and _engine.vector_bytes() > 16)
    assert torch.equal(*results)


@pytest.mark.usefixtures("looks_no_further")
@pytest.mark.parametrize("op", OPS)
def test_rows_that_lie_apart(op, cached_share):
    x = array_of((4, 20, 2500), "float32")
    for columns, form in ((2499, "wide"), (2048, "wide"), (2047, "usual")):
        for part in (x[:, :, :columns], x[:, ::-1, :columns], x[:, ::2, 2500 - columns :]):
            (by_columns, by_rows), how = both_ways(op, part, cached_share)
            assert by_columns == by_rows
            assert how == form


@pytest.mark.usefixtures("looks_no_further")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("special", [[np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [0.0, -0.0], [-0.0]])
def test_special_values(op, special, cached_share):
    x = array_of((4, 20, 1000), "float32")
    x[1, :, 200:300] = np.resize(np.float32(special), 20)[:, None]
    x[2, 7, 999] = special[0]
    (by_columns, by_rows), form = both_ways(op, x, cached_share)
    assert form == "wide"
    assert by_columns == by_rows
    with np.errstate(all="ignore"):
        expected = getattr(np, op)(x.astype(np.float64), axis=1)
        result = np.frombuffer(by_rows, np.float32).reshape(4, 1000)
        finite = np.isfinite(expected) & (np.abs(expected) < 3e38)
        # sixteen of them at a time are added up in float32
        sizes = np.where(np.isfinite(x), np.abs(x), 0).astype(np.float64).sum(1)
        limit = np.spacing(sizes.astype(np.float32)) * 8
        assert np.array_equal(result[~finite], expected[~finite].astype(np.float32), equal_nan=True)
        assert np.all(np.abs(result - expected)[finite] <= limit[finite])


@pytest.mark.usefixtures("looks_no_further")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op", ["amax", "amin"])
def test_a_nan_is_that_of_its_column(op, dtype, cached_share, threads):
    """In the first piece, in the last, and in a part of another thread: the columns around it are looked for again."""
    wide = dtype != "float16" or _engine.vector_bytes() > 16
    for count, shape, place in (
        (1, (2, 20, 20001), (0, 3, 5)),
        (1, (2, 20, 20001), (1, 19, 20000)),
        (2, (1, 20, 16384), (0, 7, 12000)),
        (2, (1, 20, 16384), (0, 0, 16383)),
    ):
        threads(count)
        x = array_of(shape, dtype)
        x[place] = np.nan
        (by_columns, by_rows), form = both_ways(op, x, cached_share)
        assert (form == "wide") == wide
        assert by_columns == by_rows
        result = np.frombuffer(by_rows, dtype).reshape(shape[0], shape[2])
        assert np.argwhere(np.isnan(result)).tolist() == [[place[0], place[2]]]


@pytest.mark.usefixtures("looks_no_further")
def test_every_row_is_added_once(cached_share):
    cached_share(0)
    for rows, columns in SHAPES:
        assert np.all(onepass.sum(np.ones((2, rows, columns), np.float32), 1) == rows)
        assert _engine.last_form() == "wide"


@pytest.mark.usefixtures("looks_no_further")
def test_what_is_read_along_its_rows(cached_share, looking_far_ahead):
    cached_share(0)
    for shape, form in (((4, 8, 1000), "usual"), ((4, 9, 1000), "wide"), ((4, 9, 767), "usual"), ((4, 9, 768), "wide")):
        onepass.sum(array_of(shape, "float32"), 1)
        assert _engine.last_form() == form, shape
    looking_far_ahead(True)
    onepass.sum(array_of((4, 9, 1000), "float32"), 1)
    assert _engine.last_form() == "usual"


@pytest.mark.parametrize(("columns", "cached"), [(12288, True), (12289, False)])
def test_inputs_that_l3_may_have(columns, cached):
    """24 MiB of 32."""
    assert plan_of(LONG_VECTORS, "sum", (8, 64, columns)).cached == cached
    assert plan_of(LONG_VECTORS, "amax", (8, 64, columns)).cached == cached
    assert not plan_of(LONG_VECTORS, "softmax", (8, 64, columns)).cached
