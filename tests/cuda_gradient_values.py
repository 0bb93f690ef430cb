"""Values that the CUDA kernels of gradients are run on, and how far off they may be."""

import numpy as np

# The largest error in ULP of the terms that a result is a difference of: of 16-bit results what rounding leaves, of
# others as measured, 2.4, with room for the 1 ULP of a GPU's exp and for other data.
LIMITS = {"float16": 0.52, "bfloat16": 0.52, "float32": 3.5, "float64": 3.5}
SPECIAL_ROWS = 14


def with_specials(op, shape, dims):
    """Rows with NaN and infinities in dy and in what was saved, masked elements, nothing but masked elements, and
    numbers from huge to tiny."""
    assert dims == (len(shape) - 1,)
    random = np.random.default_rng(6)
    x, dy = random.standard_normal(shape) * 3, random.standard_normal(shape)
    x[0, ::3] = -np.inf
    x[1] = -np.inf
    x[2, 5] = np.inf
    x[3, 5] = np.nan
    x[4] = x[4] * 1e4
    dy[5, 7] = np.nan
    dy[6, 7] = np.inf
    dy[7, 2:4] = np.inf, -np.inf
    dy[8] *= 1e30
    dy[9] *= 1e-36
    dy[10] = 0
    x[11, 1:] = -90
    x[12] = x[12] * 40
    x[13] = x[13] - 1e5
    # In float32, as a caller has it.
    x = x.astype(np.float32).astype(np.float64)
    with np.errstate(all="ignore"):
        top = x.max(-1, keepdims=True)
        lse = np.where(np.isfinite(top), np.log(np.exp(x - top).sum(-1, keepdims=True)) + top, top)
        log_p = x - lse
        log_p[1] = -np.inf
    if op == "logsumexp_backward":
        return dy[:, 2:3], x, lse.astype(np.float32)
    return dy, np.exp(log_p) if op == "softmax_backward" else log_p, lse


def with_subnormal_exponentials(op, shape, dims):
    """Of log_softmax or logsumexp: exponentials that float32 has as subnormal numbers, or not at all, times what makes
    them seen and what leaves nothing of them. In float32 itself they are as coarse as they are."""
    assert dims == (len(shape) - 1,) and shape[0] == 4
    x = np.zeros(shape)
    x[:, 1:] = np.linspace(-85, -102, shape[1] - 1)
    sums = np.array([[1.5e25], [1.5], [1.5e-29], [1.5e-33]])
    dy = np.zeros(shape)
    dy[:, :1] = sums
    lse = np.zeros((4, 1))
    return (sums, x, lse) if op == "logsumexp_backward" else (dy, x, lse)
