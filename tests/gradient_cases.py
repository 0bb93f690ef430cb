"""What the tests of gradients share: inputs, the float64 reference, and the size of the terms that errors are
measured against."""

import numpy as np
from helpers import DTYPES, random_array, to_numpy, to_torch
from ulp import spacing, wider_than

import onepass
from onepass import reference

PAIRS = ("softmax_backward", "log_softmax_backward")
GRADIENTS = (*PAIRS, "logsumexp_backward")
# Largest error in ULP of the terms (`terms_of`) over anything that may come.
LIMITS = {
    **{(op, dtype): 0.53 for op in GRADIENTS for dtype in ("float16", "bfloat16")},
    ("softmax_backward", "float32"): 6,
    ("softmax_backward", "float64"): 4,
    ("log_softmax_backward", "float32"): 4,
    ("log_softmax_backward", "float64"): 3,
    ("logsumexp_backward", "float32"): 3,
    ("logsumexp_backward", "float64"): 4,
}


def inputs_of(op, shape, dtype, dim, sigma=3.0, seed=0):
    """dy and y, of logsumexp_backward dy, x and lse, as the forward operation has made them."""
    x = np.asarray(random_array(shape, dtype, sigma, seed))
    y = np.asarray(getattr(onepass, op.removesuffix("_backward"))(x, dim))
    dy = np.asarray(random_array(y.shape, dtype, seed=seed + 1))
    return (dy, x, y) if op == "logsumexp_backward" else (dy, y)


def expected_of(op, given, dim, **options):
    """The result in extended precision."""
    return getattr(reference, op)(*given, dim, dtype=np.longdouble, **options)


def terms_of(op, given, dim, expected):
    """What a result is a sum or difference of: |y| * (|dy| + sum |dy * y|), or |dy| + exp(y) * sum |dy|."""
    if op == "logsumexp_backward":
        return np.abs(expected)
    dy, y = (np.asarray(a).astype(np.float64).astype(expected.dtype) for a in given)
    axes = tuple(range(y.ndim)) if dim is None else () if y.ndim == 0 else dim
    with np.errstate(all="ignore"):
        if op == "softmax_backward":
            return np.abs(y) * (np.abs(dy) + np.abs(dy * y).sum(axis=axes, keepdims=True))
        return np.abs(dy) + np.exp(y) * np.abs(dy).sum(axis=axes, keepdims=True)


def error_of(op, got, given, dim, expected=None, **options):
    """The largest error in ULP of the terms; infinite where one is NaN or infinite and the other is not."""
    got = to_numpy(got)
    expected = expected_of(op, given, dim, **options) if expected is None else expected
    if expected.size == 0:
        return 0.0
    wider = wider_than(got.dtype, *(np.asarray(a).dtype for a in given))
    wide = got.astype(np.float64).astype(wider)
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype).astype(np.float64)  # overflows where the result has to
        special = (~np.isfinite(rounded)) | (~np.isfinite(wide))
        expected = expected.astype(wider)
        terms = terms_of(op, given, dim, expected)
        error = np.abs(wide - expected) / spacing(np.where(np.isfinite(terms), terms, 1), got.dtype)
        right = (wide == rounded) | (np.isnan(wide) & np.isnan(rounded))
    return float(np.where(special, np.where(right, 0, np.inf), error).max())


def torchs(op, given, dim):
    """torch's own result, as a NumPy array."""
    import torch

    dy, y, *lse = map(to_torch, given)
    if lse:
        dy, lse = dy.unsqueeze(dim), lse[0].unsqueeze(dim)
        return to_numpy(dy * (y - lse).exp())
    function = getattr(torch.ops.aten, f"_{op}_data")
    return to_numpy(function(dy, y, dim, y.dtype))


def call(op, given, *args, **options):
    return getattr(onepass, op)(*given, *args, **options)


def cast(arrays, *dtypes):
    return tuple(np.asarray(a.astype(DTYPES[t])) for a, t in zip(arrays, dtypes, strict=True))
