"""Integers: exact in reductions, by NumPy, and float64 elsewhere."""

import numpy as np
import pytest

import onepass
from onepass.problem import REDUCTIONS


def test_a_matrix_of_integers_has_a_sum():
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1, 2], [3, 4]])
    assert onepass.sum(matrix).tolist() == [3, 7]


INTEGERS_NO_RESULT_FITS = [
    ("sum", np.zeros((), np.int8), TypeError, "out has dtype int8, the result has dtype int64"),
    ("mean", np.zeros((), np.int64), TypeError, "out has dtype int64, the result has dtype float64"),
    ("amax", np.zeros((), np.float64), TypeError, "out has dtype float64, the result has dtype int32"),
    ("amin", np.zeros(2, np.int32), ValueError, r"out has shape \(2,\), the result has shape \(\)"),
    ("sum", np.ma.zeros((), np.int64), TypeError, "out must be a numpy.ndarray, got numpy.ma.MaskedArray"),
    ("sum", [0], TypeError, "out must be a numpy.ndarray, got builtins.list"),
    ("amax", np.frombuffer(bytes(4), np.int32).reshape(()), ValueError, r"out of shape \(\), dtype int32 is read-only"),
]


@pytest.mark.parametrize(("op", "out", "error", "words"), INTEGERS_NO_RESULT_FITS, ids=str)
def test_integers_are_not_cast_to_what_out_has(op, out, error, words):
    with pytest.raises(error, match=f"^{op}: {words}"):
        getattr(onepass, op)(np.array([200, 300], np.int32), out=out)
    assert np.all(np.asarray(out) == 0)


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, bool], ids=str)
def test_integers_are_as_numpy_has_them(op, dtype):
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    for dim, keepdim in ((0, False), (-1, True), ((0, 2), False), (None, True)):
        expected = getattr(np, op)(x, axis=dim, keepdims=keepdim)
        actual = getattr(onepass, op)(x, dim, keepdim)
        out = np.full_like(expected, 77)
        assert getattr(onepass, op)(x, dim, keepdim, out=out) is out
        for result in (actual, out, getattr(onepass, op)(x.tolist(), dim, keepdim) if dtype == np.int64 else actual):
            assert np.array_equal(result, expected) and result.dtype == expected.dtype


def test_integers_of_no_rows_have_no_extremes():
    x = np.zeros((0, 5, 0), int)
    assert onepass.amax(x, 2).shape == (0, 5) and onepass.amin(x, 2, True).dtype == x.dtype
    with pytest.raises(ValueError, match="amax: .* is empty"):
        onepass.amax(x[:, :, :0].sum(2), 0)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_integers_of_other_libraries_are_not_rounded(op):
    class Array:
        def __init__(self, array):
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    words = rf"^{op}: x of type Array, shape \(2,\) has dtype int64; .*numpy.asarray\(x\), whose {op} is exact"
    with pytest.raises(TypeError, match=words):
        getattr(onepass, op)(Array(np.array([2**53 + 1, 1])))
    assert np.array_equal(onepass.softmax(Array(np.array([5, 5]))), [0.5, 0.5])
