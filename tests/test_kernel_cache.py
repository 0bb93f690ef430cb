"""The folder of compiled kernels: damage, other people, full disks, many processes. And what is put into it."""

import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from helpers import TESTS

from onepass import cache_folder
from onepass.cuda import CompileError, cache, compile
from onepass.cuda import compile_all as compile_all_module
from onepass.cuda.cache import KernelCache
from onepass.cuda.compile import compile_kernel
from onepass.cuda.compile_all import compile_all
from onepass.cuda.device import by_name
from onepass.cuda.plan import make_cuda_plan
from onepass.problem import make_problem

EMPTY = "__global__ void empty() {}"
HEADER = "onepass/ops.h"

as_root = os.geteuid() == 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, and a process that has compiled nothing."""
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "kernels"))
    forget()
    yield tmp_path / "kernels"
    forget()


def forget():
    compile.cache.cache_clear()
    compile._kept.clear()


def entries(folder):
    return sorted(folder.glob("*.kernel"))


# ---- the cache itself ----


def test_what_was_put_is_found_by_another_process(tmp_path):
    KernelCache(tmp_path / "a" / "b").put("key", b"contents")
    assert KernelCache(tmp_path / "a" / "b").get("key") == b"contents"
    assert KernelCache(tmp_path / "a" / "b").get("another key") is None


def test_only_the_user_may_read_or_write(tmp_path):
    KernelCache(tmp_path / "c").put("key", b"contents")
    (entry,) = entries(tmp_path / "c")
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


@pytest.mark.parametrize("cut", [0, 7, 47, 48, 100, -1])
def test_a_truncated_entry_is_missing(tmp_path, cut):
    KernelCache(tmp_path / "c").put("key", b"contents" * 100)
    (entry,) = entries(tmp_path / "c")
    entry.write_bytes(entry.read_bytes()[:cut])
    assert KernelCache(tmp_path / "c").get("key") is None


@pytest.mark.parametrize("byte", [0, 8, 40, 48, 200])
def test_a_damaged_entry_is_missing(tmp_path, byte):
    KernelCache(tmp_path / "c").put("key", b"contents" * 100)
    (entry,) = entries(tmp_path / "c")
    whole = bytearray(entry.read_bytes())
    whole[byte] ^= 1
    entry.write_bytes(whole)
    assert KernelCache(tmp_path / "c").get("key") is None


def test_an_entry_under_the_name_of_another_key_is_missing(tmp_path):
    c = KernelCache(tmp_path / "c")
    c.put("key", b"contents")
    c.put("other", b"other contents")
    one, two = (c._path(key) for key in ("key", "other"))
    two.write_bytes(one.read_bytes())
    assert c.get("other") is None
    assert c.get("key") == b"contents"


def test_the_least_recently_used_go_first(tmp_path):
    c = KernelCache(tmp_path / "c", most_bytes=5000)
    for i in range(4):
        c.put(f"key {i}", bytes(1000))
        os.utime(c._path(f"key {i}"), (time.time() - 1e6 + i,) * 2)
    assert c.get("key 0") is not None  # used just now
    c.put("key 4", bytes(1000))
    found = [i for i in range(5) if c.get(f"key {i}") is not None]
    assert found == [0, 3, 4]  # three quarters of the bound are left
    assert c.info().bytes <= 5000


def test_what_was_never_finished_is_removed_after_an_hour(tmp_path):
    c = KernelCache(tmp_path / "c")
    c.put("key", b"contents")
    fresh, old = tmp_path / "c" / "writing-fresh", tmp_path / "c" / "writing-old"
    for path in (fresh, old):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 4000,) * 2)
    c.put("another", b"contents")
    assert fresh.exists()
    assert not old.exists()


def test_clear_removes_entries_and_nothing_else(tmp_path):
    c = KernelCache(tmp_path / "c")
    for key in "ab":
        c.put(key, b"contents")
    (tmp_path / "c" / "notes.txt").write_text("the user's")
    assert (c.info().entries, c.clear(), c.info().entries) == (2, 2, 0)
    assert (tmp_path / "c" / "notes.txt").exists()
    assert KernelCache(tmp_path / "nowhere").clear() == 0


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path):
    KernelCache(tmp_path / "c").put("key", b"contents")
    (tmp_path / "c").chmod(0o777)
    c = KernelCache(tmp_path / "c")
    with pytest.warns(RuntimeWarning, match="others may write there.*chmod 700") as warnings:
        assert c.get("key") is None
        c.put("other", b"contents")
        assert c.get("other") is None
    assert len(warnings) == 1
    assert len(entries(tmp_path / "c")) == 1


@pytest.mark.skipif(not as_root, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_trusted(tmp_path):
    KernelCache(tmp_path / "c").put("key", b"contents")
    os.chown(tmp_path / "c", 12345, 12345)
    with pytest.warns(RuntimeWarning, match="others may write there"):
        assert KernelCache(tmp_path / "c").get("key") is None


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")])
def test_a_disk_that_takes_nothing_is_one_warning(tmp_path, monkeypatch, error):
    c = KernelCache(tmp_path / "c")

    def full(*args, **keywords):
        raise error

    monkeypatch.setattr(cache.os, "replace", full)
    with pytest.warns(RuntimeWarning, match=f"{error.strerror}.*Every process compiles its own") as warnings:
        c.put("a", b"contents")
        c.put("b", b"contents")
    assert len(warnings) == 1
    assert list((tmp_path / "c").iterdir()) == []  # nothing half written stays


def test_a_file_in_the_place_of_the_folder_is_one_warning(tmp_path):
    (tmp_path / "c").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="cannot write there"):
        KernelCache(tmp_path / "c").put("a", b"contents")


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ONEPASS_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder.default_folder() == tmp_path / ".cache" / "onepass"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert cache_folder.default_folder() == tmp_path / ".cache" / "onepass"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert str(cache_folder.default_folder()) == "/xdg/onepass"
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "here"))
    assert cache_folder.default_folder() == tmp_path / "here"


# ---- what compiles ----


def test_a_kernel_is_compiled_once(folder, monkeypatch):
    first = compile_kernel(HEADER, "empty", "90a", source=EMPTY)
    assert first.code[:4] == b"\x7fELF"
    assert first.symbol == "_Z5emptyv"
    monkeypatch.setattr(compile, "_compile", None)
    assert compile_kernel(HEADER, "empty", "90a", source=EMPTY) is first
    forget()
    assert compile_kernel(HEADER, "empty", "90a", source=EMPTY) == first


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty"])
def test_a_damaged_kernel_is_compiled_again(folder, damage):
    first = compile_kernel(HEADER, "empty", "90a", source=EMPTY)
    (entry,) = entries(folder)
    whole = entry.read_bytes()
    entry.write_bytes({"truncated": whole[:-100], "foreign": b"\x7fELF" + whole, "empty": b""}[damage])
    forget()
    assert compile_kernel(HEADER, "empty", "90a", source=EMPTY) == first
    assert entry.read_bytes() == whole


def test_everything_that_shapes_a_kernel_is_in_its_key(folder, monkeypatch):
    def compiled():
        return len(entries(folder))

    compile_kernel(HEADER, "empty", "90a", source=EMPTY)
    compile_kernel(HEADER, "empty", "80", source=EMPTY)  # the architecture
    compile_kernel(HEADER, "empty", "90a", {"max_register_count": 64}, source=EMPTY)  # options
    compile_kernel(HEADER, "empty", "90a", source=EMPTY + " ")  # a user's text
    compile_kernel("onepass/row_state.h", "empty", "90a", source=EMPTY)  # the header
    compile_kernel(HEADER, "other", "90a", source="__global__ void other() {}")  # the kernel
    assert compiled() == 6
    for change in ("_headers_digest", "_compiler"):  # an edited header, another NVRTC
        forget()
        monkeypatch.setattr(compile, change, lambda: "another")
        compile_kernel(HEADER, "empty", "90a", source=EMPTY)
    assert compiled() == 8


def test_the_digest_of_the_headers_sees_every_edit(tmp_path, monkeypatch):
    (tmp_path / "onepass").mkdir()
    header = tmp_path / "onepass" / "a.h"
    monkeypatch.setattr(compile, "INCLUDE", tmp_path)
    seen = set()
    for text in ("int a;", "int b;", ""):
        header.write_text(text)
        compile._headers_digest.cache_clear()
        seen.add(compile._headers_digest())
    header.rename(tmp_path / "onepass" / "b.h")
    compile._headers_digest.cache_clear()
    seen.add(compile._headers_digest())
    compile._headers_digest.cache_clear()
    assert len(seen) == 4


def test_without_a_folder_a_process_compiles_once(folder, monkeypatch):
    monkeypatch.setattr(compile, "default_folder", lambda: None)
    first = compile_kernel(HEADER, "empty", "90a", source=EMPTY)
    monkeypatch.setattr(compile, "_compile", None)
    assert compile_kernel(HEADER, "empty", "90a", source=EMPTY) is first


def test_a_read_only_folder_costs_one_warning(folder, monkeypatch):
    monkeypatch.setattr(cache.tempfile, "mkstemp", _read_only)
    with pytest.warns(RuntimeWarning, match="Read-only file system") as warnings:
        for name in ("a", "b"):
            compile_kernel(HEADER, name, "90a", source=f"__global__ void {name}() {{}}")
    assert len(warnings) == 1


def _read_only(**_):
    raise OSError(30, "Read-only file system")


def test_an_error_has_the_log_of_the_compiler(folder):
    with pytest.raises(CompileError, match=r'(?s)cannot compile broken for sm_90a.*identifier "x" is undefined'):
        compile_kernel(HEADER, "broken", "90a", source="__global__ void broken() { x; }")
    assert not folder.exists()


def test_a_gpu_newer_than_the_compiler(folder):
    with pytest.raises(
        CompileError, match="sm_999; nvidia-cuda-nvrtc .* does not know this GPU: pip install --upgrade"
    ):
        compile_kernel(HEADER, "empty", "999", source=EMPTY)


@pytest.mark.parametrize("missing", ["cuda.core", "nvrtc"])
def test_without_the_compiler_the_extra_is_named(folder, monkeypatch, missing):
    if missing == "cuda.core":
        monkeypatch.setitem(sys.modules, "cuda.core", None)
    else:
        monkeypatch.setattr(compile, "_NVRTC_PACKAGES", ())
        monkeypatch.setitem(sys.modules, "cuda.bindings", None)
        compile._compiler.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"pip install 'onepass\[cuda\]'"):
            compile_kernel(HEADER, "empty", "90a", source=EMPTY)
    finally:
        compile._compiler.cache_clear()


def test_the_compiler_says_its_version_where_no_package_does(monkeypatch):
    monkeypatch.setattr(compile, "_NVRTC_PACKAGES", ())
    compile._compiler.cache_clear()
    try:
        assert compile._compiler().startswith("NVRTC 1")
    finally:
        compile._compiler.cache_clear()


def test_a_long_compilation_says_what_it_is(folder, monkeypatch, capsys):
    monkeypatch.setattr(compile, "_PATIENCE_SECONDS", 0.0)
    compile_kernel(HEADER, "empty", "90a", source=EMPTY)
    line, done = capsys.readouterr().err.splitlines()
    assert line == "onepass: compiling empty for sm_90a (the first call; later ones find it) ..."
    assert done.startswith("onepass: compiled in ")


def test_a_short_one_says_nothing(folder, monkeypatch, capsys):
    monkeypatch.setattr(compile, "_PATIENCE_SECONDS", 60.0)
    compile_kernel(HEADER, "empty", "90a", source=EMPTY)
    assert capsys.readouterr().err == ""


def test_a_warm_cache_needs_no_compiler(folder):
    program = f"""
