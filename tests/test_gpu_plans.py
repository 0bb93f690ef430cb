"""Which algorithm each layout of gpu_layouts.py brings about: what `pytest -m gpu` asserts of calls, planned."""

import numpy as np
import pytest
from gpu_layouts import LAYOUTS, is_expected
from helpers import DTYPES, REDUCTIONS, SOFTMAX_FAMILY

from onepass.cuda.device import by_name
from onepass.cuda.plan import make_cuda_plan
from onepass.problem import make_problem, normalize_dims


def algorithm_of(op, x, base, dim):
    strides = tuple(stride // x.itemsize for stride in x.strides)
    into = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    problem = make_problem(op, x.dtype.name, x.shape, normalize_dims(op, dim, x.shape), strides=strides)
    return make_cuda_plan(problem, by_name("h200"), addresses=(into, 0)).algorithm


@pytest.mark.parametrize("op", (*SOFTMAX_FAMILY, *REDUCTIONS))
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout(name, op):
    shape, dim, view, _ = LAYOUTS[name]
    for dtype in DTYPES:
        base = np.zeros(shape, DTYPES[dtype])
        algorithm = algorithm_of(op, base if view is None else view(base), base, dim)
        assert is_expected(name, op, dtype, algorithm), (dtype, algorithm)
