"""Launches of every kernel on a GPU, checked: what tools/sanitize_gpu.sh runs under compute-sanitizer."""

import argparse

import cuda_gradient_cases as gradient_cases
from cuda_cases import Layout, launch
from gpu_machine import Gpu

from onepass.cuda.kernel_plan import ONCE
from onepass.cuda.plan import Tuning

LONG = {"warp": 1001, "block": 9001, "block_smem": 9001, "online": 9001, "block_uncached": 9001, "three_pass": 3001}


def launches():
    cases = []
    for algorithm, length in LONG.items():
        for dtype in ("float32", "bfloat16"):
            odd = Layout((37, length), past=(1, 1))
            cases.append(launch(algorithm, "softmax", odd, dtype, algorithm=algorithm))
        cases.append(launch(algorithm, "logsumexp", Layout((37, length - 1)), algorithm=algorithm))
    for op, dtypes in (
        ("softmax", ("float32", "float32")),
        ("log_softmax", ("bfloat16", "bfloat16")),
        ("logsumexp", ("float32", "float32")),
        ("sum", ("bfloat16", "bfloat16")),
        ("softmax", ("bfloat16", "float32")),
    ):
        for length in (3, 33, 130):
            odd = Layout((1001, length), past=(1, 2))
            cases.append(launch("warp_smem", op, odd, *dtypes, algorithm="warp_smem"))
    for shape in ((1001, 20, 3), (1001, 32, 2), (90, 48, 49)):
        for op, dtype in (
            ("softmax", "float32"),
            ("log_softmax", "bfloat16"),
            ("logsumexp", "bfloat16"),
            ("sum", "float32"),
        ):
            for past in ((0, 0), (1, 2)):
                slabs = Layout(shape, 1, past=past)
                cases.append(launch("slabs", op, slabs, dtype, algorithm="warp_smem"))
    for shape in ((3, 21, 1001), (3, 300, 49), (700, 33), (3, 100, 5)):
        for op in ("logsumexp", "sum"):
            cases.append(launch("columns", op, Layout(shape, len(shape) - 2), "bfloat16"))
    for op in ("softmax", "log_softmax"):
        for staged in (None, True, False):
            tuning = Tuning(staged=staged)
            cases.append(launch("strided", op, Layout((3, 300, 50), 1), algorithm="strided", tuning=tuning))
    for op, algorithm in (("sum", "warp"), ("sum", "block"), ("amax", "block")):
        cases.append(launch(algorithm, op, Layout((37, 3001), past=(1, 1)), algorithm=algorithm))
    for shape, dtype in (((3, 300, 52), "float32"), ((3, 3000, 72), "bfloat16"), ((3, 302, 50), "float16")):
        for op in ("softmax", "log_softmax"):
            for dim in (1, 2):
                cases.append(launch("turned", op, Layout(shape, dim, lambda x: x.swapaxes(1, 2)), dtype))
            cases.append(launch("turned", op, Layout((20, shape[1], 52), 1, lambda x: x.T), dtype))
    for shape in ((3, 3, 120000), (3, 21, 5000), (3, 24, 5001), (3, 301, 704)):
        for op, dtype in (("softmax", "float32"), ("softmax", "bfloat16"), ("log_softmax", "float16")):
            layout = Layout(shape, -1, lambda x: x.swapaxes(1, 2), (1, 1) if shape[1] == 24 else (0, 0))
            # Of float32 and sigma 3, the rounding of exponents takes up to 6 ULP.
            cases.append(launch("by_rows", op, layout, dtype, sigma=1 if dtype == "float32" else 3))
    cases.append(launch("strided", "mean", Layout((3, 300, 50), 1), algorithm="strided"))
    cases += of_any_operation()
    for blocks, staged in ((2, True), (3, True), (8, False), (16, True)):
        for handed in (False, True):
            tuning = Tuning(blocks=blocks, staged=staged, handed=handed)
            rows = Layout((40, 40000 + handed))  # of whole packs, and off their boundaries
            cases.append(launch("cluster", "softmax", rows, algorithm="cluster", tuning=tuning))
    for dtype, op in (("float32", "softmax"), ("bfloat16", "softmax"), ("bfloat16", "log_softmax")):
        for staged, parts in ((False, None), (True, 1)):
            tuning = Tuning(blocks=8, threads=128, staged=staged, handed=staged, parts=parts)
            rows = Layout((40, 40000 + (not staged)))
            cases.append(launch("cluster", op, rows, dtype, algorithm="cluster", tuning=tuning))
    for dtype, op in (("float32", "softmax"), ("bfloat16", "softmax"), ("float32", "log_softmax")):
        for rows, blocks in ((80, 9), (40, 18), (3, 9)):  # every block reads states, one for all does, no block claims
            tuning = Tuning(handed=True, blocks=blocks, held=1)
            odd = Layout((rows, 70001), past=(1, 1))
            cases.append(launch("claimed", op, odd, dtype, algorithm="split", tuning=tuning))
        for blocks, length in ((16, 70000), (272, 540000)):  # slices that take turns, and more of them than threads
            tuning = Tuning(handed=True, blocks=blocks, held=1)
            cases.append(launch("claimed", op, Layout((6, length)), dtype, algorithm="split", tuning=tuning))
    for parts in (4, 7):
        tuning = Tuning(blocks=5, staged=True, parts=parts)
        cases.append(launch("split", "softmax", Layout((5, 70001)), algorithm="split", tuning=tuning))
    cases.append(launch("stream", "softmax", Layout((5, 70001)), algorithm="stream"))
    return cases + gradients()


