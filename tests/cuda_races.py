"""Launches on which every barrier matters: several rows per block and several warps per block, one per kernel that has
a barrier. tests/test_cuda_races.py runs them under sanitizers, tools/mutate_barriers.py on broken headers."""

import posixpath
import re
from collections import Counter

import cuda_gradient_cases as gradient_cases
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
    for op in ("softmax", "logsumexp", "sum"):  # results of another size, elsewhere past a boundary
        tuning = Tuning(threads=64, lanes=4, rows=2)
        odd = Layout((40, 21), past=(1, 2))
        cases.append(launch("warp_smem", op, odd, "bfloat16", "float32", algorithm="warp_smem", tuning=tuning))
    for op, shape in (
        ("softmax", (40, 20, 3)),
        ("softmax", (11, 20, 33)),
        ("sum", (11, 20, 33)),
    ):  # a warp's, a block's
        cases.append(launch("slabs", op, Layout(shape, 1), "bfloat16", "float32", algorithm="warp_smem"))
    for op in ("sum", "amax"):
        cases.append(launch("block_reduce", op, Layout((5, 300)), algorithm="block", tuning=_WARPS))
    for staged in (True, False):
        tuning = Tuning(threads=128, staged=staged)
        cases.append(launch("strided", "softmax", Layout((40, 150), 0), algorithm="strided", tuning=tuning))
        cases.append(launch("strided", "log_softmax", Layout((3, 40, 50), 1), algorithm="strided", tuning=tuning))
    for op in ("softmax", "logsumexp"):
        tuning = Tuning(threads=128, across=8)
        cases.append(launch("strided_held", op, Layout((40, 150), 0), algorithm="strided", tuning=tuning))
    for op, blocks in (("softmax", 1), ("softmax", 3), ("log_softmax", 1)):
        tuning = Tuning(turned=True, threads=128, across=4, blocks=blocks)
        cases.append(launch("turned", op, Layout((300, 40), -1, lambda x: x.T), tuning=tuning))
        cases.append(launch("turned", op, Layout((20, 60, 12), 1, lambda x: x.T), tuning=tuning))
    for steps in (20, 21):  # that are whole packs, and that are joined
        tuning = Tuning(by_rows=True, threads=64, across=16)
        swapped = Layout((3, steps, 100), -1, lambda x: x.swapaxes(1, 2))
        cases.append(launch("by_rows", "softmax", swapped, tuning=tuning))
        cases.append(launch("by_rows", "softmax", swapped, tuning=Tuning(by_rows=True, threads=64)))
        dy = gradient_cases.Place((3, steps, 100), lambda x: x.swapaxes(1, 2))
        layout = gradient_cases.Layout((3, 100, steps), dy=dy)
        cases.append(gradient_cases.launch("by_rows", "softmax_backward", layout, tuning=tuning))
    for op in ("mean", "amin"):
        cases.append(launch("strided_reduce", op, Layout((40, 150), 0), algorithm="strided", tuning=_WARPS))
    return cases + _teams()


def _teams():
    """One team of two blocks that takes all rows: what one row leaves behind, the next must not take for its own."""
    cases = []
    for op in ("softmax", "log_softmax"):
        for staged, parts in ((False, None), (True, 1), (True, 2)):
            tuning = Tuning(threads=128, blocks=2, staged=staged, parts=parts)
            cases.append(launch("split", op, Layout((5, 701), past=(1, 1)), algorithm="split", tuning=tuning))
        # By one block that reads the states of all, and by each: more slices than blocks, and as many.
        for blocks, length in ((2, 701), (18, 4701)):
            tuning = Tuning(threads=64, blocks=blocks, handed=True, held=1)
            cases.append(launch("claimed", op, Layout((5, length), past=(1, 1)), algorithm="split", tuning=tuning))
        tuning = Tuning(threads=64, blocks=16, handed=True, held=1)
        cases.append(launch("claimed, in turns", op, Layout((3, 8192)), algorithm="split", tuning=tuning))
        for staged in (False, True):
            tuning = Tuning(threads=64, blocks=2, staged=staged, handed=staged)
            cases.append(launch("cluster", op, Layout((7, 701), past=(1, 1)), algorithm="cluster", tuning=tuning))
        tuning = Tuning(threads=128, blocks=2)
        cases.append(launch("stream", op, Layout((5, 701)), algorithm="stream", tuning=tuning))
        for staged in (True, False):
            tuning = Tuning(threads=64, blocks=2, staged=staged)
            tiles = Layout((90, 150), 0)
            cases.append(launch("strided_split", op, tiles, algorithm="strided_split", tuning=tuning))
        for clustered in (True, False):
            tuning = Tuning(threads=64, blocks=2, across=8, clustered=clustered)
            tiles = Layout((90, 250), 0)
            cases.append(launch("tiles in registers", op, tiles, algorithm="strided_split", tuning=tuning))
    # Small blocks, and many: one may be there before another has begun.
    tuning = Tuning(threads=32, blocks=8, clustered=True)
    tiles = Layout((16, 40), 0)
    cases.append(launch("tiles in registers", "softmax", tiles, algorithm="strided_split", tuning=tuning))
    tuning = Tuning(threads=128, blocks=2)
    for op in ("sum", "logsumexp"):
        cases.append(launch("split_reduce", op, Layout((5, 701)), algorithm="split", tuning=tuning))
        cases.append(launch("strided_split", op, Layout((90, 150), 0), algorithm="strided_split", tuning=tuning))
    tuning = Tuning(threads=128, blocks=2, interleaved=True)
    for op in ("softmax", "log_softmax", "sum"):
        cases.append(launch("runs", op, Layout((5, 150, 7), 1), algorithm="strided_split", tuning=tuning))
    odd = gradient_cases.Layout((40, 21), dx=gradient_cases.Place(past=1))
    tuning = Tuning(threads=64, lanes=4, rows=2)
    dtypes = ("bfloat16", "bfloat16", "float32")
    case = gradient_cases.launch("gradient", "softmax_backward", odd, dtypes, algorithm="warp_smem", tuning=tuning)
    cases.append(case)
    slabs = gradient_cases.Layout((11, 20, 33), 1)
    cases.append(gradient_cases.launch("slabs", "softmax_backward", slabs, dtypes, algorithm="warp_smem"))
    # A gradient that waits for one array, then for the other.
    tuning = Tuning(threads=128, blocks=2, staged=True)
    rows = gradient_cases.Layout((5, 701))
    cases.append(gradient_cases.launch("gradient", "log_softmax_backward", rows, algorithm="split", tuning=tuning))
    for op in ("softmax_backward", "log_softmax_backward"):
        for blocks, length in ((2, 701), (18, 4701)):
            tuning = Tuning(threads=64, blocks=blocks, handed=True, held=1)
            rows = gradient_cases.Layout((5, length))
            cases.append(gradient_cases.launch("claimed", op, rows, algorithm="split", tuning=tuning))
    runs = gradient_cases.Layout((5, 150, 7), 1)
    tuning = Tuning(threads=128, blocks=2, interleaved=True)
    case = gradient_cases.launch("runs", "softmax_backward", runs, algorithm="strided_split", tuning=tuning)
    cases.append(case)
    tiles = gradient_cases.Layout((150, 90), 0)
    for clustered in (None, True, False):
        tuning = Tuning(threads=64, blocks=2, across=8 if clustered is not None else None, clustered=clustered)
        case = gradient_cases.launch("gradient", "softmax_backward", tiles, algorithm="strided_split", tuning=tuning)
        cases.append(case)
    return cases


