"""Bugs and complaints that were real in other softmax libraries; each must not be one here.

The letter and number is that of the list they were collected in: S speed, M memory, C correctness. What needs a GPU, a
gradient or a loss is not here; C1 (more than 2**31 elements) is in test_large.py.
"""

import numpy as np
import pytest
import torch
from helpers import (
    DTYPES,
    ELEMENTWISE,
    FLOORS,
    LIMITS,
    SOFTMAX_FAMILY,
    nan_filled,
    random_array,
    same_bits,
    to_numpy,
    to_torch,
)
from ulp import max_ulp

import onepass
from onepass import reference


def assert_right(op, x, dim=-1, got=None):
    """Within the limits of helpers.py."""
    expected = getattr(reference, op)(to_numpy(x), dim, dtype=np.longdouble)
    got = to_numpy(getattr(onepass, op)(x, dim) if got is None else got)
    assert max_ulp(got, expected, floor=FLOORS[op]) <= LIMITS[op, got.dtype.name], op


def test_s1_one_row_is_work_for_all_threads(threads):
    """One block per row left a machine idle at batch 1 (PyTorch, vLLM)."""
    threads(4)
    plan = onepass.explain("softmax", (1, 4_194_304)).plan
    assert plan.algorithm == "split"
    assert plan.threads == 4
    assert_right("softmax", random_array((1, 300_001)))


def test_s2_the_first_dim_is_tiled_not_walked(threads):
    """Reductions over a dim that is not last ran in one thread."""
    threads(2)
    plan = onepass.explain("softmax", (8192, 8192), dim=0).plan
    assert plan.algorithm == "strided"
    assert plan.threads == 2
    for op in SOFTMAX_FAMILY:
        assert_right(op, random_array((3000, 70)), 0)


@pytest.mark.parametrize("around", [1024, 2048, 4096, 9216])
def test_s4_nothing_changes_at_the_usual_cliffs(around):
    """Other libraries change algorithm at these row lengths."""
    for length in range(around - 2, around + 3):
        for op in SOFTMAX_FAMILY:
            assert_right(op, random_array((3, length), sigma=4))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("source", ["bfloat16", "float16"])
def test_s6_a_wider_result_is_made_on_the_way(source, kind):
    """bfloat16 with dtype=float32 made a float32 copy of the input first; the result must be as good as from one."""
    x = random_array((20, 3000), source, sigma=4)
    wide = x.astype(np.float32)
    for op in ELEMENTWISE:
        expected = getattr(onepass, op)(wide)
        if kind == "numpy":
            got = getattr(onepass, op)(x, dtype=np.float32)
        else:
            got = to_numpy(getattr(onepass, op)(to_torch(x), dtype=torch.float32))
        assert got.dtype == np.float32
        assert same_bits(got, expected)


def test_s13_an_extreme_over_one_very_long_row():
    """max over a dim of 1 x 100M was 2000 times slower than over everything: here both are one plan."""
    x = random_array((1, 3_000_001))
    x[0, 2_999_999] = 100
    assert onepass.amax(x)[0] == onepass.amax(x, None) == 100
    assert onepass.explain("amax", (1, 100_000_000)).plan == onepass.explain("amax", (100_000_000,), dim=None).plan


@pytest.mark.parametrize("length", [65_536, 65_537, 131_072, 131_073, 200_000])
def test_c2_s15_rows_of_any_length(length):
    """More than 65,536 columns was an error, a very long row a compiler hang."""
    for op in SOFTMAX_FAMILY:
        assert_right(op, random_array((2, length)))


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_c3_the_input_is_left_alone(op):
    """In-place kernels overwrote the caller's logits."""
    for shape, dim in (((50, 30), -1), ((5, 70_000), -1), ((400, 300), 0), ((2, 900, 3), 1)):
        x = random_array(shape)
        before = x.copy()
        y = getattr(onepass, op)(x, dim)
        assert same_bits(x, before)
        assert not np.shares_memory(x, y)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("op", [*SOFTMAX_FAMILY, "sum"])
def test_c5_rows_that_are_not_next_to_each_other(op, kind):
    """stride(-1) == 1 and a row stride that is not the length: silently wrong in several libraries."""
    padded = random_array((9, 1100), sigma=3)
    x = padded[:, 50:1050]
    plain = np.ascontiguousarray(x)
    given = x if kind == "numpy" else to_torch(padded)[:, 50:1050]
    assert same_bits(getattr(onepass, op)(given), getattr(onepass, op)(plain))
    half = x[::2]
    given = half if kind == "numpy" else to_torch(padded)[:, 50:1050][::2]
    assert same_bits(getattr(onepass, op)(given), getattr(onepass, op)(np.ascontiguousarray(half)))


