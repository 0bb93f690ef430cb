"""What a gradient is before anything runs: its arguments checked, its two or three layouts collapsed, its bytes."""

import numpy as np
import pytest
from helpers import KINDS, as_kind, random_array

import onepass
from onepass import call_gradients, gradients
from onepass.problem import Axis, Operand, make_problem, spread_strides


def problem_of(dy, y, dim=-1, op="softmax_backward", **options):
    given = {"keepdim": False, "dtype": None, "out": None, **options}
    return call_gradients.checked(op, (y, dy), dim, given["keepdim"], given["dtype"], given["out"])[1]


def problem_of_logsumexp(dy, x, lse, dim=-1, keepdim=False):
    return call_gradients.checked("logsumexp_backward", (x, dy, lse), dim, keepdim, None, None)[1]


def test_contiguous_inputs_collapse_as_one_does():
    y = random_array((3, 4, 5, 6))
    problem = problem_of(y, y, dim=(2, 3))
    assert (problem.outer, problem.reduce) == ((Axis(12, 30, 30, 30),), (Axis(30, 1, 1, 1),))
    assert (problem.second_dtype, problem.third_dtype) == ("float32", None)


def test_axes_merge_only_where_every_input_allows():
    y = random_array((3, 4, 5))
    dy = random_array((4, 3, 5)).transpose(1, 0, 2)
    problem = problem_of(dy, y)
    assert problem.outer == (Axis(3, 20, 20, 5), Axis(4, 5, 5, 15))
    assert problem.reduce == (Axis(5, 1, 1, 1),)


def test_a_broadcast_gradient_is_read_in_place():
    y = random_array((8, 100))
    problem = problem_of(np.broadcast_to(np.float32(1), y.shape), y)
    assert (problem.outer, problem.reduce) == ((Axis(8, 100, 100, 0),), (Axis(100, 1, 1, 0),))
    assert problem.input_bytes == 3200 + 4


@pytest.mark.parametrize("keepdim", [False, True])
def test_one_value_a_row_has_no_stride_along_it(keepdim):
    x = random_array((2, 3, 4))
    dy = np.zeros((2, 1, 4) if keepdim else (2, 4), np.float64)
    lse = np.zeros_like(dy, np.float32)
    problem = problem_of_logsumexp(dy, x, lse, 1, keepdim)
    assert problem.reduce == (Axis(3, 4, 4, 0, 0),)
    assert problem.outer == (Axis(2, 12, 12, 4, 4), Axis(4, 1, 1, 1, 1))
    assert (problem.second_dtype, problem.third_dtype, problem.compute_dtype) == ("float64", "float32", "float32")
    assert problem.input_bytes == 24 * 4 + 8 * 8 + 8 * 4
    assert problem.result_shape == (2, 3, 4)


def test_strides_are_spread_over_the_kept_axes():
    assert spread_strides((7, 2), (1,), 3) == (7, 0, 2)
    assert spread_strides((7, 9, 2), (1,), 3) == (7, 0, 2)
    assert spread_strides((), (0, 1), 2) == (0, 0)


@pytest.mark.parametrize("op", ["softmax_backward", "log_softmax_backward"])
def test_the_result_has_the_dtype_of_y_or_the_one_named(op):
    y, dy = random_array((2, 3), "float16"), random_array((2, 3))
    assert problem_of(dy, y, op=op).result_dtype == "float16"
    problem = problem_of(dy, dy, op=op, dtype="bfloat16")
    assert (problem.dtype, problem.second_dtype, problem.result_dtype) == ("float32", "float32", "bfloat16")
    assert problem_of(dy.astype(np.float64), y, op=op).compute_dtype == "float64"


def test_bytes_count_every_input_and_what_is_read_again():
    y, dy = random_array((64, 1000)), random_array((64, 1000), "float64")
    for op, again in (("softmax_backward", 12), ("log_softmax_backward", 8)):
        problem = problem_of(dy, y, op=op)
        assert problem.floor_bytes == 64_000 * (4 + 8 + 4)
        assert problem.reread_bytes == 64_000 * again  # the sum of log_softmax_backward is of dy alone


