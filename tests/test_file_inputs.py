"""What files may hold: types that are none of the library's, arrays that cannot be read, names and modes."""

import json
import os
import stat
import subprocess
import sys
import threading
import zipfile

import ml_dtypes
import numpy as np
import pytest

import onepass
from onepass.files import OPS, FileError, Request, UsageError, run_file
from onepass.files.npy import read_npz
from onepass.files.safetensors import read_safetensors

FLOAT32 = np.dtype("float32")


@pytest.mark.parametrize("budget", [1 << 20, 1 << 30])
@pytest.mark.parametrize(
    "array",
    [
        np.ones((1, 300_000), "c8"),
        np.array([["1", "2"] * 40_000], "U3"),
        np.ones((1, 100_000), np.longdouble),
        np.ones((1, 200_000), "M8[s]"),
    ],
    ids=["complex", "text", "longdouble", "times"],
)
@pytest.mark.parametrize("op", ["softmax", "sum"])
def test_types_of_others_are_refused_whatever_result_is_asked_for(tmp_path, array, budget, op):
    """Also where a slab is part of a row, which is converted before the library sees it."""
    np.save(tmp_path / "in.npy", array)
    with pytest.raises(FileError, match="cannot be processed"):
        run_file(
            str(tmp_path / "in.npy"),
            str(tmp_path / "out.npy"),
            Request(op, dtype=FLOAT32, max_memory=budget),
        )
    assert sorted(os.listdir(tmp_path)) == ["in.npy"]


