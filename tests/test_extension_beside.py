"""The extension that is built beside a program: when, once, and what is left where it cannot be.

The compiler is a script that hands out what this run has compiled already, and keeps a list of its calls.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch_cases import assert_like
from typer.testing import CliRunner

import onepass
from onepass.cli import app
from onepass.torch import beside, extension, tensors

LOW = min(os.nice(0) + 10, 19)
UNTIL_LOW = f"until [ $(nice) = {LOW} ]; do sleep 0.01; done"

KIND = """
import sys, time, onepass, torch
x = torch.zeros(2, requires_grad=True)

def kind():
    return type(onepass.softmax(x).grad_fn).__name__

def is_built(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if kind() == "CppFunction":
            return True
        time.sleep(0.01)
    return False
"""


@pytest.fixture
def compiler(compiler, tmp_path, monkeypatch):
    """The compiler of this test, and an empty folder for what it makes."""
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ONEPASS_BUILD_EXTENSION", "1")
    return compiler


def start(program):
    command = [sys.executable, "-W", "error", "-c", KIND + program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def outcome(process):
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said.strip()


def files(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_program_that_records_many_calls_gets_it(compiler, tmp_path):
    compiler.does(UNTIL_LOW)
    enough = f"for _ in range({beside.MANY}): assert kind() == 'SoftmaxBackward'\nprint(is_built(60))"
    assert outcome(start(enough)) == "True"
    assert len(compiler.lines) == 1
    (name,) = files(tmp_path / "cache")
    assert name.endswith(".so")
    assert outcome(start("print(kind())")) == "CppFunction"


def test_one_that_records_fewer_does_not(compiler, tmp_path):
    few = f"for _ in range({beside.MANY} - 100): kind()\nprint(is_built(0.5))"
    assert outcome(start(few)) == "False"
    assert compiler.lines == files(tmp_path / "cache") == []


@pytest.mark.parametrize("no", ["0", "False"])
def test_it_is_left_to_those_who_want_to_build_it_themselves(compiler, tmp_path, monkeypatch, no):
    monkeypatch.setenv("ONEPASS_BUILD_EXTENSION", no)
    assert outcome(start(f"for _ in range({beside.MANY}): kind()\nprint(is_built(0.5))")) == "False"
    assert compiler.lines == files(tmp_path / "cache") == []


def test_of_many_processes_one_builds_it_and_all_use_it(compiler):
    compiler.does("sleep 2")
    programs = [start(f"for _ in range({beside.MANY}): kind()\nprint(is_built(60))") for _ in range(3)]
    assert [outcome(program) for program in programs] == ["True"] * 3
    assert len(compiler.lines) == 1


def test_what_fails_is_not_tried_again_but_by_hand(compiler, tmp_path):
    compiler.does("echo 'extension.cpp:1:10: fatal error: Python.h: No such file' >&2; exit 1")
    many = f"for _ in range({beside.MANY}): kind()\n"
    kept = "import glob, os\nfailures = os.environ['ONEPASS_CACHE_DIR'] + '/*-failure'\n"
    kept += "while not any(map(os.path.getsize, glob.glob(failures))): kind()\n"
    assert outcome(start(f"{many}{kept}print(is_built(0))")) == "False"
    assert outcome(start(f"{many}print(is_built(0.5))")) == "False"
    assert len(compiler.lines) == 1
    (name,) = files(tmp_path / "cache")
    assert name.endswith("-failure")
    assert not beside.is_wanted()

    def doctor():
        return " ".join(CliRunner().invoke(app, ["doctor"]).output.split())

    assert "fatal error: Python.h: No such file: install Python's headers (python3-dev)" in doctor()
    compiler.does("")
    assert CliRunner().invoke(app, ["build-torch-extension"]).exit_code == 0
    (name,) = files(tmp_path / "cache")
    assert name.endswith(".so")
    assert "Python.h" not in doctor()


def test_a_program_that_ends_leaves_no_compiler_and_no_file_behind(compiler, tmp_path):
    compiler.does(f"{UNTIL_LOW}\ntouch {tmp_path / 'low'}\nsleep 600 & wait")
    wait = f"import os\nwhile not os.path.exists({str(tmp_path / 'low')!r}): time.sleep(0.01)"
    assert outcome(start(f"for _ in range({beside.MANY}): kind()\n{wait}")) == ""
    assert files(tmp_path / "cache") == []
    assert_gone(int(compiler.lines[0]))


def test_a_program_may_end_before_its_compiler_has_begun(compiler, tmp_path):
    """In the middle of what comes before it, in whatever is the moment."""
    compiler.does("sleep 600 & wait")
    for wait in ("", "import glob\nwhile not glob.glob(os.environ['ONEPASS_CACHE_DIR'] + '/writing-*'): pass"):
        assert outcome(start(f"import os\nfor _ in range({beside.MANY}): kind()\n{wait}")) == ""
        assert files(tmp_path / "cache") == []
        for line in compiler.lines:
            assert_gone(int(line))


def assert_gone(group):
    """No process of a group is at work; those that were killed may be somebody's to reap, or nobody's."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        states = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, its_group = entry.read_text().rpartition(")")[2].split()[:3]
                states += [state] if int(its_group) == group else []
        if all(state == "Z" for state in states):
            return
        time.sleep(0.05)
    raise AssertionError(f"processes of group {group} are in states {states}")


