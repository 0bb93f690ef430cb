"""Kernels from the package's headers: NVRTC through cuda-core, and a cache in memory and on disk.

A kernel is compiled for exactly what its plan says and one architecture, which takes some 60 ms and needs no GPU. The
compiler is imported when something has to be compiled: a process whose kernels are in the cache never pays for that.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..cache_folder import default_folder
from .cache import KernelCache
from .kernel_plan import COMPILER_OPTIONS

INCLUDE = Path(__file__).resolve().parent.parent / "include"
_NVRTC_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_PATIENCE_SECONDS = 1.0  # after which a person is told what they wait for
_INSTALL = "pip install 'onepass[cuda]'"


class CompileError(RuntimeError):
    """NVRTC refused a kernel; the message has its log."""


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel: the binary for one architecture and the name that the kernel has in it."""

    code: bytes
    symbol: str


_kept: dict[str, Cubin] = {}


@lru_cache(maxsize=1)
def cache() -> KernelCache:
    """The cache of this process, in the folder that the environment named at the first compilation."""
    return KernelCache(default_folder())


def compile_kernel(
    header: str,
    name: str,
    architecture: str,
    options: Mapping[str, object] | None = None,
    source: str = "",
) -> Cubin:
    """The kernel `name`, a C++ name expression such as a template's instantiation, from a header of the package.

    >>> cubin = compile_kernel("onepass/ops.h", "empty", "90a", source="__global__ void empty() {}")
    >>> cubin.symbol
    '_Z5emptyv'

    Parameters
    ----------
    header : path below the package's include folder
    name : the kernel
    architecture : compute capability, such as "80" or "90a"
    options : fields of cuda.core.ProgramOptions besides those every kernel has
    source : C++ text to come before the header, such as a functor of the user's

    Raises CompileError with the compiler's log; ImportError without cuda-core or NVRTC.
    """
    all_options = {**COMPILER_OPTIONS, **(options or {})}
    key = json.dumps(
        [_headers_digest(), _compiler(), header, name, architecture, sorted(all_options.items()), source], default=str
    )
    found = _kept.get(key)
    if found is None:
        kept = cache().get(key)
        if kept is not None:
            symbol, _, code = kept.partition(b"\0")
            found = Cubin(code, symbol.decode())
        else:
            found = _compile(header, name, architecture, all_options, source)
            cache().put(key, found.symbol.encode() + b"\0" + found.code)
        _kept[key] = found
    return found


def _compile(header: str, name: str, architecture: str, options: Mapping[str, object], source: str) -> Cubin:
    program_type, options_type = _compiler_types()
    text = f'{source}\n#include "{header}"\n'
    with _Patience(f"onepass: compiling {name} for sm_{architecture} (the first call; later ones find it)"):
        try:
            program = program_type(
                text,
                "c++",
                options_type(name="onepass", arch=f"sm_{architecture}", include_path=str(INCLUDE), **options),
            )
            compiled = program.compile("cubin", name_expressions=(name,))
        except Exception as error:  # cuda-core keeps the names of its exceptions to itself
            if type(error).__name__ == "DynamicLibNotFoundError":
                raise _no_compiler(error) from error
            remedy = ""
            if "--gpu-architecture" in str(error):
                remedy = f"; {_compiler()} does not know this GPU: pip install --upgrade nvidia-cuda-nvrtc"
            raise CompileError(
                f"onepass: NVRTC cannot compile {name} for sm_{architecture}{remedy}: {error}"
            ) from error
    symbol = compiled.symbol_mapping[name]
    return Cubin(bytes(compiled.code), symbol.decode() if isinstance(symbol, bytes) else symbol)


def _compiler_types() -> tuple[Callable[..., Any], Callable[..., Any]]:
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise ImportError(
            f"onepass: kernels for GPUs are compiled by cuda-core and NVRTC, and cuda-core cannot be imported "
            f"({error}): {_INSTALL}"
        ) from error
    return Program, ProgramOptions


def _no_compiler(error: Exception) -> ImportError:
    return ImportError(f"onepass: kernels for GPUs are compiled by NVRTC, and there is none ({error}): {_INSTALL}")


@lru_cache(maxsize=1)
def _compiler() -> str:
    """Which NVRTC compiles. Packages say it without being imported; a toolkit's is asked."""
    installed = []
    for package in _NVRTC_PACKAGES:
        try:
            installed.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    if installed:
        return ", ".join(installed)
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # the module, or the library that it opens
        raise _no_compiler(error) from error
    return f"NVRTC {major}.{minor}"


@lru_cache(maxsize=1)
def _headers_digest() -> str:
    """One digest of all headers: an edited header, like an upgrade of the package, makes every entry another."""
    digest = hashlib.sha256()
    for path in sorted(INCLUDE.rglob("*.h")):
        digest.update(f"{path.relative_to(INCLUDE)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


class _Patience:
    """Says on standard error what takes so long, if it does."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._timer = threading.Timer(_PATIENCE_SECONDS, self._say)
        self._timer.daemon = True
        self._said = False

    def _say(self) -> None:
        self._said = True
        print(f"{self._line} ...", file=sys.stderr, flush=True)

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._said:
            print(f"onepass: compiled in {time.perf_counter() - self._began:.1f} s", file=sys.stderr, flush=True)