import sys
from onepass.cuda.compile import compile_kernel
cubin = compile_kernel({HEADER!r}, "empty", "90a", source={EMPTY!r})
print(len(cubin.code), "cuda" in sys.modules)
"""
    outputs = [_python(program) for _ in range(2)]
    assert [line.split()[1] for line in outputs] == ["True", "False"]
    assert outputs[0].split()[0] == outputs[1].split()[0]


def _python(program):
    return subprocess.run(
        [sys.executable, "-c", program], cwd=TESTS, capture_output=True, text=True, timeout=120, check=True
    ).stdout


def test_sixteen_processes_at_once_on_an_empty_cache(folder, tmp_path):
    """Ranks of one job: they start together, need the same kernels, and none waits for another."""
    program = f"""
import hashlib, pathlib, time
from onepass.cuda.compile import compile_kernel, _compiler_types
_compiler_types()
pathlib.Path({str(tmp_path)!r}, "ready").open("a").write("x")
while pathlib.Path({str(tmp_path)!r}, "ready").stat().st_size < 16:
    time.sleep(0.005)
for name in ("a", "b", "c"):
    cubin = compile_kernel({HEADER!r}, name, "90a", source=f"__global__ void {{name}}() {{{{}}}}")
    print(name, cubin.symbol, hashlib.sha256(cubin.code).hexdigest())
