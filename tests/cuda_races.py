"""Launches on which every barrier matters: several rows per block and several warps per block, one per kernel that has
a barrier. tests/test_cuda_races.py runs them under sanitizers, tools/mutate_barriers.py on broken headers."""

from cuda_cases import Layout, launch
from simulator import Simulator, SimulatorError

from onepass.cuda.plan import Tuning

_ROWS = ("block", "block_smem", "online", "three_pass")
_LENGTH = 300
_WARPS = Tuning(threads=128)


def launches():
    """Launches that together have every barrier, each run several times by several warps."""
    cases = []
    for algorithm in _ROWS:
        for op in ("softmax", "log_softmax", "logsumexp"):
            cases.append(launch(algorithm, op, Layout((5, _LENGTH)), algorithm=algorithm, tuning=_WARPS))
        odd = Layout((5, _LENGTH + 1), past=(1, 1))
        cases.append(launch(algorithm, "softmax", odd, "bfloat16", algorithm=algorithm, tuning=_WARPS))
    for op in ("sum", "amax"):
        cases.append(launch("block_reduce", op, Layout((5, 300)), algorithm="block", tuning=_WARPS))
    for staged in (True, False):
        tuning = Tuning(threads=128, staged=staged)
        cases.append(launch("strided", "softmax", Layout((40, 150), 0), algorithm="strided", tuning=tuning))
        cases.append(launch("strided", "log_softmax", Layout((3, 40, 50), 1), algorithm="strided", tuning=tuning))
    for op in ("mean", "amin"):
        cases.append(launch("strided_reduce", op, Layout((40, 150), 0), algorithm="strided", tuning=_WARPS))
    return cases


# What orders the threads of a block: barriers, and the change of place that saves a second one.
BARRIER = "__syncthreads();"
TURN = "turn_ ^= 1;"


def mutants(headers):
    """(file, line, what is removed) of everything in the headers that orders the threads of a block."""
    found = []
    for path in sorted(headers.glob("onepass/cuda/*.h")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found += [(path, number, what) for what in (BARRIER, TURN) if what in line]
    return found


def remove(path, number, what):
    """Takes `what` out of a line of a file."""
    lines = path.read_text().splitlines(keepends=True)
    assert what in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(what, ";")
    path.write_text("".join(lines))


def first_failure(headers, variant="thread"):
    """The first launch that fails with these headers, and how; None if none does."""
    cases = launches()
    machine = Simulator([case.plan for case in cases], variant, headers)
    try:
        for case in cases:
            for seed in range(8):
                try:
                    error = case.error(machine, seed=seed)
                except SimulatorError as failure:
                    return case, str(failure)
                if not error <= 5:
                    return case, f"an error of {error:.3g} ULP"
    finally:
        machine.close()
    return None
