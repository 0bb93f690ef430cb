"""Any shape, dim, strides, element type and special values, NumPy and torch, against the reference.

200 examples a test as a rule; `pytest tests/test_shapes.py --hypothesis-profile=full` checks more than 20,000. Results
go to fresh arrays, to outputs full of NaN with strides of their own, and into the input itself.
"""

import math

import ml_dtypes
import numpy as np
import pytest
from helpers import (
    DTYPES,
    ELEMENTWISE,
    FLOORS,
    LIMITS,
    REDUCTIONS,
    SOFTMAX_FAMILY,
    same_bits,
    to_numpy,
    to_torch,
    torch_dtype,
)
from hypothesis import given
from hypothesis import strategies as st
from ulp import ulp_error

import onepass
from onepass import reference

MOST_ELEMENTS = 40_000
# Tails of one and of all but one for vectors of every width, the edges of `registers`, and rows of several chunks.
LONG = (15, 16, 17, 31, 32, 33, 63, 65, 100, 127, 128, 129, 255, 257, 1000, 1023, 1025, 4095, 4097, 9001)
INTEGERS = ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64")
GUARD = 70  # elements before and after every array: more than a vector
OUTSIDE = 77.0  # fills the memory around a strided output


class Layout:
    """A view somewhere in a 1-d array."""

    def __init__(self, base, view):
        self.base, self.view = base, view

    def __repr__(self):
        strides = tuple(s // self.view.itemsize for s in self.view.strides)
        return f"shape {self.view.shape}, strides {strides}, {self.view.dtype}"


@st.composite
def shapes(draw):
    sizes = draw(st.lists(st.integers(0, 6) | st.just(1), min_size=0, max_size=4))
    if sizes and draw(st.booleans()):
        at = draw(st.integers(0, len(sizes) - 1))
        sizes[at] = draw(st.sampled_from(LONG))
    while math.prod(sizes) > MOST_ELEMENTS:
        sizes.pop()
    return tuple(sizes)


@st.composite
def layouts(draw, shape, dtype, *, negative, broadcast):
    """Memory for `shape`: axes in any order, offsets, steps, and where allowed backwards or not stored at all."""
    n = len(shape)
    plain = draw(st.booleans())
    order = tuple(range(n)) if plain else tuple(draw(st.permutations(range(n))))  # order[k]: the axis at depth k
    steps = [(1, 2, 3, -1, -2) if negative else (1, 2, 3)] * n
    steps = [1 if plain else draw(st.sampled_from(choice)) for choice in steps]
    offsets = [0 if plain else draw(st.integers(0, 2)) for _ in shape]
    stored = [not (broadcast and not plain and draw(st.integers(0, 5)) == 0) for _ in shape]
    full = [offsets[a] + (shape[a] - 1) * abs(steps[a]) + 1 + offsets[a] if stored[a] else 1 for a in range(n)]
    full = [0 if stored[a] and shape[a] == 0 else full[a] for a in range(n)]
    base = np.zeros(GUARD + math.prod(full) + GUARD, dtype)
    by_axis = base[GUARD : base.size - GUARD].reshape([full[a] for a in order]).transpose(np.argsort(order).astype(int))
    pieces = []
    for a in range(n):
        if not stored[a] or shape[a] == 0:
            pieces.append(slice(None))
            continue
        last = offsets[a] + (shape[a] - 1) * abs(steps[a])
        if steps[a] > 0:
            pieces.append(slice(offsets[a], last + 1, steps[a]))
        else:
            stop = offsets[a] - 1
            pieces.append(slice(last, stop if stop >= 0 else None, steps[a]))
    view = by_axis[(*pieces, ...)]
    for a in range(n):
        if not stored[a]:
            view = _repeated(view, a, shape[a])
    assert view.shape == shape
    return Layout(base, view)


def _repeated(view, axis, size):
    """The one element along `axis`, `size` times, in the same memory."""
    shape = [*view.shape[:axis], size, *view.shape[axis + 1 :]]
    strides = [*view.strides[:axis], 0, *view.strides[axis + 1 :]]
    if view.size * size == 0:
        return np.lib.stride_tricks.as_strided(view, shape, strides)
    return np.ndarray(shape, view.dtype, view.base, _offset(view), strides)


def _offset(view):
    return view.ctypes.data - view.base.ctypes.data


@st.composite
def dims(draw, n):
    reach = max(n, 1)
    kind = draw(st.sampled_from(("one", "one", "one", "several", "all")))
    if kind == "all":
        return None
    if kind == "one" or n == 0:
        return draw(st.integers(-reach, reach - 1))
    several = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))
    return tuple(d - n if draw(st.booleans()) else d for d in several)


