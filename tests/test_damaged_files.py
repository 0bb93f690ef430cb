"""Files that are damaged, or say what no array is."""

import io
import json
import os
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_files import SUFFIXES, no_debris, save

from onepass.files import FileError, Request, run_file


class Trap:
    """Calls home when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_never_unpickles(tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / f"in{suffix}"
    save(source, np.array([Trap(), 1], dtype=object)) if suffix == ".npy" else np.savez(source, np.array([Trap()]))
    with pytest.raises(FileError, match="pickled Python objects"):
        run_file(str(source), "out.npy", Request("softmax"))
    no_debris(tmp_path, source.name)


def _file(suffix):
    x = np.random.default_rng(4).standard_normal((3, 5)).astype(np.float32)
    if suffix == ".npy":
        stream = io.BytesIO()
        np.save(stream, x)
        return stream.getvalue()
    if suffix == ".npz":
        stream = io.BytesIO()
        np.savez_compressed(stream, a=x, b=np.arange(3))
        return stream.getvalue()
    text = b'{"a":{"dtype":"F32","shape":[3,5],"data_offsets":[0,60]}}'
    return len(text).to_bytes(8, "little") + text + x.tobytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(data=st.data())
def test_damaged_files_are_refused_in_one_line(tmp_path_factory, suffix, data):
    directory = tmp_path_factory.mktemp("damaged")
    whole = bytearray(_file(suffix))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (directory / f"in{suffix}").write_bytes(whole[: data.draw(st.integers(0, len(whole)) | st.just(len(whole)))])
    try:
        run_file(str(directory / f"in{suffix}"), str(directory / "out.npz"), Request("softmax", max_memory=1 << 20))
    except FileError as error:
        assert "\n" not in str(error)
        no_debris(directory, f"in{suffix}")


def _of_sizes(suffix, shape):
    """A file of float32 with these sizes, one of them 0."""
    if suffix == ".safetensors":
        text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
        return len(text).to_bytes(8, "little") + text
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)})
    if suffix == ".npy":
        return stream.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.npy", stream.getvalue())
    return packed.getvalue()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("sizes", [(2**63, 0), (0, 10**30), (2**31, 2**31, 0)])
def test_sizes_that_no_array_has_are_refused_though_one_is_0(tmp_path, suffix, sizes):
    (tmp_path / f"in{suffix}").write_bytes(_of_sizes(suffix, sizes))
    with pytest.raises(FileError, match="larger than any array"):
        run_file(str(tmp_path / f"in{suffix}"), str(tmp_path / "out.npz"), Request("softmax"))
    no_debris(tmp_path, f"in{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_number_of_empty_rows_is_done_at_once(tmp_path, suffix):
    (tmp_path / f"in{suffix}").write_bytes(_of_sizes(suffix, (2**60, 0)))
    assert run_file(str(tmp_path / f"in{suffix}"), str(tmp_path / "out.npz"), Request("softmax")).written == 0
    with np.load(tmp_path / "out.npz") as written:
        (array,) = written.values()
    assert array.shape == (2**60, 0)
    # A result of as many elements is one for a larger disk.
    with pytest.raises(FileError, match=r"it needs [\d,]+ bytes"):
        run_file(str(tmp_path / f"in{suffix}"), str(tmp_path / "out.npy"), Request("sum", dtype=np.dtype(np.float64)))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_truncation_is_refused(tmp_path, suffix):
    whole = _file(suffix)
    for n in range(len(whole)):
        (tmp_path / f"in{suffix}").write_bytes(whole[:n])
        with pytest.raises(FileError):
            run_file(str(tmp_path / f"in{suffix}"), str(tmp_path / "out.npz"), Request("softmax"))
        no_debris(tmp_path, f"in{suffix}")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "has 4 bytes"),
        (b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', "malformed"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', "does not start where"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}', "twice"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "the arrays need 4 bytes"),
        (b"[1]", "not a JSON object"),
        (b"[" * 100_000, "RecursionError"),
    ],
)
def test_safetensors_header_rules(tmp_path, header, message):
    (tmp_path / "in.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"12345678")
    with pytest.raises(FileError, match=message):
        run_file(str(tmp_path / "in.safetensors"), str(tmp_path / "out.npy"), Request("softmax"))


def test_zip_members_that_are_no_arrays(tmp_path):
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    with pytest.raises(FileError, match=r"readme\.txt is not a valid \.npy"):
        run_file(str(tmp_path / "in.npz"), str(tmp_path / "out.npz"), Request("softmax"))
