"""onepass: the softmax family and row reductions at the speed of memory."""

from typing import TYPE_CHECKING, Any

# Before the engine, which must not have begun where NumPy refuses, as from 2.3 on in a second interpreter: it would be
# broken in the first one, too.
import numpy as _numpy  # noqa: F401

from .gradients import log_softmax_backward, logsumexp_backward, softmax_backward
from .reductions import amax, amin, mean, sum
from .report import explain
from .routing import install, installed, installed_stats, uninstall
from .runtime import empty_cache, get_num_threads, memory_stats, set_num_threads
from .softmax import log_softmax, logsumexp, softmax

if TYPE_CHECKING:
    from .torch import nn as nn

__version__ = "0.1.0"
__all__ = [
    "amax",
    "amin",
    "empty_cache",
    "explain",
    "get_num_threads",
    "install",
    "installed",
    "installed_stats",
    "log_softmax",
    "log_softmax_backward",
    "logsumexp",
    "logsumexp_backward",
    "mean",
    "memory_stats",
    "set_num_threads",
    "softmax",
    "softmax_backward",
    "sum",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    """`onepass.nn`, which imports torch, when it is asked for."""
    if name == "nn":
        from .torch import nn

        return nn
    raise AttributeError(f"module 'onepass' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "nn"})
