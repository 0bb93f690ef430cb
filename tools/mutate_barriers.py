#!/usr/bin/env python3
"""Mutation proof: takes every barrier out of the CUDA headers in turn, and everything else that orders the threads of a
block, and shows which launch of the simulator fails without it. Exits with 1 if one is not missed."""

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import cuda_races  # noqa: E402
from simulator import HEADERS  # noqa: E402


def main() -> int:
    missed = 0
    found = cuda_races.first_failure(HEADERS)
    if found:
        print(f"the headers as they are: {found[1]}")
        return 1
    print("the headers as they are: no failure")
    for path, line, what in cuda_races.mutants(HEADERS):
        where = f"{path.relative_to(HEADERS)}:{line} without {what}"
        for variant in ("plain", "thread"):
            with tempfile.TemporaryDirectory() as folder:
                broken = Path(folder) / "include"
                shutil.copytree(HEADERS, broken)
                cuda_races.remove(broken / path.relative_to(HEADERS), line, what)
                found = cuda_races.first_failure(broken, variant, path.relative_to(HEADERS).as_posix())
            if found:
                case, how = found
                text = " ".join(next((s for s in how.splitlines() if "SUMMARY" in s), how).split())
                print(f"{where}\n  {variant}: {case.plan.algorithm} {case.op}: {text[:160]}")
            else:
                print(f"{where}\n  {variant}: not seen")
                missed += variant == "thread"
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
