"""`onepass doctor`: what this machine has and what is missing, found without importing any framework."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

import onepass
from onepass import _engine
from onepass.cuda.compile import cache
from onepass.cuda.launch import read_device
from onepass.machine import this_machine
from onepass.torch import extension


def report() -> None:
    """Print the report on standard output."""
    machine = this_machine()
    forced = f", forced by ONEPASS_ISA={os.environ['ONEPASS_ISA']}" if os.environ.get("ONEPASS_ISA") else ""
    stats = onepass.memory_stats()
    table = Table("", "", box=box.SIMPLE, show_header=False, pad_edge=False)
    for key, value in [
        ("onepass", f"{onepass.__version__}, {Path(onepass.__file__).parent}"),
        ("python", f"{platform.python_version()}, {platform.platform()}"),
        ("processor", machine.processor),
        ("instruction set", f"{_engine.isa()}{forced} (usable here: {', '.join(_engine.isas())})"),
        ("caches", f"L1 {_binary(machine.l1_bytes)}, L2 {_binary(machine.l2_bytes)}, L3 {_binary(machine.l3_bytes)}"),
        ("threads", f"{onepass.get_num_threads()} of {machine.cores} cores"),
        ("memory", _binary(machine.memory_bytes)),
        ("result cache", f"at most {_binary(stats['bound_bytes'])}, now {_binary(stats['cached_bytes'])}"),
        *((package, _installed(package) or "missing") for package in ("numpy", "ml-dtypes")),
        ("torch", _torch()),
        ("torch extension", _torch_extension()),
        *_gpus(),
        ("GPU compiler", _compiler()),
        ("GPU kernels", _kernel_cache()),
    ]:
        table.add_row(key, value)
    Console(soft_wrap=True).print(table, highlight=False, markup=False)


def _binary(nbytes: int) -> str:
    """A size as people write cache sizes.

    >>> _binary(49152), _binary(1 << 30)
    ('48 KiB', '1 GiB')
    """
    value, unit = float(nbytes), 0
    while value >= 1024 and unit < 4:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _installed(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _torch() -> str:
    return _installed("torch") or "missing; only needed for torch tensors: pip install torch"


def _torch_extension() -> str:
    versions = extension.built()
    here = _installed("torch") or "-"
    if any(version.split("+")[0].split("-")[0] == here.split("+")[0] for version in versions):
        return f"for torch {', '.join(versions)}"
    why = f" ({reason})" if (reason := extension.failure(f"{here.split('+')[0]}*")) else ""
    return f"none for this torch{why}; small calls cost less after onepass build-torch-extension"


def _gpus() -> list[tuple[str, str]]:
    """The driver and its GPUs, or why there are none."""
    try:
        version, count = _engine.gpu_driver_version(), _engine.gpu_count()
        lines = [("NVIDIA driver", f"CUDA {version // 1000}.{version % 1000 // 10}, {count} GPU{'s' * (count != 1)}")]
        for ordinal in range(count):
            device = read_device(ordinal)
            description = f"{device.name}, sm_{device.architecture}, {device.multiprocessors} multiprocessors"
            lines.append((f"GPU cuda:{ordinal}", f"{description}, {_binary(_engine.gpu_memory(ordinal))}"))
    except (_engine.CudaError, MemoryError) as error:
        return [("GPU", f"cannot be used: {str(error).removeprefix('onepass: ')}")]
    return lines


def _compiler() -> str:
    found = {name: _installed(name) for name in ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc")}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        return f"{', '.join(missing)} missing; only needed for arrays on a GPU: pip install 'onepass[cuda]'"
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _kernel_cache() -> str:
    try:
        info = cache().info()
    except OSError as error:
        return f"{error.filename}: {error.strerror}; set ONEPASS_CACHE_DIR to a folder of yours"
    if info.folder is None:
        return "none: this user has no home; set ONEPASS_CACHE_DIR"
    return f"{info.folder}: {info.entries} kernels, {_binary(info.bytes)} of at most {_binary(info.most_bytes)}"
