"""torch's own operators, computed by onepass: `install` and what undoes and counts it.

Kernels are replaced in torch's dispatcher, below autograd, vmap, autocast and the rest, whose rules go on working
because the operators stay torch's own. What onepass cannot serve, or not faster, goes to the kernel that was there.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .._engine import RoutedLibrary, set_recording_operators
from ..arrays import watch_torch
from .routes import Route, make_routes

_OPERATORS = (torch.softmax, torch.log_softmax)  # by the engine's numbers
_lock = threading.RLock()
_installed = False  # by install()
_depth = 0  # blocks of installed() that are open
_library: torch.library.Library | None = None
_natives: list[RoutedLibrary] = []
_routes: list[Route] = []


def install() -> None:
    """See onepass.install."""
    global _installed
    with _lock:
        _installed = True
        _update()


def uninstall() -> None:
    """See onepass.uninstall."""
    global _installed
    with _lock:
        _installed = False
        _update()


@contextmanager
def installed() -> Iterator[None]:
    """See onepass.installed."""
    global _depth
    with _lock:
        _depth += 1
    try:
        with _lock:
            _update()
        yield
    finally:
        with _lock:
            _depth -= 1
            _update()


def installed_stats() -> dict[str, dict[str, int]]:
    """See onepass.installed_stats."""
    with _lock:
        stats: dict[str, dict[str, int]] = {}
        for route in _routes:
            counts = stats.setdefault(route.name, {"onepass": 0, "torch": 0})
            by_onepass, by_torch = route.counts()
            counts["onepass"] += by_onepass
            counts["torch"] += by_torch
        return stats


def _update() -> None:
    """Put routes in place, or take them away. Under the lock."""
    global _library, _natives, _routes
    wanted = _installed or _depth > 0
    if wanted and _library is None:
        routes = make_routes()  # holds the kernels that are there now
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that kernels are overridden is the purpose
            for route in routes:
                if route.number is None:
                    library.impl(route.name.removeprefix("aten::"), route.kernel, route.key)
        # Only now: torch warns of the first kernel that is overridden, and where C does it not by way of Python.
        _library, _natives, _routes = library, _route_natively(routes), routes
        set_recording_operators(_OPERATORS)
    elif not wanted and _library is not None:
        set_recording_operators(None)
        for native in _natives:
            native.close()
        _library._destroy()
        _library, _natives = None, []


def _route_natively(routes: list[Route]) -> list[RoutedLibrary]:
    watch_torch(torch)
    by_key = {route.key: RoutedLibrary(route.key, torch.Tensor) for route in routes if route.number is not None}
    for route in routes:
        if route.number is not None:
            by_key[route.key].route(route.number, route.missed)
    return list(by_key.values())