def test_a_compiler_that_was_killed_has_not_failed(compiler, tmp_path):
    compiler.does("kill -9 $$")
    program = f"for _ in range({beside.MANY}): kind()\n"
    wait = f"import os\nwhile not os.path.getsize({str(compiler.calls)!r}): time.sleep(0.01)\nprint(is_built(1))"
    assert outcome(start(program + wait)) == "False"
    assert files(tmp_path / "cache") == []
    assert beside.is_wanted()


def test_failures_are_those_of_one_torch_and_in_any_language(compiler, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    key = extension._key()
    (tmp_path / "cache" / f"torch-extension-2.9.0-01234567{key}failure").write_text("it needs torch 2.10 or later")
    here = tmp_path / "cache" / f"torch-extension-{extension._version(torch)}{key}failure"
    here.touch()  # somebody is at it
    assert beside.is_wanted()
    here.write_bytes("Fehler: \u201e".encode() + b"\xff")
    assert not beside.is_wanted()
    doctor = " ".join(CliRunner().invoke(app, ["doctor"]).output.split())
    assert "Fehler" in doctor and "needs torch 2.10" not in doctor
    compiler.does("printf 'extension.cpp: error: \\377 \\342\\200\\236' >&2; exit 1")
    here.unlink()
    extension.build_once()
    assert "error: \ufffd \u201e" in extension.failure_here()


def test_a_program_that_may_start_no_thread_goes_on_and_ends(compiler, tmp_path):
    no_threads = "import threading\ndef start(self): raise RuntimeError('no more')\nthreading.Thread.start = start\n"
    program = f"{no_threads}for _ in range({beside.MANY} + 10): kind()\nprint(kind())"
    assert outcome(start(program)) == "SoftmaxBackward"
    assert compiler.lines == files(tmp_path / "cache") == []


def test_a_folder_that_goes_away_is_no_failure(compiler, tmp_path, monkeypatch):
    def removed(run):
        raise FileNotFoundError("the folder")

    monkeypatch.setattr(extension, "build", removed)
    with pytest.raises(FileNotFoundError, match="the folder"):
        extension.build_once()
    assert files(tmp_path / "cache") == []


def test_a_user_without_a_home_keeps_what_there_was(compiler, monkeypatch):
    monkeypatch.setattr(extension, "default_folder", lambda: None)
    used = []
    beside.build(used.append)
    for thread in threading.enumerate():
        if thread.name == "onepass-extension":
            thread.join(timeout=60)
    assert used == compiler.lines == []


def test_calls_go_on_while_recorders_change(torch_extension):
    """Threads record while another one puts the extension in place and takes it away."""
    onepass.softmax(torch.zeros(1))
    x = torch.randn(64, 16, requires_grad=True)
    expected = torch.autograd.grad(torch.softmax(x, -1).square().sum(), x)[0]
    stop, wrong, kinds = threading.Event(), [], set()

    def record():
        while not stop.is_set():
            y = onepass.softmax(x)
            kinds.add(type(y.grad_fn).__name__)
            try:
                assert_like(torch.autograd.grad(y.square().sum(), x)[0], expected)
            except AssertionError as error:
                wrong.append(error)

    threads = [threading.Thread(target=record) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + 60
        swaps = 0
        while swaps < 500 or (len(kinds) < 2 and time.monotonic() < end):
            tensors.use_extension((torch_extension, None)[swaps % 2])
            time.sleep(0.001)
            swaps += 1
        tensors.use_extension(None)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert kinds == {"SoftmaxBackward", "CppFunction"}
