"""Runs CUDA plans on a CPU: compiles the kernels they name with g++ against tests/cusim, and launches them there."""

import contextlib
import hashlib
import os
import platform
import struct
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onepass.cuda.rounding import ceil_div

ROOT = Path(__file__).resolve().parent.parent
CUSIM = ROOT / "tests/cusim"
HEADERS = ROOT / "src/onepass/include"
BUILDS = ROOT / "build/cusim"
CXX = os.environ.get("CXX", "g++")
JOBS = int(os.environ.get("CUSIM_JOBS", "0")) or min(2, os.cpu_count() or 1)
# No contraction: as on the GPU. Packs are read through pointers to words.
_FLAGS = (
    "-std=c++20",
    "-g1",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
)
_VARIANTS = {
    "plain": ("-Og", "-fsanitize=alignment", "-fno-sanitize-recover=alignment"),
    "thread": ("-O1", "-fsanitize=thread", "-DCUSIM_TSAN", "-Wno-tsan"),
    "address": ("-Og", "-fsanitize=address,alignment", "-fno-sanitize-recover=all", "-DCUSIM_ASAN"),
}
_MACHINE = ("scheduler.cpp", "runner.cpp")  # of the simulator: they know no kernel
# The headers are read once for each file: 96 kernels in one take 30% less than in four. But all processors have some.
_KERNELS_PER_FILE = (24, 96)


class SimulatorError(AssertionError):
    """What the simulator or a sanitizer found wrong with a launch."""


@dataclass
class Array:
    """Memory of a launch: its contents, how far past a multiple of 128 it lies, where the kernel's pointer points, and
    which words of the Job are that pointer."""

    data: np.ndarray
    offset: int = 0
    into: int = 0
    word: int = 0
    also: int | None = None


