"""The CUDA kernels under ThreadSanitizer and AddressSanitizer; and the simulator itself: does it see what it should?"""

import shutil

import cuda_gradient_cases as gradient_cases
import cuda_races
import pytest
from cuda_cases import STRIDED, Layout, launch, rows_of
from simulator import HEADERS, Simulator, SimulatorError

from onepass.cuda.plan import Functor, Tuning

SEEDS = range(4)


def gradients():
    """Launches of every kernel of a gradient, by several warps over several rows."""
    cases = []
    tunings = {
        "warp": Tuning(threads=64),
        "block": Tuning(threads=64),
        "block_smem": Tuning(threads=64),
        "block_uncached": Tuning(threads=64, kept=20),
    }
    for algorithm, tuning in tunings.items():
        for dtype in ("float32", "float16"):
            for why, layout in gradient_cases.rows_of(260, rows=3).items():
                case = gradient_cases.launch(why, "softmax_backward", layout, dtype, algorithm, tuning=tuning)
                cases.append(case)
        layout = gradient_cases.Layout((5, 301))
        cases.append(gradient_cases.launch("odd", "log_softmax_backward", layout, "bfloat16", algorithm, tuning=tuning))
    for algorithm, staged in (("split", False), ("split", True), ("stream", None)):
        tuning = Tuning(threads=64, blocks=2, staged=staged)
        layout = gradient_cases.Layout((5, 301))
        cases.append(gradient_cases.launch("odd", "softmax_backward", layout, "bfloat16", algorithm, tuning=tuning))
    for why, layout in gradient_cases.rows_of(260, rows=3).items():
        cases.append(gradient_cases.launch(why, "logsumexp_backward", layout, "float32", "warp"))
    for why, layout in gradient_cases.STRIDED.items():
        for op in gradient_cases.FORWARD:
            cases.append(gradient_cases.launch(why, op, layout, "float32", "strided"))
        case = gradient_cases.launch(
            why, "log_softmax_backward", layout, "float32", "strided", tuning=Tuning(staged=False)
        )
        cases.append(case)
    return cases


@pytest.fixture(scope="module", params=["thread", "address"])
def sanitized(request):
    cases = cuda_races.launches()
    for algorithm, length in (("warp", 200), ("block", 260), ("block_smem", 260), ("online", 260), ("three_pass", 260)):
        for dtype in ("float32", "float16"):
            for why, layout in rows_of(length, rows=3).items():
                cases.append(launch(why, "softmax", layout, dtype, algorithm=algorithm, tuning=Tuning(threads=64)))
    for why, layout in STRIDED.items():
        for op in ("softmax", "sum"):
            cases.append(launch(why, op, layout, "float32", algorithm="strided"))
    cases += gradients()
    machine = Simulator([case.plan for case in cases], request.param)
    yield machine, cases
    machine.close()


def test_sanitizers_find_nothing(sanitized):
    machine, cases = sanitized
    for case in cases:
        for seed in SEEDS if machine.variant == "thread" else (0, 1):
            assert case.error(machine, seed=seed) <= 5, (case.name, case.plan.kernel)


BROKEN = {
    "a barrier that one warp skips": ("if (row == 0 && threadIdx.x < 32) __syncthreads(); ", "deadlock|divergence"),
    "different barriers": (
        "if (threadIdx.x < 32) {\n __syncthreads();\n } else {\n __syncthreads();\n }",
        "divergence",
    ),
    "a shuffle of half a warp": ("if (threadIdx.x < 16) x += __shfl_xor_sync(~0u, 1u, 1);", "deadlock|divergence"),
    "a misaligned access": ("x += __ldcs(reinterpret_cast<const uint2*>(2 * column + 4)).x;", "misaligned"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_simulator_reports(what):
    code, message = BROKEN[what]
    source = (
        "struct Broken {\n template <class C> C operator()(C x, long long row, long long column) const {\n"
        f"(void)row, (void)column;\n{code}\n return x;\n }} }};"
    )
    case = launch(what, "softmax", Layout((2, 200)), algorithm="warp", load=Functor("Broken", source=source))
    machine = Simulator([case.plan])
    try:
        with pytest.raises(SimulatorError, match=message):
            case.run(machine)
    finally:
        machine.close()


@pytest.mark.parametrize(
    ("path", "line", "what"),
    [pytest.param(*m, id=f"{m[0].name} line {m[1]}: {m[2]}") for m in cuda_races.mutants(HEADERS)],
)
def test_without_it_a_race_is_seen(path, line, what, tmp_path):
    """Each barrier is needed: remove one, and ThreadSanitizer or a wrong result shows it."""
    broken = tmp_path / "include"
    shutil.copytree(HEADERS, broken)
    cuda_races.remove(broken / path.relative_to(HEADERS), line, what)
    assert cuda_races.first_failure(broken, changed=path.relative_to(HEADERS).as_posix())
