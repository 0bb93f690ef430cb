"""The public functions' hot path, where CPython has one: a call reaches the engine before Python of theirs is run.

They stay functions, with their signatures, documentation and attributes; what changes is whom the interpreter calls
(PyFunction_SetVectorcall). The Python below a signature is what the engine leaves alone, and the hot path of Python
3.11, which looks whom to call only where a call is not made in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from . import _engine
from .problem import UNSET

Function = TypeVar("Function", bound=Callable[..., Any])


def tried_first(op: int) -> Callable[[Function], Function]:
    """Let calls of a function of one array be tried by the engine as an operation of its."""

    def mark(function: Any) -> Any:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        # Another function, which the interpreter calls as it calls all others.
        python = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        python.__kwdefaults__ = function.__kwdefaults__
        _engine.try_first(function, op, names, UNSET, python)
        return function

    return mark
