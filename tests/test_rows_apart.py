"""Rows that lie apart in memory: fetched a whole row ahead, with the bits of those that follow each other."""

import numpy as np
import pytest
from helpers import nan_filled

import onepass
from onepass import _engine
from onepass.cpu import cpu_plan

OPS = ("softmax", "log_softmax", "logsumexp", "sum", "mean", "amax", "amin")
GRADIENTS = ("softmax_backward", "log_softmax_backward")
# Columns, of how many: little between rows and more, one vector over and nothing over, more than a MiB of each.
WIDTHS = [(257, 300), (513, 514), (600, 700), (1000, 1400), (1024, 1500), (2049, 4096), (5003, 8000)]


@pytest.fixture(params=[False, True], ids=["hints", "no hints"])
def hints(request, looking_far_ahead, threads):
    looking_far_ahead(request.param)
    threads(1)


@pytest.fixture(params=[1, 1 << 40], ids=["memory", "cache"])
def where_results_go(request, monkeypatch):
    monkeypatch.setattr(cpu_plan, "NONTEMPORAL_BYTES", request.param)
    _engine.forget_all()
    assert onepass.explain("softmax_backward", (600, 1024)).plan.nontemporal == (request.param == 1)
    yield
    _engine.forget_all()


def parts_of(columns, width, dtype):
    """Of an array with more than a MiB of such columns: as it lies, backwards, every second row, and in the middle."""
    rows = (1 << 20) // (columns * np.dtype(dtype).itemsize) * 2 + 3
    x = np.random.default_rng(columns).standard_normal((rows, width)).astype(dtype)
    return x[:, :columns], x[::-1, :columns], x[::2, width - columns :], x[:, (width - columns) // 2 :][:, :columns]


def bits(op, x, *more):
    out = nan_filled(x.shape if "softmax" in op else x.shape[:1], x.dtype)
    getattr(onepass, op)(x, *more, -1, out=out)
    return out.tobytes()


@pytest.mark.usefixtures("hints")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op", OPS)
def test_what_lies_between_rows_changes_no_bit(op, dtype):
    for columns, width in WIDTHS:
        for part in parts_of(columns, width, dtype):
            assert bits(op, part) == bits(op, part.copy()), (columns, width)


@pytest.mark.usefixtures("hints", "where_results_go")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", GRADIENTS)
def test_nor_of_gradients(op, dtype):
    """Of one input, or of both, apart by the same or not."""
    for columns, width in WIDTHS:
        for part in parts_of(columns, width, dtype):
            dy = part[::-1]
            y = getattr(onepass, op.removesuffix("_backward"))(part.copy())
            expected = bits(op, dy.copy(), y)
            wide = np.zeros((len(y), width), dtype)
            wide[:, :columns] = y
            for given in (y, wide[:, :columns]):
                assert bits(op, dy, given) == expected, (columns, width)
                assert bits(op, dy.copy(), given) == expected, (columns, width)
