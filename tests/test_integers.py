"""Integers: NumPy's in reductions, and float64 elsewhere."""

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
    ("sum", np.zeros((), np.int64)[None], ValueError, r"out has shape \(1,\)"),
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
        out = np.array(~expected if expected.dtype == bool else expected + 1)
        assert getattr(onepass, op)(x, dim, keepdim, out=out) is out
        for result in (actual, out, getattr(onepass, op)(x.tolist(), dim, keepdim) if dtype == np.int64 else actual):
            assert np.array_equal(result, expected) and result.dtype == expected.dtype


def test_an_out_whose_elements_share_memory_is_refused():
    out = np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (2,), (0,))
    with pytest.raises(ValueError, match="^sum: elements of out share memory"):
        onepass.sum(np.array([[1, 2], [3, 4]]), out=out)


def test_what_is_an_array_by_one_protocol_alone_is_numpys():
    class Array:
        __dlpack__ = None

        def __array__(self, dtype=None, copy=None):
            return np.array([2**53 + 1, 0])

    assert onepass.sum(Array()) == 2**53 + 1


@pytest.mark.filterwarnings("error")
def test_the_mean_of_nothing_is_nan():
    x = np.zeros((2, 0), int)
    out = np.zeros(2)
    for result in (onepass.mean(x), onepass.mean(x, out=out), out):
        assert result.shape == (2,) and np.isnan(result).all()
    assert onepass.mean(x, 0, keepdim=np.True_).shape == (1, 0)
    assert onepass.sum(x).tolist() == [0, 0]


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

    words = rf"^{op}: x of type Array, shape \(2,\) has dtype int64; .*numpy.asarray\(x\): integers are NumPy's"
    with pytest.raises(TypeError, match=words):
        getattr(onepass, op)(Array(np.array([2**53 + 1, 1])))
    assert np.array_equal(onepass.softmax(Array(np.array([5, 5]))), [0.5, 0.5])
