"""What of the PyTorch layer is C++ (extension.cpp): built on request or for who needs it (beside.py), then loaded.

torch has no interface for nodes of autograd that stays the same from one version to the next, so no wheel of onepass
can hold this. Without it everything works; with it a call on a small tensor that is recorded takes a third of the time
on a CPU and two thirds on a GPU, and one that is not three quarters on a CPU. Importing this module does not import
torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from ..cache_folder import TEMPORARY, default_folder, only_mine

_SOURCE = Path(__file__).with_name("extension.cpp")
_MODULE = "onepass_torch_extension"
_PREFIX = "torch-extension-"
_FAILURE = "failure"  # the end of the name of a file that says why there is none
_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}  # compilers speak any language
RunCompiler = Callable[[list[str]], subprocess.CompletedProcess[str]]


class BuildError(RuntimeError):
    """The extension cannot be built here, and why."""


def built() -> list[str]:
    """The versions of torch that it was built for, with this Python and this onepass."""
    return sorted(path.name.removeprefix(_PREFIX).partition(_key())[0] for path in _files("*"))


def failure(version: str) -> str | None:
    """Why it could not be built for this version of torch ("2.13.0*": for a build of it) when nobody had asked for it.
    None: it could, or nobody has tried."""
    with contextlib.suppress(OSError):  # onepass came without its source, or somebody else tries again
        for path in _files(version, _FAILURE):
            if reason := path.read_text(**_TEXT):
                return reason
    return None


def failure_here() -> str | None:
    """The same for the torch of this process."""
    import torch

    return failure(_version(torch))


def load() -> ModuleType | None:
    """The extension for the torch of this process, or None."""
    import torch

    try:
        path = next(iter(_files(_version(torch))), None)
    except OSError:  # onepass came without its source
        return None
    return None if path is None else _load(path, _version(torch))


@cache  # those who make results and those who record them ask apart
def _load(path: Path, version: str) -> ModuleType | None:
    try:
        if not (only_mine(path.parent) and only_mine(path)):
            _warn(f"others may write to {path}, or could: remove it, make the folder yours alone and build it again")
            return None
        if path.name != _name(version, path.read_bytes()):  # to load a part of a file would end the process
            _warn(f"{path} is damaged; build it again: onepass build-torch-extension")
            return None
    except OSError:  # somebody else builds it anew
        return None
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None and spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:  # built with a library that is not here
        _warn(f"{error}; build it again: onepass build-torch-extension")
        return None
    return module


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def build(run: RunCompiler = _run) -> Path:
    """Compile it for the torch that is installed. Returns the file; raises BuildError, ImportError without torch."""
    import torch

    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        raise BuildError(f"it needs torch 2.10 or later; this is {torch.__version__}")
    folder = _own_folder()
    handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
    os.close(handle)
    try:
        _compile(Path(torch.__file__).parent, temporary, run)
        path = folder / _name(_version(torch), Path(temporary).read_bytes())
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    for other in (*_files(_version(torch)), *_files(_version(torch), _FAILURE)):
        if other != path:  # damaged, or by another compiler; or why there was none
            other.unlink(missing_ok=True)
    return path


def build_once(run: RunCompiler = _run) -> None:
    """Build it unless it is there or has failed before, while other processes that want it wait. Why it fails is kept
    for `failure`. Raises OSError, and BuildError where there is no folder to keep anything in."""
    import torch

    version = _version(torch)
    kept = _own_folder() / f"{_PREFIX}{version}{_key()}{_FAILURE}"
    with _locked(kept) as file:
        try:
            if not _files(version) and not file.read():
                build(run)
        except BuildError as error:
            file.write(str(error))
            file.flush()
        finally:
            if not file.tell():
                kept.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    """The file of that name, which is made if need be, once no other process has it locked."""
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", **_TEXT) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                if _is_at(path, file):  # else whoever had it has removed it
                    yield file
                    return
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # or a process that was forked meanwhile would hold it, too


def _is_at(path: Path, file: IO[str]) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def clear() -> int:
    """Remove all that was built, for whichever torch, and why something was not. Returns how many there were; raises
    OSError if one cannot be removed."""
    folder = default_folder()
    found = [] if folder is None else list(folder.glob(f"{_PREFIX}*"))
    for path in found:
        path.unlink(missing_ok=True)
    return sum(path.suffix == ".so" for path in found)


def _own_folder() -> Path:
    folder = default_folder()
    if folder is None:
        raise BuildError("there is nowhere to put it: this user has no home; set ONEPASS_CACHE_DIR")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not only_mine(folder):
        raise BuildError(f"others may write to {folder}: make it yours alone, or set ONEPASS_CACHE_DIR")
    return folder


def _compile(torch: Path, target: str, run: RunCompiler) -> None:
    compiler = _compiler()
    includes = [sysconfig.get_path("include"), str(torch / "include"), str(torch / "include/torch/csrc/api/include")]
    options = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-DTORCH_EXTENSION_NAME={_MODULE}"]
    # No path to torch's libraries is kept: who loads this has loaded them.
    libraries = [f"-L{torch / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    command = [*compiler, *options, *(f"-I{path}" for path in includes), str(_SOURCE), "-o", target, *libraries]
    try:
        done = run(command)
    except OSError as error:
        raise BuildError(f"{compiler[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        # A linker says what happened in a line of its own, before that of the compiler that ran it.
        linker = [before for before, line in zip(lines, lines[1:], strict=False) if line.startswith("collect2: error")]
        said = linker or [line for line in lines if "error" in line] or lines[-1:]
        remedy = ": install Python's headers (python3-dev)" if "Python.h" in done.stderr else ""
        raise BuildError(f"{compiler[0]} fails: {said[0] if said else f'exit code {done.returncode}'}{remedy}")


def _compiler() -> list[str]:
    text = os.environ.get("CXX", "")
    try:
        named = shlex.split(text)
    except ValueError as error:
        raise BuildError(f"CXX={text} is not a command: {error}") from error
    if named:
        return named
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise BuildError("there is no C++ compiler: install g++ or clang++, or name one in CXX")


def _version(torch: ModuleType) -> str:
    """Of its source, too: builds of one version may lay classes out differently."""
    return f"{torch.__version__}-{str(torch.version.git_version)[:8]}"


def _key() -> str:
    """What tells apart files for one torch: of which onepass they are, and for which Python."""
    python = sysconfig.get_config_var("EXT_SUFFIX")
    return f"-{hashlib.sha256(_SOURCE.read_bytes() + python.encode()).hexdigest()[:16]}-"


def _name(version: str, contents: bytes) -> str:
    return f"{_PREFIX}{version}{_key()}{hashlib.sha256(contents).hexdigest()[:16]}.so"


def _files(version: str, kind: str = "*.so") -> list[Path]:
    """Those for this version of torch, or "*"."""
    folder = default_folder()
    return [] if folder is None else sorted(folder.glob(f"{_PREFIX}{version}{_key()}{kind}"))


def _warn(reason: str) -> None:
    warnings.warn(f"onepass: small calls cost more than they need to: {reason}", RuntimeWarning, stacklevel=2)