@pytest.mark.parametrize("op", [*SOFTMAX_FAMILY, "sum", "amax"])
def test_c5_expanded_tensors(op):
    """Stride 0 was read out of bounds."""
    for x, shape, dim in (
        (torch.rand(777), (5, 777), 1),
        (torch.rand(777), (5, 777), 0),
        (torch.rand(40, 1), (40, 333), 1),
        (torch.rand(40, 1), (40, 333), 0),
        (torch.rand(1, 1), (30, 70), 0),
    ):
        assert_right(op, x.expand(shape), dim)


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_c5_outputs_that_are_not_contiguous(op):
    x = torch.randn(64, 90)
    out = torch.full((90, 64), torch.nan).t()
    assert getattr(onepass, op)(x, out=out) is out
    assert_right(op, x, got=out)
    wide = torch.full((64, 200), 7.0)
    getattr(onepass, op)(x, out=wide[:, 10:190:2])
    assert_right(op, x, got=wide[:, 10:190:2])
    assert (wide[:, 11:190:2] == 7).all()
    assert (wide[:, :10] == 7).all()


def test_c5_a_lazily_negated_tensor():
    """`conj().imag` is a view whose sign is only a flag."""
    z = torch.complex(torch.randn(4, 50), torch.randn(4, 50))
    x = z.conj().imag
    assert x.is_neg()
    torch.testing.assert_close(onepass.softmax(x), torch.softmax(x, -1))
    torch.testing.assert_close(onepass.softmax(x.resolve_neg()), torch.softmax(x, -1))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[3],
        lambda x: x[3:4],
        lambda x: x[:, 2],
        lambda x: x[3:4, 2:3],
        lambda x: x[1, 1],
        lambda x: x.contiguous(),
        lambda x: x.clone(),
        lambda x: x.T,
    ],
    ids=["a row", "one row", "a column", "one element", "a number", "contiguous", "a copy", "transposed"],
)
def test_c5_parts_of_a_lazily_negated_tensor(view):
    """Some of them are as contiguous as any tensor: only where they begin tells."""
    z = torch.complex(*torch.randn(2, 6, 5, dtype=torch.float64))
    x = view(z.conj().imag)
    for op in ("softmax", "logsumexp"):
        expected = getattr(torch, op)(x.clone().resolve_neg(), -1 if x.ndim else 0)
        np.testing.assert_allclose(getattr(onepass, op)(x).numpy(), expected.numpy(), rtol=1e-14)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_c10_c11_rows_without_a_softmax(dtype, kind):
    """Nothing but -inf, or a +inf: NaN, as in torch, in that row only; a NaN is never turned into zeros."""
    x = random_array((5, 300), dtype)
    x[1] = -np.inf
    x[2, 7] = np.inf
    x[3, 299] = np.nan
    given = x if kind == "numpy" else to_torch(x)
    for op in ELEMENTWISE:
        y = to_numpy(getattr(onepass, op)(given)).astype(np.float64)
        assert np.isnan(y[1:4]).all()
        assert np.isfinite(y[[0, 4]]).all()
    lse = to_numpy(onepass.logsumexp(given)).astype(np.float64)
    assert lse[1] == -np.inf
    assert lse[2] == np.inf
    assert np.isnan(lse[3])
    assert np.isfinite(lse[[0, 4]]).all()
    if kind == "torch":
        np.testing.assert_array_equal(np.isnan(lse), np.isnan(to_numpy(torch.logsumexp(given, -1)).astype(np.float64)))


@pytest.mark.parametrize("value", [-1e4, -5e4, -1e5, -1e30, -3e38])
def test_c12_very_negative_is_not_masked(value):
    """A finite sentinel for -inf makes rows near it disappear."""
    x = np.full((3, 500), value, np.float32)
    x[:, :100] = -np.inf
    y = onepass.softmax(x)
    assert (y[:, :100] == 0).all()
    assert_right("softmax", x)
    np.testing.assert_allclose(onepass.logsumexp(x), np.float32(value + np.log(400)), rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e14, 1e30, 1e37])
@pytest.mark.parametrize("length", [30, 1000, 70_000, 300_000])
def test_c14_probabilities_sum_to_one_at_any_scale(length, scale):
    """x * scale - max, rounded differently in two passes, gave a probability of 1.0013, or NaN."""
    x = random_array((3, length), seed=length) * np.float32(scale)
    y = onepass.softmax(x).astype(np.float64)
    assert (y >= 0).all()
    assert (y <= 1).all()
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=0, atol=1e-6)


def test_c21_a_wider_result_along_the_first_dim():
    for columns in (5, 20, 50, 130):
        x = random_array((300, columns), "float16", sigma=4)
        y = onepass.softmax(x, 0, dtype=np.float32)
        assert same_bits(y, onepass.softmax(x.astype(np.float32), 0)), columns


def test_c22_the_sum_of_a_row_is_what_its_elements_are():
    """A compiler folded sum(softmax(x)) to 1, which it is not where the softmax is NaN."""
    x = np.zeros((2, 40), np.float32)
    x[1, 3] = np.nan
    total = onepass.sum(onepass.softmax(x))
    assert abs(total[0] - 1) < 1e-6
    assert np.isnan(total[1])


