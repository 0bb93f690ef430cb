"""The plan for an array as it lies, and of a gradient for what it is given: what tests of a GPU's tiles ask for."""

import numpy as np
from helpers import DTYPES

from onepass.call_gradients import checked
from onepass.cuda.device import by_name
from onepass.cuda.plan import make_cuda_plan
from onepass.problem import make_problem

H200 = by_name("h200")


def empty(*shape, dtype="float32"):
    return np.empty(shape, DTYPES[dtype])


def plan_of(x, dim=-1, op="softmax", device=H200, addresses=(0, 0), result=None, **options):
    strides = tuple(stride // x.itemsize for stride in x.strides)
    dims = tuple(axis % x.ndim for axis in (dim if isinstance(dim, tuple) else (dim,)))
    problem = make_problem(op, x.dtype.name, x.shape, dims, strides=strides, result_dtype=result)
    return make_cuda_plan(problem, device, addresses=addresses, **options)


def gradient_of(saved, dy, dim=-1, out=None, op="softmax_backward"):
    problem = checked(op, (saved, dy), dim, False, None, out)[1]
    return make_cuda_plan(problem, H200, addresses=(0,) * 4)
