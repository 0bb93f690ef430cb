"""`onepass doctor` about GPUs, and `onepass cache`."""

import pytest
from helpers import run_python
from typer.testing import CliRunner

import onepass
from onepass import cli, doctor
from onepass.cuda import compile, launch
from onepass.cuda.cache import KernelCache
from onepass.cuda.device import NAMES


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "kernels"))
    compile.cache.cache_clear()
    yield tmp_path / "kernels"
    compile.cache.cache_clear()


def invoke(*arguments):
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def unwrapped(text):
    """What doctor says, however narrow its table is."""
    return " ".join(text.split())


def test_cache_info_and_clear(folder):
    assert invoke("cache", "info") == f"{folder}: 0 kernels, 0 of at most 268,435,456 bytes\n"
    KernelCache(folder).put("key", bytes(952))
    assert invoke("cache", "info") == f"{folder}: 1 kernels, 1,000 of at most 268,435,456 bytes\n"
    assert invoke("cache", "clear") == "1 kernels removed\n"
    assert invoke("cache", "info").startswith(f"{folder}: 0 kernels")


def test_cache_without_a_home(monkeypatch):
    monkeypatch.setattr(compile, "default_folder", lambda: None)
    compile.cache.cache_clear()
    assert invoke("cache", "info").startswith("no folder: 0 kernels")
    assert invoke("cache", "clear") == "0 kernels removed\n"
    assert doctor._kernel_cache().startswith("none: this user has no home")
    compile.cache.cache_clear()