def of_any_operation():
    """What several blocks share, and runs of memory."""
    cases = []
    for op, dtype in (
        ("softmax", "float32"),
        ("log_softmax", "bfloat16"),
        ("logsumexp", "float32"),
        ("sum", "float32"),
    ):
        odd = Layout((5, 70001), past=(1, 1))
        cases.append(launch("split", op, odd, dtype, algorithm="split", tuning=Tuning(threads=128)))
        for interleaved in (False, True):
            tuning = Tuning(interleaved=interleaved)
            long = Layout((3, 5000, 9), 1)
            cases.append(launch("strided_split", op, long, dtype, algorithm="strided_split", tuning=tuning))
        # As many threads as suit them, blocks without a pack, all off boundaries. (Of float32 and sigma 3, the rounding
        # of exponents takes up to 6 ULP.)
        for columns in (22, 219, 701):
            tuning, sigma = Tuning(interleaved=True, blocks=6), 1 if dtype == "float32" else 3
            off = Layout((3, 201, columns), 1, past=(1, 1))
            cases.append(launch("runs", op, off, dtype, algorithm="strided_split", sigma=sigma, tuning=tuning))
        cases.append(launch("cluster", op, odd, dtype, algorithm="cluster"))
        if op in ("softmax", "log_softmax"):
            for shape, tuning in (
                ((3, 2500, 36), Tuning(clustered=True)),
                ((3, 700, 40), Tuning(clustered=True, blocks=3)),
                ((3, 2500, 9), Tuning(clustered=False, blocks=20)),
            ):
                tiles = Layout(shape, 1)
                cases.append(launch("tiles in registers", op, tiles, dtype, algorithm="strided_split", tuning=tuning))
    return cases