def test_c28_16_bit_probabilities_sum_to_one():
    """Sums in 16 bits saturate: a vocabulary of 131,072 came out short."""
    for dtype in ("float16", "bfloat16"):
        x = random_array((2, 131_072), dtype, sigma=6)
        y = onepass.softmax(x)
        assert_right("softmax", x, got=y)
        assert_right("logsumexp", x)
        assert (np.abs(onepass.softmax(x, dtype=np.float32).astype(np.float64).sum(axis=1) - 1) < 1e-6).all()
        assert abs(float(onepass.sum(y)[0]) - 1) < 0.02


def test_c35_an_offset_of_1e8():
    x = (np.arange(1000) % 7 * 8 + 1e8).astype(np.float32)
    for op in SOFTMAX_FAMILY:
        assert_right(op, x)
    expected = reference.log_softmax(x)
    np.testing.assert_allclose(onepass.log_softmax(x), expected, rtol=2e-7)


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_c37_every_small_shape(rows):
    """Fused kernels want lengths that are multiples of 8, at least 16, and full batches."""
    for length in range(1, 140):
        x = random_array((rows, length), seed=length)
        out = nan_filled(x.shape, x.dtype)
        onepass.softmax(x, out=out)
        assert_right("softmax", x, got=out)
        columns = np.ascontiguousarray(x.T)
        out = nan_filled(columns.shape, x.dtype)
        onepass.softmax(columns, 0, out=out)
        assert_right("softmax", columns, 0, got=out)


def test_several_dims_and_all_of_them():
    """What torch refuses and SciPy and JAX take."""
    from scipy import special

    x = random_array((4, 5, 6, 7), "float64", sigma=3)
    for dim in ((0, 1), (1, 3), (3, 0), (0, 1, 2, 3), None, (-1, -2)):
        np.testing.assert_allclose(onepass.softmax(x, dim), special.softmax(x, axis=dim), rtol=1e-12)
        np.testing.assert_allclose(onepass.softmax(x, axis=dim), special.softmax(x, axis=dim), rtol=1e-12)
        np.testing.assert_allclose(onepass.logsumexp(x, dim), special.logsumexp(x, axis=dim), rtol=1e-12)


def test_empty_and_size_one():
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 4)):
        for dim in (*range(len(shape)), None):
            x = np.zeros(shape, np.float32)
            assert onepass.softmax(x, dim).shape == onepass.log_softmax(torch.from_numpy(x), dim).shape == shape
            assert onepass.softmax(x, dim, out=np.zeros(shape, np.float32)).shape == shape
            np.testing.assert_array_equal(onepass.logsumexp(x, dim), reference.logsumexp(x, dim))
            np.testing.assert_array_equal(onepass.sum(x, dim), reference.sum(x, dim))
            np.testing.assert_array_equal(onepass.mean(x, dim), reference.mean(x, dim))
    for shape in ((1,), (1, 1), (4, 1), (1, 4, 1)):
        x = random_array(shape)
        assert (onepass.softmax(x) == 1).all()
        assert (onepass.log_softmax(x) == 0).all()
        np.testing.assert_array_equal(onepass.logsumexp(x), x[..., 0])


def test_numbers_lists_and_unusual_arrays():
    assert onepass.softmax(3.0) == 1
    assert onepass.logsumexp(3.0) == 3
    assert onepass.softmax(np.float32(3)).dtype == np.float32
    np.testing.assert_array_equal(onepass.softmax([0.0, 0.0]), [0.5, 0.5])
    np.testing.assert_array_equal(
        onepass.softmax([[1, 1], [2, 2]], 0)[1], onepass.softmax(np.array([1.0, 2.0]))[[1, 1]]
    )
    x = random_array((6, 50), sigma=3)
    expected = onepass.softmax(x)
    swapped = x.astype(">f4")
    assert same_bits(onepass.softmax(swapped), expected), "byte-swapped: the result is native"
    unaligned = np.ndarray(x.shape, np.float32, bytearray(x.nbytes + 1), 1)
    unaligned[...] = x
    assert not unaligned.flags.aligned
    assert same_bits(onepass.softmax(unaligned), expected)
    records = np.zeros((6, 50), [("a", "u1"), ("b", "f4")])
    records["b"] = x
    assert same_bits(onepass.softmax(records["b"]), expected), "a field of packed records"
    frozen = x.copy()
    frozen.flags.writeable = False
    assert same_bits(onepass.softmax(frozen), expected), "read-only input"
    assert_right("softmax", x, got=onepass.softmax(np.asfortranarray(x)))
    assert onepass.softmax(np.asfortranarray(x)).flags.c_contiguous


def test_results_are_contiguous_for_channels_last():
    """As torch's are."""
    x = torch.randn(2, 16, 9, 11).to(memory_format=torch.channels_last)
    y = onepass.softmax(x, 1)
    assert y.is_contiguous()
    torch.testing.assert_close(y, torch.softmax(x, 1))