# What orders the threads of a block: barriers, and the change of place that saves a second one. What orders blocks: the
# change of place, and that both halves of an access carry their number. What orders blocks of a cluster: that all are
# there before the first store, and what counts the bytes of stores. And what is put in their place.
BARRIER = "__syncthreads();"
REPLACED = {
    BARRIER: ";",
    "turn_ ^= 1;": ";",
    "(sequence_ - first_) % 2": "0",
    "got.y == number": "true",
    "got.w == number": "true",
    "ptx::wait_for_copies<": "ptx::wait_for_copies<9 + ",
    "number_ % 2": "0",
    "number_ / 2 % 2": "number_ % 2",
    "__syncwarp();": ";",
    "Slabs::meet();": ";",
    "        meet();": ";",
    "ptx::init_barrier(&barrier, 1);": "(void)barrier;",
    "ptx::arrive_at_cluster();": ";",
    "ptx::wait_for_cluster();": ";",
    "ptx::arrive_and_expect(arrived, kHandsOut ? sizeof(here) : sizeof(here.states));": ";",
    "ptx::wait_for_phase(arrived, phase);": "(void)phase;",
    "ptx::arrive_and_expect(&scratch_.arrived, sizeof(scratch_.states));": ";",
    "ptx::init_barrier(&scratch_.arrived, 1);": ";",
    "ptx::wait_for_phase(&scratch_.arrived, 0);": ";",
}


def mutants(headers):
    """(file, line, what is removed) of everything in the headers that orders the threads of a block."""
    found = []
    for path in sorted(headers.glob("onepass/cuda/*.h")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found += [(path, number, what) for what in REPLACED if what in line and "__device__" not in line]
    return found


def remove(path, number, what):
    """Takes `what` out of a line of a file."""
    lines = path.read_text().splitlines(keepends=True)
    assert what in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(what, REPLACED[what])
    path.write_text("".join(lines))


def includes(headers, name):
    """A header and all that it includes, by their names in `headers`."""
    found, todo = set(), {name}
    while todo:
        name = todo.pop()
        found.add(name)
        for quoted in re.findall(r'#include "([^"]+)"', (headers / name).read_text()):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), quoted))
            if path not in found and (headers / path).exists():
                todo.add(path)
    return found


# Launches whose kernels are compiled together, one of each kind first: most of what is missing is seen in these; and
# what is missing of an exchange within a cluster in several clusters.
_AT_A_TIME = 4
_FIRST = {"onepass/cuda/cluster_exchange.h": "cluster"}


def first_failure(headers, variant="thread", changed=None):
    """The first launch that fails with these headers, and how; None if none does. Those that do not include what has
    been changed in them, if that is told, are left out."""
    cases = [case for case in launches() if changed is None or changed in includes(headers, case.plan.header)]
    seen = Counter()

    def turn(case):
        seen[case.name] += 1
        return case.name != _FIRST.get(changed), seen[case.name]

    cases.sort(key=turn)
    for begin in range(0, len(cases), _AT_A_TIME):
        failure = _failure_of(cases[begin : begin + _AT_A_TIME], headers, variant)
        if failure is not None:
            return failure
    return None


def _failure_of(cases, headers, variant):
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