def gradients():
    cases = []
    for algorithm, length, tuning in (
        ("warp", 241, Tuning()),
        ("warp_smem", 61, Tuning()),
        ("block", 5001, Tuning()),
        ("block_smem", 9001, Tuning()),
        ("block_uncached", 9001, Tuning(kept=100)),
    ):
        for dtype in ("float32", "bfloat16"):
            for why in ("aligned", "only the inputs agree"):
                layout = gradient_cases.rows_of(length, rows=37)[why]
                case = gradient_cases.launch(algorithm, "softmax_backward", layout, dtype, algorithm, tuning=tuning)
                cases.append(case)
    for algorithm, tuning in (
        ("split", Tuning(threads=128, staged=False)),
        ("split", Tuning(blocks=5, staged=True)),
        ("stream", Tuning()),
        ("cluster", Tuning(blocks=4, staged=True, handed=True)),
        ("cluster", Tuning(blocks=16, staged=False)),
    ):
        for op, why in (("softmax_backward", "only the inputs agree"), ("log_softmax_backward", "aligned")):
            layout = gradient_cases.rows_of(30001)[why]
            cases.append(gradient_cases.launch(algorithm, op, layout, "bfloat16", algorithm, tuning=tuning))
    for dtype, op in (("float32", "softmax_backward"), ("bfloat16", "log_softmax_backward")):
        for rows, length, blocks in ((40, 70001, 11), (20, 70000, 24), (3, 70001, 11), (3, 1080000, 260)):
            layout = gradient_cases.Layout((rows, length))
            tuning = Tuning(handed=True, blocks=blocks, held=1)
            cases.append(gradient_cases.launch("claimed", op, layout, dtype, "split", tuning=tuning))
    for shape, dtype in (((3, 300, 52), "float32"), ((3, 3000, 72), "bfloat16"), ((3, 302, 50), "float16")):
        dy = gradient_cases.Place(shape, lambda x: x.swapaxes(1, 2))
        for op in ("softmax_backward", "log_softmax_backward"):
            for dim in (1, 2):
                layout = gradient_cases.Layout((shape[0], shape[2], shape[1]), dim, dy=dy)
                cases.append(gradient_cases.launch("turned", op, layout, dtype))
            dy_of_rows = gradient_cases.Place((20, shape[1], 52), lambda x: x.T)
            layout = gradient_cases.Layout((52, shape[1], 20), 1, dy=dy_of_rows)
            cases.append(gradient_cases.launch("turned", op, layout, dtype))
    rows = gradient_cases.Layout((37, 9001))
    cases.append(gradient_cases.launch("rows", "logsumexp_backward", rows, algorithm="warp"))
    for shape, op in (((3, 21, 5000), "softmax_backward"), ((3, 14, 7001), "log_softmax_backward")):
        dy = gradient_cases.Place(shape, lambda x: x.swapaxes(1, 2))
        for dtype in ("float32", "bfloat16"):
            layout = gradient_cases.Layout((shape[0], shape[2], shape[1]), dy=dy)
            cases.append(gradient_cases.launch("by_rows", op, layout, dtype))
    for op in gradient_cases.FORWARD:
        layout = gradient_cases.Layout((3, 300, 50), 1)
        cases.append(gradient_cases.launch("columns", op, layout, algorithm="strided"))
    for algorithm, tuning in (("strided", Tuning(staged=False)), ("strided_split", Tuning(blocks=5))):
        case = gradient_cases.launch("columns", "log_softmax_backward", layout, algorithm=algorithm, tuning=tuning)
        cases.append(case)
    for algorithm, shape, tuning in (
        ("warp_smem", (1001, 20, 3), Tuning()),
        ("warp_smem", (90, 48, 49), Tuning()),
        ("strided", (3, 300, 50), Tuning(clustered=True, blocks=1)),
        ("strided_split", (3, 700, 40), Tuning(clustered=True, blocks=3)),
        ("strided_split", (3, 2500, 36), Tuning(clustered=True)),
        ("strided_split", (3, 2500, 9), Tuning(clustered=False, blocks=20)),
        ("strided_split", (3, 2500, 9), Tuning(interleaved=True)),
        ("strided_split", (5, 301, 219), Tuning(interleaved=True, blocks=6)),
    ):
        layout = gradient_cases.Layout(shape, 1)
        for op, dtype in (("softmax_backward", "float32"), ("log_softmax_backward", "bfloat16")):
            cases.append(gradient_cases.launch("tiles and slabs", op, layout, dtype, algorithm, tuning=tuning))
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters-once", type=int, default=16, help="blocks of a cluster with one row, at most")
    parser.add_argument("--only", default="", help="kernels with this in their names")
    parser.add_argument("--without", default="no such kernel", help="kernels without it")
    options = parser.parse_args()
    cases = [c for c in launches() if c.plan.waves != ONCE or c.plan.cluster <= options.clusters_once]
    cases = [c for c in cases if options.only in c.plan.kernel and options.without not in c.plan.kernel]
    machine = Gpu([case.plan for case in cases])
    for case in cases:
        error = case.error(machine, grid=7)
        print(f"{case.plan.algorithm:15} {case.op:12} {error:.3g} ULP", flush=True)
        assert error <= 5, case.plan.kernel


if __name__ == "__main__":
    main()
