"""The command line: what it prints, its exit codes, pipes, signals, full disks and bounded memory."""

import contextlib
import io
import os
import platform
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner
from ulp import max_ulp

import onepass
from onepass import cli, reference
from onepass.files import OPS
from onepass.problem import GRADIENTS

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sends POSIX signals")

# Runs the command in a fresh process: signals as in a terminal, whatever the test runner was started under; at the end
# the peak resident memory of this process (not that of the one that started it) on the last line of standard error.
RUNNER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from onepass import cli
try:
    exec(os.environ.get("ONEPASS_TEST_SETUP", ""))
    cli.main()
finally:
    if "ONEPASS_TEST_PEAK" in os.environ:
        with open("/proc/self/status") as status:
            print(next(line.split()[1] for line in status if line.startswith("VmHWM")), file=sys.stderr)
"""


def onepass_command(*arguments, **options):
    environment = os.environ | options.pop("env", {})
    command = [sys.executable, "-c", RUNNER, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def finished(process, data=None):
    out, err = process.communicate(data, timeout=300)
    return process.returncode, out, err.decode()


def invoke(*arguments, stdin=None):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], input=stdin)


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


def npy_bytes(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.fixture
def x():
    return (np.random.default_rng(0).standard_normal((40, 300)) * 3).astype(np.float32)


@pytest.fixture
def source(tmp_path, x):
    path = tmp_path / "in.npy"
    np.save(path, x)
    return path


def is_softmax(result, x, dim=-1):
    assert result.dtype == x.dtype
    return max_ulp(result, reference.softmax(x, dim, dtype=np.longdouble)) <= 12


def test_version():
    result = invoke("--version")
    assert (result.exit_code, result.output) == (0, f"onepass {onepass.__version__}\n")


def test_help_names_the_commands():
    result = invoke("--help")
    assert result.exit_code == 0
    assert all(word in result.output for word in ("run", "explain", "doctor", "bench"))


def test_run(tmp_path, source, x):
    result = invoke("run", source, "-o", tmp_path / "out.npy")
    assert result.exit_code == 0, result.output
    assert is_softmax(np.load(tmp_path / "out.npy"), x)
    assert result.stdout == ""
    assert "softmax of 1 array, 48,000 bytes" in result.stderr


def test_run_with_every_option(tmp_path, source, x):
    out = tmp_path / "out.npz"
    what = ["--op", "logsumexp", "--dim", "0", "--dtype", "float64", "--keepdim", "--name", "arr_0"]
    result = invoke("run", source, "-o", out, *what, "--max-memory", "1MiB", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    np.testing.assert_allclose(np.load(out)["arr_0"], reference.logsumexp(x, 0, True), rtol=1e-6)


def test_run_over_all_dims(tmp_path, source, x):
    assert invoke("run", source, "-o", tmp_path / "out.npy", "--op", "amax", "--dim", "all").exit_code == 0
    assert np.load(tmp_path / "out.npy").item() == x.max()


def test_run_keeps_the_permissions_the_user_asks_for(tmp_path, source):
    before = os.umask(0o027)
    try:
        invoke("run", source, "-o", tmp_path / "out.npy")
    finally:
        os.umask(before)
    assert (tmp_path / "out.npy").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{in}"], "Missing option"),
        (["{in}", "-o", "{dir}/out.npy", "--op", "softmin"], "softmin"),
        (["{in}", "-o", "{dir}/out.npy", "--dtype", "int8"], "int8"),
        (["{in}", "-o", "{dir}/out.npy", "--frobnicate"], "frobnicate"),
        (["{in}", "-o", "{dir}/out.npy", "--dim", "2"], "dim 2 is out of range for array 'arr_0'"),
        (["{in}", "-o", "{dir}/out.npy", "--dim", "last"], "expected an int"),
        (["{in}", "-o", "{dir}/out.npy", "--max-memory", "lots"], "expected a size"),
        (["{in}", "-o", "{dir}/out.npy", "--max-memory", "10"], "at least 1MiB"),
        (["{in}", "-o", "{dir}/out.npy", "--max-memory", "9" * 400], "less than 8EiB"),
        (["{in}", "-o", "{dir}/out.npy", "--name", "b"], "no array named 'b'"),
        (["{in}", "-o", "{dir}/out.npy", "--dtype", "bfloat16"], "write a .safetensors file"),
        (["{in}", "-o", "{dir}/out.csv"], "expected a name ending in"),
        (["{in}", "-o", "{in}"], "are the same file"),
        (["{in}", "-o", "{dir}/none/out.npy"], "is not a directory"),
        (["{dir}/none.npy", "-o", "{dir}/out.npy"], "does not exist"),
        (["{dir}/sub.npy", "-o", "{dir}/out.npy"], "is a directory"),
        (["{in}", "-o", "{dir}/sub.npy"], "is not a file"),
    ],
)
def test_wrong_usage_is_2(tmp_path, source, arguments, message):
    (tmp_path / "sub.npy").mkdir()
    result = invoke("run", *(a.format_map({"in": source, "dir": tmp_path}) for a in arguments))
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")
    assert names(tmp_path) == ["in.npy", "sub.npy"]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"not an array", npy_bytes(np.ones(99))[:-1]])
def test_bad_input_is_1_and_one_line(tmp_path, content):
    (tmp_path / "in.npy").write_bytes(content)
    result = invoke("run", tmp_path / "in.npy", "-o", tmp_path / "out.npy")
    assert result.exit_code == 1
    assert result.stderr.startswith("onepass: error: ")
    assert result.stderr.count("\n") == 1
    assert names(tmp_path) == ["in.npy"]


def test_pipes(x):
    code, out, err = finished(onepass_command("run", "-", "-o", "-", "-q", stdin=subprocess.PIPE), npy_bytes(x))
    assert (code, err) == (0, "")
    assert is_softmax(np.load(io.BytesIO(out)), x)


def test_a_pipe_into_a_file_and_a_file_into_a_pipe(tmp_path, source, x):
    process = onepass_command("run", "-", "-o", tmp_path / "out.npy", stdin=subprocess.PIPE)
    code, _, err = finished(process, npy_bytes(x))
    assert code == 0, err
    with source.open("rb") as stdin:  # a redirected file is not a pipe: it can be read along any dim
        code, out, err = finished(onepass_command("run", "-", "-o", "-", "--dim", "0", stdin=stdin))
    assert code == 0, err
    assert is_softmax(np.load(tmp_path / "out.npy"), x)
    assert is_softmax(np.load(io.BytesIO(out)), x, 0)


def test_pipe_in_process(x):
    result = invoke("run", "-", "-o", "-", "-q", stdin=npy_bytes(x))
    assert result.exit_code == 0
    assert is_softmax(np.load(io.BytesIO(result.stdout_bytes)), x)


@linux_only
def test_a_reader_that_goes_away(x):
    process = onepass_command("run", "-", "-o", "-", stdin=subprocess.PIPE)
    process.stdout.close()
    process.stdout = None
    code, _, err = finished(process, npy_bytes(np.ones((1000, 1000))))
    assert (code, err) == (1, "onepass: error: the reader of standard output went away\n")


def half_way(tmp_path, x):
    """A running command that was given half of its input and has opened its output."""
    process = onepass_command("run", "-", "-o", tmp_path / "out.npy", stdin=subprocess.PIPE)
    data = npy_bytes(x)
    process.stdin.write(data[: len(data) // 2])
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while not [name for name in names(tmp_path) if name.endswith(".tmp")]:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    assert "out.npy" not in names(tmp_path) or (tmp_path / "out.npy").read_bytes() == b"before"
    return process


@linux_only
@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM"), (signal.SIGHUP, "stopped by SIGHUP")],
)
def test_a_signal_half_way_leaves_everything_as_it_was(tmp_path, x, number, message):
    (tmp_path / "out.npy").write_bytes(b"before")
    process = half_way(tmp_path, x)
    process.send_signal(number)
    code, out, err = finished(process)
    assert (code, out, err) == (1, b"", f"onepass: error: {message}\n")
    assert names(tmp_path) == ["out.npy"]
    assert (tmp_path / "out.npy").read_bytes() == b"before"


@linux_only
def test_killed_half_way_there_is_no_output(tmp_path, x):
    process = half_way(tmp_path, x)
    process.kill()
    finished(process)
    assert [name for name in names(tmp_path) if not name.endswith(".tmp")] == []


def test_input_that_ends_half_way(tmp_path, x):
    process = half_way(tmp_path, x)
    code, _, err = finished(process)
    assert code == 1
    assert err.startswith("onepass: error: standard input ends after")
    assert names(tmp_path) == []


LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "


@linux_only
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize(
    ("setup", "message"),
    [
        pytest.param(LIMIT, "File too large: it needs 48,", id="seen when the space is reserved"),
        pytest.param(LIMIT + "del os.posix_fallocate", "File too large", id="seen when the data is written"),
    ],
)
def test_no_room_for_the_output(tmp_path, source, suffix, setup, message):
    process = onepass_command("run", source, "-o", tmp_path / f"out{suffix}", env={"ONEPASS_TEST_SETUP": setup})
    code, _, err = finished(process)
    assert code == 1
    assert message in err
    assert err.count("\n") == 1
    assert names(tmp_path) == ["in.npy"]


@linux_only
def test_a_progress_bar_on_a_terminal(tmp_path, source):
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "onepass.cli", "run", str(source), "-o", str(tmp_path / "out.npy")]
    process = subprocess.Popen(command, stderr=child, env=os.environ | {"TERM": "xterm"})
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while piece := os.read(parent, 65536):
            shown += piece
    os.close(parent)
    assert process.wait() == 0
    assert b"softmax" in shown


def peak(tmp_path, source, *options):
    process = onepass_command("run", source, "-o", tmp_path / "out.npy", *options, env={"ONEPASS_TEST_PEAK": "1"})
    code, _, err = finished(process)
    assert code == 0, err
    return int(err.splitlines()[-1]) << 10


@linux_only
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dim", "op"),
    [
        pytest.param((16384, 4096), "-1", "softmax", id="rows"),
        pytest.param((1024, 65536), "0", "softmax", id="columns"),
        pytest.param((65536, 1024), "0", "softmax", id="streamed columns"),
        pytest.param((1, 1 << 26), "-1", "softmax", id="one row larger than the limit"),
        pytest.param((1, 1 << 26), "-1", "logsumexp", id="one row to one number"),
    ],
)
def test_peak_memory(tmp_path, shape, dim, op):
    """256 MiB through 32 MiB: the peak stays within that of a tiny file plus the limit."""
    np.save(tmp_path / "tiny.npy", np.ones((4, 4), np.float32))
    source = tmp_path / "in.npy"
    block = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    mapped = np.lib.format.open_memmap(source, "w+", np.float32, shape)
    flat = mapped.reshape(-1)
    for start in range(0, flat.size, block.size):
        flat[start : start + block.size] = np.roll(block, start >> 20)
    options = ("--dim", dim, "--op", op, "--max-memory", "32MiB")
    baseline = peak(tmp_path, tmp_path / "tiny.npy", *options)
    used = peak(tmp_path, source, *options) - baseline
    assert used < 40 << 20  # the limit, and room for what the allocator and the threads keep
    result = np.load(tmp_path / "out.npy", mmap_mode="r")
    some = (slice(0, 4), slice(None)) if dim == "-1" else (slice(None), slice(0, 4))
    e = np.exp(mapped[some], dtype=np.float64)  # far from overflow: the values are of order 1
    if op == "softmax":
        assert result.shape == shape
        np.testing.assert_allclose(result[some], e / e.sum(int(dim), keepdims=True), rtol=3e-6)
    else:
        np.testing.assert_allclose(result, np.log(e.sum(-1)), rtol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "h200"])
@pytest.mark.parametrize("op", (*OPS, *GRADIENTS))
def test_explain(op, device):
    options = ("--op", op, "--shape", "128x262144", "--dtype", "float32", "--dim", "1", "--device", device)
    result = invoke("explain", *options)
    assert result.exit_code == 0, result.output
    report = onepass.explain(op, (128, 262144), dtype=np.dtype(np.float32), dim=1, device=device)
    assert report.problem.op == op
    assert result.output.strip() == str(report).strip()


@pytest.mark.parametrize(
    "options", [["--shape", "12by4"], ["--shape", "8x8", "--dim", "5"], ["--shape", "8x8", "--op", "argmax"], []]
)
def test_explain_wrong_usage(options):
    assert invoke("explain", *options).exit_code == 2


def test_doctor():
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    found = (onepass.__version__, platform.python_version(), onepass._engine.isa(), np.__version__)
    assert all(word in result.output for word in (*found, "L2", "threads", "torch", "GPU"))


def test_doctor_does_not_import_torch():
    script = "import sys; from onepass.doctor import report; report(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(
    ("name", "value"), [("ONEPASS_ISA", "bogus"), ("ONEPASS_NUM_THREADS", "0"), ("ONEPASS_CACHE_BYTES", "1GiB")]
)
def test_a_wrong_environment_is_one_line(name, value):
    script = "from onepass_command import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"], env=os.environ | {name: value}, capture_output=True, text=True
    )
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(f"onepass: error: {name}") and value in done.stderr and done.stderr.count("\n") == 1


@linux_only
@pytest.mark.parametrize("arguments", ["--version", "doctor", "bench --list", "cache info", "explain --shape 8x8"])
def test_output_that_cannot_be_written_is_one_line(arguments):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", RUNNER, *arguments.split()], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "onepass: error: No space left on device\n"


def test_bench_list():
    result = invoke("bench", "--list")
    assert result.exit_code == 0, result.output
    assert "softmax-4096x1024" in result.output


def test_bench_passes_its_options_on(tmp_path, monkeypatch):
    import onepass.bench

    seen = []
    monkeypatch.setattr(onepass.bench, "run_benchmark", lambda *a: seen.append(a) or 3)
    options = ["--cells", "softmax-*, sum-*", "--against", "torch,numpy", "--json", tmp_path / "f", "--sample", "9"]
    result = invoke("bench", "--quick", *options)
    assert result.exit_code == 3
    assert seen == [(True, ["softmax-*", "sum-*"], ["torch", "numpy"], tmp_path / "f", None, None, None, "cpu", 9, 0)]