@pytest.mark.parametrize("op", ["amax", "amin"])
def test_the_largest_of_nothing_is_refused_before_anything_is_written(tmp_path, op):
    np.save(tmp_path / "in.npy", np.zeros((3, 0), "f4"))
    command = [sys.executable, "-m", "onepass.cli", "run", str(tmp_path / "in.npy"), "-o", "-", "--op", op]
    done = subprocess.run(command, capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"there is no " + op.encode() + b" of nothing" in b" ".join(done.stderr.split())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_read_as_it_comes(tmp_path):
    x = np.random.default_rng(0).standard_normal((50, 300))
    np.save(tmp_path / "in.npy", x)
    os.mkfifo(tmp_path / "pipe.npy")
    sender = threading.Thread(
        target=lambda: (tmp_path / "pipe.npy").write_bytes((tmp_path / "in.npy").read_bytes()), daemon=True
    )
    sender.start()
    run_file(str(tmp_path / "pipe.npy"), str(tmp_path / "out.npy"), Request("softmax"))
    sender.join()
    assert np.array_equal(np.load(tmp_path / "out.npy"), onepass.softmax(x))


@pytest.mark.parametrize("budget", [1500, 1 << 20])
@pytest.mark.parametrize("op", ["sum", "mean", "logsumexp"])
def test_one_16_bit_type_is_not_rounded_to_on_the_way_to_the_other(tmp_path, op, budget):
    """Nor does a float16 sum overflow that a bfloat16 holds."""
    x = np.random.default_rng(0).uniform(0, 1, (3, 1000)).astype(ml_dtypes.bfloat16)
    header = {"x": {"dtype": "BF16", "shape": [3, 1000], "data_offsets": [0, 6000]}}
    text = str(header).replace("'", '"').encode()
    (tmp_path / "in.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + x.tobytes())
    run_file(
        str(tmp_path / "in.safetensors"),
        str(tmp_path / "out.npy"),
        Request(op, dtype=np.dtype("float16"), max_memory=budget),
    )
    wide = x.astype(np.float64)
    expected = {"sum": wide.sum(1), "mean": wide.mean(1), "logsumexp": np.log(np.exp(wide).sum(1))}[op]
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected.astype(np.float16))


def test_a_float16_sum_that_bfloat16_holds(tmp_path):
    np.save(tmp_path / "in.npy", np.full((1, 100), 6e4, np.float16))
    request = Request("sum", dtype=np.dtype(ml_dtypes.bfloat16))
    run_file(str(tmp_path / "in.npy"), str(tmp_path / "out.safetensors"), request)
    raw = (tmp_path / "out.safetensors").read_bytes()[-2:]
    assert np.frombuffer(raw, ml_dtypes.bfloat16)[0] == ml_dtypes.bfloat16(float(np.float16(6e4)) * 100)


def test_damage_in_the_middle_of_a_stored_member_is_found(tmp_path):
    """Past what is checked while the header is read; also where zipfile gives up the check when it seeks."""
    np.savez(tmp_path / "in.npz", a=np.random.default_rng(0).standard_normal((100, 300)))
    raw = bytearray((tmp_path / "in.npz").read_bytes())
    raw[120_000] ^= 0xFF
    (tmp_path / "in.npz").write_bytes(raw)
    with pytest.raises(FileError, match="CRC"):
        run_file(str(tmp_path / "in.npz"), str(tmp_path / "out.npy"), Request("softmax"))
    assert sorted(os.listdir(tmp_path)) == ["in.npz"]


@pytest.mark.parametrize("damaged", [False, True])
def test_members_are_closed_when_they_are_done(tmp_path, monkeypatch, damaged):
    """All but the first while the others wait; also where one is damaged."""
    np.savez(tmp_path / "in.npz", **{name: np.ones((10, 1000)) for name in "abc"})
    if damaged:
        raw = bytearray((tmp_path / "in.npz").read_bytes())
        raw[60_000] ^= 0xFF
        (tmp_path / "in.npz").write_bytes(raw)
    opened, most = [], 0
    open_member = zipfile.ZipFile.open

    def watched(self, *args, **keywords):
        nonlocal most
        opened.append(open_member(self, *args, **keywords))
        most = max(most, sum(not member.closed for member in opened if isinstance(member, zipfile.ZipExtFile)))
        return opened[-1]

    monkeypatch.setattr(zipfile.ZipFile, "open", watched)
    try:
        run_file(str(tmp_path / "in.npz"), str(tmp_path / "out.safetensors"), Request("softmax"))
    except FileError:
        assert damaged
    assert most == 1 and len(opened) >= 3
    assert all(member.closed for member in opened)


def test_no_array_is_sought_before_it_is_read(tmp_path, monkeypatch):
    np.savez(tmp_path / "in.npz", a=np.arange(3000.0))
    seeks = []
    seek = zipfile.ZipExtFile.seek
    monkeypatch.setattr(zipfile.ZipExtFile, "seek", lambda self, *args: seeks.append(args) or seek(self, *args))
    with read_npz(tmp_path / "in.npz") as source, source.tensors[0].open() as reader:
        found = np.full(3000, np.nan)
        reader.read(0, found.view(np.uint8))
    assert seeks == []
    assert np.array_equal(found, np.arange(3000.0))


def test_what_cannot_be_read_is_no_matter_until_it_is_needed(tmp_path):
    np.savez(tmp_path / "in.npz", a=np.zeros(4, "f4"), o=np.array([None, 1], object))
    run_file(str(tmp_path / "in.npz"), str(tmp_path / "out.npy"), Request("softmax"), ("a",))
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.full(4, 0.25, "f4"))
    for target, names in (("all.npz", ()), ("o.npy", ("o",))):
        with pytest.raises(FileError, match=r"o\.npy holds pickled Python objects"):
            run_file(str(tmp_path / "in.npz"), str(tmp_path / target), Request("softmax"), names)
    assert sorted(os.listdir(tmp_path)) == ["in.npz", "out.npy"]


