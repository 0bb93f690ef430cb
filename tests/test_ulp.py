"""The measure itself: a yardstick that is wrong makes every other test pass."""

import ml_dtypes
import numpy as np
import pytest
from ulp import max_ulp, spacing, ulp_error

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
def test_neighbours_are_one_apart(dtype):
    info = ml_dtypes.finfo(dtype)
    for value in (1.0, 1.5, 3.0, float(info.tiny), float(info.smallest_subnormal), 0.0, -1.5):
        here = np.array(value, dtype)
        above = np.nextafter(here, np.array(np.inf, dtype))
        assert ulp_error(above, here) == 1, value
        assert ulp_error(here, here) == 0, value


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
def test_an_exact_value_between_two_numbers_is_half_away(dtype):
    one = np.array(1, dtype)
    halfway = np.longdouble(1) + spacing(1.0, dtype) / 2
    assert ulp_error(one, halfway) == 0.5


def test_zeros_have_no_sign_and_denormals_one_size():
    assert ulp_error(np.float32(-0.0), 0.0) == 0
    assert ulp_error(np.float32(0.0), 1e-45) == pytest.approx(1e-45 / 2.0**-149)
    assert spacing(1e-40, np.float32) == spacing(0.0, np.float32) == 2.0**-149


def test_overflow_is_right_only_where_it_is_due():
    largest = float(np.finfo(np.float32).max)
    assert ulp_error(np.float32(np.inf), 1e39) == 0
    assert ulp_error(np.float32(np.inf), largest) == 1
    assert ulp_error(np.float32(largest), np.inf) == np.inf
    assert ulp_error(np.float32(-np.inf), np.inf) == np.inf
    assert ulp_error(np.float32(np.inf), 1.0) > 2.0**24
    assert ulp_error(np.float32(-np.inf), -np.inf) == 0


def test_nan_matches_nan_only():
    assert ulp_error(np.float32(np.nan), np.nan) == 0
    assert ulp_error(np.float32(np.nan), 1.0) == np.inf
    assert ulp_error(np.float32(1.0), np.nan) == np.inf
    assert ulp_error(np.float32(np.inf), np.nan) == np.inf


def test_zeros_do_not_pass_for_small_numbers():
    assert max_ulp(np.zeros(4, np.float32), np.full(4, 1e-7)) > 1e6
    assert max_ulp(np.zeros(0, np.float32), np.zeros(0)) == 0


def test_floor_measures_small_results_in_units_of_the_terms():
    assert ulp_error(np.float32(0.0), 2.0**-23, floor=1.0) == 1
    assert ulp_error(np.float32(3.0), 3.0 + 2.0**-22, floor=1.0) == 1