@st.composite
def fill(draw, layout, *, huge):
    """Random values of one spread and offset; now and then infinities, NaN, zeros, denormals, the largest numbers."""
    flat = layout.base
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if flat.dtype.kind in "biu":
        low, high = (0, 2) if flat.dtype.kind == "b" else (0, 100) if flat.dtype.kind == "u" else (-100, 100)
        flat[:] = rng.integers(low, high, flat.size).astype(flat.dtype)
        return
    sigma = draw(st.sampled_from((0.1, 1.0, 10.0, 30.0, 1e4)))
    offset = draw(st.sampled_from((0.0, 0.0, 100.0, -1e4)))
    flat[:] = (rng.standard_normal(flat.size) * sigma + offset).clip(-6e4, 6e4).astype(flat.dtype)
    info = ml_dtypes.finfo(flat.dtype)
    specials = [-np.inf, -np.inf, np.inf, np.nan, 0.0, -0.0, float(info.smallest_subnormal), float(info.tiny)]
    if huge:
        specials += [float(info.max), -float(info.max)]
    chosen = draw(st.lists(st.sampled_from(specials), max_size=3))
    share = draw(st.sampled_from((0.02, 0.3, 1.0)))
    for value in chosen:
        flat[rng.random(flat.size) < share / len(chosen)] = value


@st.composite
def inputs(draw, *, torch, dtypes=tuple(DTYPES), huge=True):
    shape = draw(shapes())
    name = draw(st.sampled_from(dtypes))
    layout = draw(layouts(shape, DTYPES.get(name, name), negative=not torch, broadcast=True))
    draw(fill(layout, huge=huge))
    return layout, draw(dims(len(shape)))