def test_what_cannot_be_read_is_not_left_out_unasked(tmp_path):
    np.savez(tmp_path / "in.npz", a=np.zeros(4, "f4"), b=np.zeros(4, "f4"))
    raw = (tmp_path / "in.npz").read_bytes()
    second = raw.index(b"NUMPY", raw.index(b"NUMPY") + 1)
    (tmp_path / "in.npz").write_bytes(raw[:second] + b"LUMPY" + raw[second + 5 :])
    for target, said in (("out.npy", r"has 2 \('a', 'b'\); pick one with --name"), ("out.npz", "b.npy is not a valid")):
        with pytest.raises(FileError, match=said):
            run_file(str(tmp_path / "in.npz"), str(tmp_path / target), Request("softmax"))
    assert sorted(os.listdir(tmp_path)) == ["in.npz"]
    run_file(str(tmp_path / "in.npz"), str(tmp_path / "out.npy"), Request("softmax"), ("a",))
    assert np.array_equal(np.load(tmp_path / "out.npy"), np.full(4, 0.25, "f4"))


def test_the_name_that_safetensors_keeps_for_itself(tmp_path):
    np.savez(tmp_path / "in.npz", __metadata__=np.zeros(3))
    with pytest.raises(UsageError, match="'__metadata__'"):
        run_file(str(tmp_path / "in.npz"), str(tmp_path / "out.safetensors"), Request("softmax"))
    assert sorted(os.listdir(tmp_path)) == ["in.npz"]


@pytest.mark.parametrize("metadata", ["[1]", '"x"', '{"a":1}'])
def test_metadata_that_is_no_object_of_strings(tmp_path, metadata):
    text = f'{{"__metadata__":{metadata}}}'.encode()
    (tmp_path / "in.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with (
        pytest.raises(FileError, match="__metadata__ is not an object of strings"),
        read_safetensors(tmp_path / "in.safetensors"),
    ):
        pass


@pytest.mark.parametrize("op", OPS)
def test_what_is_replaced_keeps_its_mode_and_names_may_be_long(tmp_path, op):
    np.save(tmp_path / "in.npy", np.ones((2, 3), "f4"))
    out = tmp_path / ("\u6f22" * 80 + ".npy")  # 244 bytes
    out.touch(mode=0o600)
    run_file(str(tmp_path / "in.npy"), str(out), Request(op))
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert np.load(out).shape[0] == 2


@pytest.mark.parametrize(("closed", "files"), [("<&-", ("-", "-o", "out.npy")), (">&-", ("in.npy", "-o", "-"))])
def test_a_closed_pipe_is_one_line(tmp_path, closed, files):
    np.save(tmp_path / "in.npy", np.ones((2, 3), "f4"))
    command = f'exec "$0" -m onepass.cli run {" ".join(files)} --op softmax {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "is closed" in " ".join(done.stderr.split()) and "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["in.npy"]


def test_names_that_are_no_text(tmp_path):
    """JSON can hold half of a pair of surrogates, and what moves a terminal's cursor."""
    header = json.dumps({name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in ["\ud800"]}).encode()
    (tmp_path / "in.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(UsageError, match=r"the name '\\ud800' cannot be written in an \.npz file"):
        run_file(str(tmp_path / "in.safetensors"), str(tmp_path / "out.npz"), Request("softmax"))
    np.savez(tmp_path / "in.npz", **{"a\x1b[31m": np.ones(3), "b": np.ones(3)})
    with pytest.raises(UsageError, match=r"'a\\x1b\[31m', 'b'"):
        run_file(str(tmp_path / "in.npz"), str(tmp_path / "out.npy"), Request("softmax"))
    assert sorted(os.listdir(tmp_path)) == ["in.npz", "in.safetensors"]


def test_the_format_that_numpy_reads_for_names_in_unicode_is_named(tmp_path):
    array = np.zeros(2, dtype=[("\u0142", "f4")])
    with pytest.warns(UserWarning, match="format 3.0"):
        np.save(tmp_path / "in.npy", array)
    with pytest.raises(FileError, match=r"is of \.npy format 3\.0, which structured types with Unicode names have"):
        run_file(str(tmp_path / "in.npy"), str(tmp_path / "out.npy"), Request("softmax"))
