"""What first calls on a GPU cost: the first ever, the first of a new process that finds its kernel in the cache, and
those of 16 processes that start at once on an empty cache.

    python benchmarks/first_call.py [--json F]

Needs torch and a GPU. Times are those of the call alone, after imports, torch's CUDA context and the tensor.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_PROCESSES = 16
_CHILD = """
import sys, time
import torch
import onepass.cuda
x = torch.randn(128, 2048, device="cuda")
torch.softmax(x, -1)
torch.cuda.synchronize()
began = time.perf_counter()
y = onepass.softmax(x)
torch.cuda.synchronize()
first = time.perf_counter() - began
began = time.perf_counter()
onepass.softmax(x)
second = time.perf_counter() - began
assert torch.allclose(y, torch.softmax(x, -1), rtol=1e-5, atol=1e-9)
print(first, second, "cuda.core" in sys.modules)
"""


def start(folder: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "ONEPASS_CACHE_DIR": folder}
    return subprocess.Popen([sys.executable, "-c", _CHILD], env=environment, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, float | bool]:
    printed, _ = process.communicate(timeout=300)
    if process.returncode:
        raise SystemExit(f"a process failed with exit code {process.returncode}")
    first, second, compiled = printed.split()
    return {
        "first_call_ms": round(float(first) * 1e3, 2),
        "second_call_ms": round(float(second) * 1e3, 4),
        "imported_the_compiler": compiled == "True",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="F")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {"first ever": result(start(folder)), "new process, warm cache": result(start(folder))}
    with tempfile.TemporaryDirectory() as folder:
        together = [result(process) for process in [start(folder) for _ in range(_PROCESSES)]]
        entries = sorted(path.name for path in Path(folder).iterdir())
        found[f"{_PROCESSES} processes at once"] = {
            "slowest_first_call_ms": max(one["first_call_ms"] for one in together),
            "files_in_the_cache": len(entries),
            "unfinished_files": sum(name.startswith("writing-") for name in entries),
        }
        found["after them, warm cache"] = result(start(folder))
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