def tensor(layout):
    """A torch view of the same memory."""
    whole = to_torch(layout.base)
    if layout.view.size == 0:
        return whole.new_empty(layout.view.shape)
    strides = [s // layout.view.itemsize for s in layout.view.strides]
    return whole.as_strided(layout.view.shape, strides, _offset(layout.view) // layout.view.itemsize)


def outside_is_untouched(layout):
    """Whether the elements of the base that are not in the view still hold `OUTSIDE`."""
    if layout.view.size == 0:
        return bool((layout.base == OUTSIDE).all())
    base = layout.base.copy()
    np.ndarray(layout.view.shape, base.dtype, base, _offset(layout.view), layout.view.strides)[...] = OUTSIDE
    return bool((base == OUTSIDE).all())


def check(op, got, layout, source, dim, keepdim, result_dtype):
    """Shape, type and every element of a result; the error is measured as in test_numbers."""
    options = {} if op in ELEMENTWISE else {"keepdim": keepdim}
    wide = source.astype(np.float64)
    expected = getattr(reference, op)(source, dim, dtype=np.longdouble, **options)
    got = to_numpy(got)
    note = f"{op}(dim={dim}, keepdim={keepdim}) of {layout}"
    assert got.dtype == result_dtype, note
    assert got.shape == expected.shape, note
    floor = FLOORS[op]
    if op in ("sum", "mean"):
        terms = reference.sum(np.abs(wide), dim, keepdim)
        count = max(wide.size // max(terms.size, 1), 1) if op == "mean" else 1
        floor = np.where(np.isfinite(terms), terms / count, 1)
    error = ulp_error(got, expected, floor=floor)
    if (error > LIMITS[op, got.dtype.name]).any():
        worst = np.unravel_index(error.argmax(), error.shape)
        raise AssertionError(
            f"{note}: {error.max():.4g} ULP at {[*map(int, worst)]}: {got[worst]}, expected {expected[worst]}"
        )


def run(data, op, layout, dim, *, torch, dtype=None):
    """One example: a fresh result, one in a strided output, and one in place."""
    source = np.array(layout.view)
    before = layout.base.copy()
    result_dtype = source.dtype if dtype is None else DTYPES[dtype]
    keepdim = op not in ELEMENTWISE and data.draw(st.booleans())
    options = {} if op in ELEMENTWISE else {"keepdim": keepdim}
    if dtype is not None:
        options["dtype"] = torch_dtype(dtype) if torch else DTYPES[dtype]
    x = tensor(layout) if torch else layout.view
    function = getattr(onepass, op)

    fresh = function(x, dim, **options)
    check(op, fresh, layout, source, dim, keepdim, result_dtype)
    if torch:
        assert fresh.is_contiguous()
    else:
        assert type(fresh) is np.ndarray
        assert fresh.flags.c_contiguous
        assert fresh.flags.writeable

    target = data.draw(layouts(tuple(fresh.shape), result_dtype, negative=not torch, broadcast=False))
    target.base[...] = OUTSIDE
    target.view[...] = np.nan
    out = tensor(target) if torch else target.view
    assert function(x, dim, out=out, **options) is out
    check(op, target.view, layout, source, dim, keepdim, result_dtype)
    assert outside_is_untouched(target), f"written outside of out with {target}"
    assert same_bits(layout.base, before), "the input was written to"

    distinct = all(stride != 0 or size <= 1 for stride, size in zip(layout.view.strides, source.shape, strict=True))
    if op in ELEMENTWISE and dtype is None and distinct:
        assert function(x, dim, out=x) is x
        check(op, layout.view, layout, source, dim, keepdim, result_dtype)


@given(data=st.data(), op=st.sampled_from(SOFTMAX_FAMILY))
def test_softmax_family_of_numpy(data, op, count_example):
    layout, dim = data.draw(inputs(torch=False))
    run(data, op, layout, dim, torch=False)
    count_example("numpy softmax family")


@given(data=st.data(), op=st.sampled_from(SOFTMAX_FAMILY))
def test_softmax_family_of_torch(data, op, count_example):
    layout, dim = data.draw(inputs(torch=True))
    run(data, op, layout, dim, torch=True)
    count_example("torch softmax family")


@given(data=st.data(), op=st.sampled_from(REDUCTIONS), torch=st.booleans())
def test_reductions(data, op, torch, count_example):
    layout, dim = data.draw(inputs(torch=torch, huge=op in ("amax", "amin")))
    if op in ("amax", "amin") and layout.view.size == 0:
        return
    run(data, op, layout, dim, torch=torch)
    count_example("reductions")


@given(data=st.data(), op=st.sampled_from(ELEMENTWISE), dtype=st.sampled_from(tuple(DTYPES)), torch=st.booleans())
def test_conversion_on_the_way(data, op, dtype, torch, count_example):
    layout, dim = data.draw(inputs(torch=torch))
    run(data, op, layout, dim, torch=torch, dtype=dtype)
    count_example("dtype=")


@given(data=st.data(), op=st.sampled_from((*SOFTMAX_FAMILY, *REDUCTIONS)))
def test_integers_of_numpy(data, op, count_example):
    """The softmax family computes in float64, as SciPy; reductions are NumPy's own."""
    layout, dim = data.draw(inputs(torch=False, dtypes=INTEGERS))
    if op in SOFTMAX_FAMILY:
        check(op, getattr(onepass, op)(layout.view, dim), layout, layout.view, dim, False, np.float64)
    elif layout.view.size > 0:
        axes = tuple(dim) if isinstance(dim, tuple) else dim
        axes = None if layout.view.ndim == 0 else axes
        expected = np.asarray(getattr(np, op)(layout.view, axis=axes))
        got = np.asarray(getattr(onepass, op)(layout.view, dim))
        assert same_bits(got, expected), f"{op} of {layout}: {got}, NumPy has {expected}"
    count_example("integers")


@given(
    data=st.data(),
    op=st.sampled_from(SOFTMAX_FAMILY),
    algorithm=st.sampled_from(("row", "online", "split", "strided", "packed")),
)
def test_algorithms_that_can_serve_are_right(data, op, algorithm, count_example):
    layout, dim = data.draw(inputs(torch=False))
    try:
        got = getattr(onepass, op)(layout.view, dim, algorithm=algorithm)
    except ValueError as refusal:
        assert algorithm in str(refusal)
        return
    check(op, got, layout, np.array(layout.view), dim, False, layout.view.dtype)
    count_example("forced algorithm")


def test_the_measure_of_this_file_can_fail():
    """Zeros, one element left out, and a result shifted by one are all found."""
    view = np.random.default_rng(0).standard_normal((5, 33)).astype(np.float32)
    layout = Layout(view.reshape(-1), view)
    right = onepass.softmax(view)
    check("softmax", right, layout, view, -1, False, np.float32)
    left_out = right.copy()
    left_out[4, 32] = np.nan
    for wrong in (np.zeros_like(right), left_out, np.roll(right, 1, axis=1), right * np.float32(1 + 2e-6)):
        with pytest.raises(AssertionError):
            check("softmax", wrong, layout, view, -1, False, np.float32)


def test_memory_outside_of_an_output_is_watched():
    base = np.full(10, OUTSIDE, np.float32)
    layout = Layout(base, base[2:8:2])
    base[4] = 1
    assert outside_is_untouched(layout)
    base[3] = 1
    assert not outside_is_untouched(layout)