class Simulator:
    """The kernels of some plans, compiled together. `variant`: plain, thread or address (the sanitizers).

    headers: a folder to be searched for onepass/ before the package's own, for tests of broken headers.
    """

    def __init__(self, plans, variant="plain", headers=HEADERS):
        self.variant = variant
        self.kernels = list(dict.fromkeys(plan.kernel for plan in plans))
        self._number = {kernel: i for i, kernel in enumerate(self.kernels)}
        by_kernel = {plan.kernel: plan for plan in plans}
        fewest, most = _KERNELS_PER_FILE
        per_file = min(most, max(fewest, ceil_div(len(self.kernels), JOBS)))
        tables = [self.kernels[begin : begin + per_file] for begin in range(0, len(self.kernels), per_file)]
        self._sizes = [len(table) for table in tables]
        self._files = [self._table(i, [by_kernel[kernel] for kernel in table]) for i, table in enumerate(tables)]
        self.headers = Path(headers)
        self.program = self._build()
        self._process = None

    @staticmethod
    def _table(number, plans):
        includes = sorted({plan.header for plan in plans})
        sources = dict.fromkeys(plan.source for plan in plans if plan.source)
        entries = ",\n".join(f"    cusim::Caller<&{plan.kernel}>::entry" for plan in plans)
        return (
            '#include "runner.h"\n'
            + "".join(f'#include "{header}"\n' for header in includes)
            + "\n".join(sources)
            + f"\nextern const cusim::Entry kTable{number}[];\nextern const std::size_t kSize{number};\n"
            f"const cusim::Entry kTable{number}[] = {{\n{entries}}};\n"
            f"const std::size_t kSize{number} = {len(plans)};\n"
        )

    def _index(self):
        numbers = range(len(self._files))
        return (
            '#include "runner.h"\n'
            + "".join(f"extern const cusim::Entry kTable{i}[];\nextern const std::size_t kSize{i};\n" for i in numbers)
            + f"const cusim::Entry* const kTables[] = {{{', '.join(f'kTable{i}' for i in numbers)}}};\n"
            + f"const std::size_t kTableCount = {len(self._files)};\n"
            + f"const std::size_t kTableSizes[] = {{{', '.join(map(str, self._sizes))}}};\n"
        )

    def _build(self):
        """Compiles what has not been compiled from the same sources before."""
        flags = (*_FLAGS, *_VARIANTS[self.variant], f"-I{self.headers}", f"-I{CUSIM}")
        plain = tuple(f for f in flags if not f.startswith(("-fsanitize", "-fno-sanitize")))
        digest = hashlib.sha256(repr((_FLAGS, _VARIANTS[self.variant], platform.machine())).encode())
        digest.update(subprocess.run([CXX, "--version"], capture_output=True, check=True).stdout)
        self._add_files(digest, CUSIM.iterdir())
        machine = BUILDS / f"{self.variant}-machine-{digest.hexdigest()[:20]}"
        self._add_files(digest, self.headers.rglob("*.h"))
        for text in (*self._files, self._index()):
            digest.update(text.encode())
        folder = BUILDS / f"{self.variant}-{digest.hexdigest()[:20]}"
        program = folder / "program"
        if program.exists():
            return program
        folder.mkdir(parents=True, exist_ok=True)
        machine.mkdir(parents=True, exist_ok=True)
        # Of this process alone: another may build the same at the same time, and would read files half written.
        with tempfile.TemporaryDirectory(dir=folder) as name:
            work, units = Path(name), []
            for i, text in enumerate(self._files):
                (work / f"table{i}.cpp").write_text(text)
                units.append((work / f"table{i}.cpp", flags))
            (work / "index.cpp").write_text(self._index())
            units.append((work / "index.cpp", plain))
            with ThreadPoolExecutor(JOBS) as pool:
                objects = list(pool.map(lambda unit: self._compile(work, *unit), units))
                objects += pool.map(lambda name: self._compile_once(machine, work, CUSIM / name, plain), _MACHINE)
            links = [f for f in flags if f.startswith(("-fsanitize", "-fno-sanitize"))]
            self._call([CXX, *map(str, objects), *links, "-o", str(work / "program")])
            (work / "program").rename(program)
        return program

    @staticmethod
    def _add_files(digest, files):
        for file in sorted(files):
            digest.update(file.name.encode() + file.read_bytes())

    def _compile_once(self, folder, work, source, flags):
        """What is the same whatever the kernels."""
        target = folder / f"{source.stem}.o"
        if not target.exists():
            self._compile(work, source, flags).rename(target)
        return target

    def _compile(self, folder, source, flags):
        target = folder / f"{source.stem}.o"
        self._call([CXX, *flags, "-c", str(source), "-o", str(target)])
        return target

    @staticmethod
    def _call(command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-8000:]}")

    def _start(self):
        environment = {
            **os.environ,
            "TSAN_OPTIONS": "halt_on_error=1 report_signal_unsafe=0",
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        }
        # ThreadSanitizer wants certain addresses for itself.
        command = ["setarch", platform.machine(), "-R"] if self.variant == "thread" else []
        self._errors = open(self.program.parent / f"errors.{os.getpid()}", "w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, str(self.program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )

    def close(self):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._errors.close()
            Path(self._errors.name).unlink()
            self._process = None

    def launch(self, plan, arrays, *, grid, seed):
        """Runs a plan; the arrays' contents afterwards. The second is the result."""
        if self._process is None:
            self._start()
        words = (*(0,) * plan.arrays, *plan.words)
        message = struct.pack(
            "<9q",
            self._number[plan.kernel],
            grid,
            plan.threads,
            plan.shared_bytes,
            plan.team > 0,
            plan.cluster,
            seed,
            len(words),
            len(arrays),
        )
        message += struct.pack(f"<{len(words)}q", *words)
        for array in arrays:
            data = array.data.tobytes()
            also = array.word if array.also is None else array.also
            message += struct.pack("<5q", array.word, also, len(data), array.offset, array.into) + data
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
            (length,) = struct.unpack("<q", self._read(8))
        except (BrokenPipeError, EOFError) as error:
            self._process.wait()
            self._errors.seek(0)
            text = self._errors.read()
            self.close_broken()
            raise SimulatorError(f"{plan.kernel}: the program ended\n{text[:4000]}") from error
        error = self._read(length).decode()
        results = [np.frombuffer(self._read(a.data.nbytes), a.data.dtype).reshape(a.data.shape) for a in arrays]
        if error:
            raise SimulatorError(f"{plan.kernel}: {error}")
        return results

    def close_broken(self):
        """After a crash: the next launch starts anew."""
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._errors.close()
        Path(self._errors.name).unlink()
        self._process = None

    def _read(self, length):
        data = self._process.stdout.read(length)
        if len(data) != length:
            raise EOFError
        return data
