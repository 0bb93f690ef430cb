"""Launches of every kernel on a GPU, checked: what tools/sanitize_gpu.sh runs under compute-sanitizer."""

from cuda_cases import Layout, launch
from gpu_machine import Gpu

from onepass.cuda.plan import Tuning

LONG = {"warp": 1001, "block": 9001, "block_smem": 9001, "online": 9001, "block_uncached": 9001, "three_pass": 3001}


def launches():
    cases = []
    for algorithm, length in LONG.items():
        for dtype in ("float32", "bfloat16"):
            odd = Layout((37, length), past=(1, 1))
            cases.append(launch(algorithm, "softmax", odd, dtype, algorithm=algorithm))
        cases.append(launch(algorithm, "logsumexp", Layout((37, length - 1)), algorithm=algorithm))
    for op in ("softmax", "log_softmax"):
        for staged in (True, False):
            tuning = Tuning(staged=staged)
            cases.append(launch("strided", op, Layout((3, 300, 50), 1), algorithm="strided", tuning=tuning))
    for op, algorithm in (("sum", "warp"), ("sum", "block"), ("amax", "block")):
        cases.append(launch(algorithm, op, Layout((37, 3001), past=(1, 1)), algorithm=algorithm))
    cases.append(launch("strided", "mean", Layout((3, 300, 50), 1), algorithm="strided"))
    for op, dtype in (
        ("softmax", "float32"),
        ("log_softmax", "bfloat16"),
        ("logsumexp", "float32"),
        ("sum", "float32"),
    ):
        odd = Layout((5, 70001), past=(1, 1))
        cases.append(launch("split", op, odd, dtype, algorithm="split", tuning=Tuning(threads=128)))
        cases.append(launch("strided_split", op, Layout((3, 5000, 9), 1), dtype, algorithm="strided_split"))
    for stages in (1, 2):
        tuning = Tuning(blocks=5, staged=True, stages=stages)
        cases.append(launch("split", "softmax", Layout((5, 70001)), algorithm="split", tuning=tuning))
    cases.append(launch("stream", "softmax", Layout((5, 70001)), algorithm="stream"))
    return cases


def main():
    cases = launches()
    machine = Gpu([case.plan for case in cases])
    for case in cases:
        error = case.error(machine, grid=7)
        print(f"{case.plan.algorithm:15} {case.op:12} {error:.3g} ULP", flush=True)
        assert error <= 5, case.plan.kernel


if __name__ == "__main__":
    main()
