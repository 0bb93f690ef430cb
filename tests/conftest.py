import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

import onepass

# `ci` draws the same examples every time. `full` (--hypothesis-profile=full) is the run of more than 20,000.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", max_examples=200, derandomize=True, database=None, **_COMMON)
settings.register_profile("full", max_examples=4000, print_blob=True, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_examples = Counter()


@pytest.fixture(scope="session")
def count_example():
    """To be called once for each hypothesis example that was checked to its end; the total is printed at the end."""

    def count(name):
        _examples[name] += 1

    return count


@pytest.fixture
def threads():
    """Sets the number of threads for one test."""
    before = onepass.get_num_threads()
    yield onepass.set_num_threads
    onepass.set_num_threads(before)


def pytest_terminal_summary(terminalreporter):
    if _examples:
        terminalreporter.write_line(f"hypothesis examples checked: {_examples.total()} {dict(_examples)}")
