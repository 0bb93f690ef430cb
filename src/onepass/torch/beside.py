"""The extension for programs that nobody built it for: one that records many calls has it built beside itself.

Programs have compilers run by Triton and by torch.compile, too; for this one nothing waits. It runs once for each
version of torch, however many processes want it, at a low priority, and ends with the program that started it, unless
that is killed.
ONEPASS_BUILD_EXTENSION=0 (or no, off, false) leaves it to `onepass build-torch-extension`.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import extension

# Recorded calls before it is built: half a minute of a core's time is for programs that train, of which this many are
# the first steps, and not for those that try something.
MANY = 1000


def is_wanted() -> bool:
    """Whether it is to be built without anybody asking for it: nobody forbids it, and it has not failed here before."""
    forbidden = os.environ.get("ONEPASS_BUILD_EXTENSION", "").strip().lower() in ("0", "no", "off", "false")
    return not forbidden and extension.failure_here() is None


def counted(functions: tuple[Callable[..., Any], ...], then: Callable[[], None]) -> tuple[Callable[..., Any], ...]:
    """The same functions, whose calls are counted together: `then` is called once, before the last of MANY."""
    calls = itertools.count(1)  # `next` is one step of the interpreter, whichever threads call

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if next(calls) == MANY:
                then()
            return function(*args)

        return call

    return tuple(counting(function) for function in functions)


def build(use: Callable[[ModuleType], None]) -> None:
    """Have it built, by this process or another, and then used; nothing happens where that is not possible."""
    with contextlib.suppress(RuntimeError):  # no more threads may be started
        thread = _Build(use)
        thread.start()
        atexit.register(thread.end, os.getpid())


class _Build(threading.Thread):
    def __init__(self, use: Callable[[ModuleType], None]) -> None:
        super().__init__(name="onepass-extension", daemon=True)
        self._use = use
        self._lock = threading.Lock()  # of what follows
        self._compiler: subprocess.Popen[str] | None = None
        self._ending = False

    def run(self) -> None:
        with contextlib.suppress(OSError, Warning, extension.BuildError, _Ended):  # nobody waits for it
            extension.build_once(self._run_compiler)
            if (built := extension.load()) is not None:
                self._use(built)

    def _run_compiler(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        with self._lock:
            if self._ending:
                raise _Ended
            # In a session of its own, it can be ended with all the processes that it starts.
            self._compiler = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        with self._compiler as compiler:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, compiler.pid, os.getpriority(os.PRIO_PROCESS, 0) + 10)
            _, said = compiler.communicate()
        if self._ending or compiler.returncode < 0:  # somebody has ended it, which says nothing about another time
            raise _Ended
        return subprocess.CompletedProcess(command, compiler.returncode, "", said)

    def end(self, process: int) -> None:
        """Leave no compiler behind, and nothing half-written, when the program ends."""
        if os.getpid() != process:  # a fork has no thread
            return
        with self._lock:
            self._ending = True
            compiler = self._compiler
        if compiler is not None and compiler.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(compiler.pid, signal.SIGTERM)
        # Without one it may have a file to remove that it has just made; or it waits for another process, for long.
        self.join(timeout=2 if compiler is not None else 0.2)


class _Ended(Exception):
    """The compiler was ended, as it is when the program ends."""