def test_cache_that_cannot_be_cleared(folder, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied", str(folder / "a.kernel"))

    monkeypatch.setattr(KernelCache, "clear", refuse)
    result = CliRunner().invoke(cli.app, ["cache", "clear"])
    assert result.exit_code == 1
    assert result.output == f"onepass: error: {folder / 'a.kernel'}: Permission denied\n"


def test_doctor_lists_gpus_compiler_and_kernels(stub, folder):
    launch.read_device.cache_clear()
    text = unwrapped(invoke("doctor"))
    launch.read_device.cache_clear()
    for words in (
        "CUDA 13.1, 2 GPUs",
        "GPU cuda:1",
        "H200, sm_90a, 132 multiprocessors, 141 GiB",
        "nvidia-cuda-nvrtc 1",
        "0 kernels, 0 B of at most 256 MiB",
    ):
        assert words in text


def test_doctor_says_why_there_is_no_gpu(stub):
    stub.fail("cuDeviceGetCount", 100)
    assert "cannot be used: onepass could not count the GPUs: CUDA_ERROR_NO_DEVICE" in unwrapped(invoke("doctor"))


def test_doctor_without_a_driver(tmp_path):
    out = run_python(
        "from onepass.doctor import report\nreport()",
        env={"ONEPASS_LIBCUDA": "/nowhere/libcuda.so", "ONEPASS_CACHE_DIR": str(tmp_path)},
    )
    assert "cannot be used: no NVIDIA driver (/nowhere/libcuda.so" in unwrapped(out)


def test_doctor_names_what_is_missing_of_the_compiler(monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda name: None if name == "cuda-core" else "1.0")
    assert doctor._compiler() == "cuda-core missing; only needed for arrays on a GPU: pip install 'onepass[cuda]'"


# A shape for each tier and the words its explanation has to have: where a row waits, how wide accesses are, how a GPU
# is filled, what the floor is.
EXPLAINED = {
    "128x2048": ("block", "in registers", "packs of 4"),
    "49152x1024": ("warp", "32 lanes per row, 8 x packs of 4", "read once, and no barrier"),
    "49152x21": ("warp_smem", "2 lanes share each of them", "2 lanes per row, 11 x one element each"),
    "2000x33": ("warp", "32 lanes per row, 2 x one element", "short rows off the boundaries"),
    "50000x33": ("warp", "8 lanes per row, 1 x packs of 4 each", "8 of up to 8 lanes for each cost least"),
    "4000000x3": ("warp_smem", "brings 256 of them as one piece", "8 rows at a time, by way of"),
    "100000x100 --op log_softmax": (
        "warp",
        "8 lanes per row, 4 x packs of 4",
        "8 of up to 32 lanes for each cost least",
    ),
    "50000x150 --op sum --dtype bfloat16": ("warp_smem", "2 lanes share each of them", "packs of 2"),
    "1024x1000x3 --dim 1": ("strided", "tiles of 4 rows, 4 x 32 threads", "read once"),
    "474412x48x3 --dim 1": ("warp_smem", "a warp brings those of 5 such pieces", "2 lanes per row, 24 x one element"),
    "8x21x513x513 --dim 1 --op sum": ("strided", "tiles of 128 rows, 128 x 1 threads", "one element"),
    "10000x1001 --dim 0 --op sum": ("strided_split", "8 blocks share a tile", "1 reads"),
    "65536x64 --dim 0 --op logsumexp": ("strided_split", "share a tile of 65536 steps", "in registers: read once"),
    "1000x1000 --dim 0 --op sum --dtype bfloat16": ("strided", "8 x 64 threads", "needs every element once"),
    "64x1000": ("block", "a block of 256 per row", "would leave most of the GPU idle"),
    "1024x1000": ("block", "a block of 128 per row, 2 x packs of 4 each", "would leave most of the GPU idle"),
    "4096x1000": ("warp", "32 lanes per row, 8 x packs of 4 each", "fits the registers of a warp"),
    "1024x8192": ("block", "512 per row", "fits the registers of a block"),
    "128x32728": ("cluster", "8 blocks of 128 per row, 8 x packs of 4 each", "128 rows of 130912 bytes"),
    "4096x20000": ("cluster", "4 blocks of 128 per row, 10 x packs of 4 each, in registers", "share each"),
    "8192x48000": ("cluster", "8 blocks of 128 per row, 12 x packs of 4 each", "24576 bytes of shared memory"),
    "8192x240001": ("cluster", "16 blocks of 256 per row", "take rows as they are ready for them"),
    "64x40001": ("cluster", "8 blocks of 128 per row, 10 x packs of 4 each", "head and tail peeled, in registers"),
    "128x262144": ("cluster", "16 blocks of 256 per row", "65536 bytes of shared memory each, 4 parts: read once"),
    "16x1048576": ("split", "44 blocks of 512 per row", "98304 bytes of shared memory each, 3 parts: read once"),
    "128x524288": (
        "split",
        "32 blocks of 256 per row",
        "8 packs a thread in registers and 8 in shared memory: read once",
    ),
    "1x128256": ("cluster", "16 blocks of 256 per row, 8 x packs of 4 each, in registers", "1 rows of 513024 bytes"),
    "1x1048576": ("split", "128 blocks of 512 per row", "a row takes 4194304 bytes, a block has 232448"),
    "32x131072": ("cluster", "16 blocks of 256 per row", "32 rows of 524288 bytes"),
    "16x140000": ("split", "18 blocks of 256 per row", "a row takes 560000 bytes, a block has 232448"),
    "128x65536": ("cluster", "the blocks of a cluster share each", "of 128 threads that hold 8 packs each"),
    "128x4194304": ("split", "256 blocks of 256 per row", "slices that blocks claim as they are ready for them"),
    "128x16777216": ("online", "2 reads", "a block has 232448: it is read twice"),
    "2x33554432": ("stream", "198 blocks of 256 per row, packs of 4 each, kept nowhere, 2 reads", "read twice"),
    "4096x50257 --dtype bfloat16": ("cluster", "4 blocks of 128 per row", "start off pack boundaries"),
    "32x256x56x56 --dim 1": ("strided", "tiles of 32 rows", "read once"),
    "2x128256x16 --dim 1": (
        "strided_split",
        "8 x 64 threads of 65 blocks",
        "65 blocks share a tile of 128256 steps, of which a thread holds 31 in registers: read once",
    ),
    "4096x4096 --dim 0": ("strided_split", "16 x 32 threads of 8 blocks", "the 8 blocks of a cluster share a tile of"),
    "16384x1024 --dim 0": ("strided_split", "8 x 32 threads of 16 blocks", "of which a thread holds 32 in registers"),
    "40000x3076 --dim 0": ("strided_split", "8 x 32 threads of 66 blocks", "in 77696 bytes of shared memory: read"),
    "4096x4096 --dim 0 --dtype float64": ("strided_split", "8 x 32 threads of 3 blocks", "1 on a multiprocessor"),
    "4096x4096 --dim 0 --dtype bfloat16": ("strided_split", "8 x 32 threads of 8 blocks", "1024 blocks of 256 threads"),
    "1048576x7 --dim 0": ("strided_split", "kept nowhere, 2 reads", "264 blocks share a run of 1048576 steps"),
    "4096x65536": ("cluster", "16 blocks of 128 per row", "65536 blocks of 128 threads, 62.1 waves"),
    "4096x50257": ("cluster", "8 blocks of 128 per row", "head and tail peeled, in 26624 bytes of shared memory"),
    "64x50257": ("cluster", "16 blocks of 128 per row", "head and tail peeled, in registers"),
    "32768x65536 --dtype bfloat16": (
        "cluster",
        "8 blocks of 128 per row",
        "16384 bytes of shared memory each, 1 part: read",
    ),
    "8192x50257 --op logsumexp --dtype bfloat16": ("online", "a block of 128 per row", "a running maximum and sum"),
    "512x128256 --op logsumexp --dtype bfloat16": ("online", "a block of 256 per row", "read once"),
    "32768x4096 --op logsumexp --dtype bfloat16": ("block", "a block of 128 per row", "in registers"),
    "8x21x512x512 --dim 1": ("strided", "128 x 1 threads", "holds 21 of the 21 steps in registers: read once"),
    "2000x2000 --dim 0": ("strided_split", "16 x 16 threads of 8 blocks", "504 blocks of 256 threads"),
    "200x2000 --dim 0": ("strided", "4 x 32 threads", "holds 7 of the 200 steps in registers: read once"),
    "49152x12000 --dtype float16": (
        "cluster",
        "2 blocks of 128 per row, 6 x packs of 8",
        "hold 6 packs each: read once",
    ),
    "32768x4096 --op log_softmax --dtype bfloat16": ("block", "a block of 128 per row", "packs of 8"),
    "32768x4096 --op sum --dtype bfloat16": ("warp", "32 lanes per row", "32768 rows are enough for 32 lanes each"),
    "4x1048576 --op sum": ("split", "read once", "4 rows of 1048576 for 132 multiprocessors"),
    "4096x4096 --op sum --dtype bfloat16": ("block", "read once", "shared out among 128 threads"),
}


@pytest.mark.parametrize("arguments", EXPLAINED)
def test_explain_for_a_gpu_that_is_elsewhere(arguments):
    text = invoke("explain", "--device", "h200", "--shape", *arguments.split())
    assert f"plan       {EXPLAINED[arguments][0]}: " in text
    for words in (
        *EXPLAINED[arguments],
        "H200, sm_90a",
        "  why ",
        " on a multiprocessor at most",
        "at the speed of a copy",
    ):
        assert words in text


@pytest.mark.parametrize("device", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_columns_of_any_length_have_a_plan_everywhere(device, dtype):
    for length in (1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 23):
        for columns in (2, 7, 48, 700, 5000):
            report = onepass.explain("softmax", (length, columns), dtype, dim=0, device=device)
            assert "strided" in report.plan.algorithm


def test_explain_reads_the_gpu_that_is_here(stub):
    launch.read_device.cache_clear()
    text = invoke("explain", "--device", "cuda:1", "--shape", "128x2048")
    launch.read_device.cache_clear()
    assert "H200, sm_90a" in text
    for device in ("cuda:x", "tpu"):
        result = CliRunner().invoke(cli.app, ["explain", "--shape", "2x3", "--device", device])
        assert result.exit_code == 2
        assert device in result.output


@pytest.mark.parametrize("command", [["explain", "--shape", "2x3"], ["bench", "--quick"]], ids=" ".join)
def test_without_a_driver(command):
    code = f"""
from typer.testing import CliRunner
from onepass import cli
result = CliRunner().invoke(cli.app, [*{command}, "--device", "cuda"])
print(result.exit_code, "onepass: error: no NVIDIA driver" in result.output)
"""
    assert run_python(code, env={"ONEPASS_LIBCUDA": "/nowhere/libcuda.so"}) == "1 True\n"