"""
    ranks = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(16)
    ]
    outputs = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 16, outputs
    assert len({out for out, _ in outputs}) == 1
    assert all("Warning" not in err for _, err in outputs)
    assert len(entries(folder)) == 3
    assert list(folder.glob("writing-*")) == []
    assert _python(program.replace("< 16", "< 0")) == outputs[0][0]


def test_many_kernels_are_compiled_at_once_and_one_that_cannot_be_stops_no_other(folder):
    problem = make_problem("softmax", "float32", (64, 4096), (1,))
    block, block_smem = (
        make_cuda_plan(problem, by_name("h200"), name, addresses=(0, 0)) for name in ("block", "block_smem")
    )
    compile_all([block, block], "90a")
    assert len(entries(folder)) == 1
    with pytest.raises(CompileError, match="no such kernel"):
        compile_all([replace(block, kernel="no such kernel"), block_smem, block], "90a")
    assert len(entries(folder)) == 2


def test_who_compiles_many_kernels_waits_for_another_that_does(folder, monkeypatch):
    begun = threading.Event()
    begin = compile_all_module.ProcessPoolExecutor
    monkeypatch.setattr(
        compile_all_module, "ProcessPoolExecutor", lambda *args, **more: begun.set() or begin(*args, **more)
    )
    problem = make_problem("softmax", "float32", (64, 4096), (1,))
    plan = make_cuda_plan(problem, by_name("h200"), "block", addresses=(0, 0))
    folder.mkdir(mode=0o700, exist_ok=True)
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    thread = threading.Thread(target=compile_all, args=([plan], "90a"))
    thread.start()
    try:
        assert not begun.wait(0.3)
    finally:
        os.close(other)
        thread.join()
    assert begun.is_set() and len(entries(folder)) == 1