def test_nothing_has_no_rows():
    for shape in ((0, 3), (3, 0), (0,)):
        problem = problem_of(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        assert problem.outer == (Axis(0, 0, 0),)
        assert problem.input_bytes == problem.floor_bytes == 0


def test_problems_of_shapes_name_their_layout():
    second = Operand("bfloat16", (0, 1))
    problem = make_problem("softmax_backward", "float32", (6, 7), (1,), second=second)
    assert problem.outer == (Axis(6, 7, 7, 0),)
    assert problem.second_dtype == "bfloat16"


# ---- arguments that do not fit ----

Y = np.full((2, 3), 1 / 3, np.float32)


@pytest.mark.parametrize("name", ["softmax_backward", "log_softmax_backward"])
@pytest.mark.parametrize("kind", KINDS)
def test_dy_has_the_shape_of_y(name, kind):
    y, dy = as_kind(Y.copy(), kind), as_kind(np.zeros((2, 1), np.float32), kind)
    with pytest.raises(ValueError, match=rf"^{name}: dy has shape \(2, 1\); expected \(2, 3\) beside y .*broadcast it"):
        getattr(gradients, name)(dy, y)


def test_dy_and_lse_have_the_shape_of_the_result_of_logsumexp():
    row = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=r"dy has shape \(2, 3\); expected \(2,\) beside x of shape \(2, 3\): see dim"):
        gradients.logsumexp_backward(Y, Y, row)
    with pytest.raises(ValueError, match=r"lse has shape \(2,\); expected \(2, 1\)"):
        gradients.logsumexp_backward(row[:, None], Y, row, keepdim=True)
    with pytest.raises(ValueError, match=r"dy has shape \(2,\); expected \(3,\)"):
        gradients.logsumexp_backward(row, Y, row, 0)


def test_dy_is_of_the_kind_of_y():
    with pytest.raises(TypeError, match=r"dy must be a torch\.Tensor like y, got numpy\.ndarray"):
        onepass.gradients.softmax_backward(Y, as_kind(Y.copy(), "torch"))
    with pytest.raises(TypeError, match=r"dy must be a numpy\.ndarray like y, got torch\.Tensor"):
        onepass.gradients.softmax_backward(as_kind(Y.copy(), "torch"), Y)


def test_errors_name_the_argument():
    with pytest.raises(TypeError, match=r"^softmax_backward: dy of shape \(2, 3\) has complex dtype .*dy\.astype"):
        gradients.softmax_backward(Y.astype(complex), Y)
    with pytest.raises(TypeError, match=r"^softmax_backward: y is a masked array .*y\.filled"):
        gradients.softmax_backward(Y, np.ma.masked_array(Y))
    with pytest.raises(ValueError, match=r"dim 2 is out of range for an input of shape \(2, 3\)"):
        gradients.softmax_backward(Y, Y, 2)
    with pytest.raises(TypeError, match="dtype dtype.*int64.* is not a dtype of a result|dtype <class 'int'>"):
        gradients.softmax_backward(Y, Y, dtype=int)


def test_out_is_an_input_or_apart_from_all_of_them():
    memory = np.full(100, np.nan, np.float32)
    y, dy = memory[:6].reshape(2, 3), memory[10:16].reshape(2, 3)
    for name, start in (("y", 1), ("dy", 11)):
        with pytest.raises(ValueError, match=rf"out of shape \(2, 3\) overlaps {name} without being exactly {name}"):
            gradients.softmax_backward(dy, y, out=memory[start : start + 6].reshape(2, 3))
    assert np.isnan(memory).all()
    lse = memory[50:52]
    with pytest.raises(ValueError, match="overlaps lse without being exactly lse"):
        gradients.logsumexp_backward(memory[60:62], y, lse, out=memory[48:54].reshape(2, 3))
    with pytest.raises(TypeError, match=r"out must be a numpy\.ndarray like y, got builtins\.list"):
        gradients.softmax_backward(dy, y, out=[1, 2])
    with pytest.raises(TypeError, match=r"out has dtype float64, the result has dtype float32"):
        gradients.softmax_backward(dy, y, out=np.empty((2, 3)))
