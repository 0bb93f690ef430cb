"""Files in, files out: every format, and every way of cutting an array up."""

import errno
import json
import os

import numpy as np
import pytest
from helpers import BFLOAT16, DTYPES, ELEMENTWISE
from hypothesis import given
from hypothesis import strategies as st
from ulp import max_ulp

import onepass.files.slabs
from onepass import reference
from onepass.files import OPS, FileError, Request, UsageError, run_file
from onepass.files.jobs import Target, compute_job
from onepass.files.safetensors import read_safetensors
from onepass.files.slabs import Columns, Cost, Rows, Stream, cuts, plan_slabs, runs
from onepass.files.tensor import Access, Info, Tensor

SUFFIXES = (".npy", ".npz", ".safetensors")

# Largest error in units of the result's last place. Sums: in units of the sum of the magnitudes. softmax: rounding
# x - max, up to 30 here, is worth 16 units to a float64 row that comes in parts.
MAX_ULP = {"softmax": 24.0, "log_softmax": 4.0, "logsumexp": 3.0, "sum": 3.0, "mean": 3.0, "amax": 0.0, "amin": 0.0}


def save_tensors(path, arrays, metadata=None):
    """A .safetensors file, written here as the format describes it and not by the code under test."""
    names = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "bool": "BOOL"}
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, array in arrays.items():
        raw = array.tobytes()
        label = names[array.dtype.name]
        header[name] = {"dtype": label, "shape": array.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def load_tensors(path):
    with read_safetensors(path) as source:
        arrays = {}
        for tensor in source.tensors:
            raw = np.empty(tensor.info.nbytes, np.uint8)
            tensor.open().read(0, raw)
            arrays[tensor.info.name] = raw.view(tensor.info.dtype).reshape(tensor.info.shape)
        return arrays, source.metadata


def save(path, array):
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        np.savez_compressed(path, array)
    else:
        save_tensors(path, {"arr_0": np.array(array, order="C")})


def load(path):
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".npz":
        return np.load(path, allow_pickle=False)["arr_0"]
    return load_tensors(path)[0]["arr_0"]


def check(result, x, op, dim, keepdim=False, dtype=None):
    """The result against the float64 reference of what `x` says."""
    want = getattr(reference, op)(x, dim, **({} if op in ELEMENTWISE else {"keepdim": keepdim}), dtype=np.longdouble)
    assert result.dtype == (x.dtype if dtype is None else dtype)
    assert result.shape == np.shape(want)
    floor = 0.0 if op == "softmax" else 1.0
    if op in ("sum", "mean"):
        floor = np.maximum(reference.__dict__[op](np.abs(x.astype(np.float64)), dim, keepdim), 1e-30)
    assert max_ulp(result, want, floor=floor) <= MAX_ULP[op]


def no_debris(directory, *expected):
    assert sorted(entry.name for entry in directory.iterdir()) == sorted(expected)


@pytest.fixture
def x():
    return (np.random.default_rng(1).standard_normal((6, 500, 7)) * 3).astype(np.float32)


@pytest.mark.parametrize("target", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
@pytest.mark.parametrize("op", OPS)
def test_formats(tmp_path, x, source, target, op):
    given_file, out = tmp_path / f"in{source}", tmp_path / f"out{target}"
    save(given_file, x)
    summary = run_file(str(given_file), str(out), Request(op, (1,)))
    check(load(out), x, op, 1)
    assert summary.computed == 1
    assert summary.read == x.nbytes
    assert summary.written == load(out).nbytes
    no_debris(tmp_path, given_file.name, out.name)


# Each budget forces one way of cutting up (6, 500, 7) float32 along dim 1: a row block has 14,000 bytes.
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("budget", "source", "plan"),
    [
        pytest.param(1 << 20, ".npy", Rows, id="everything at once"),
        pytest.param(30_000, ".npy", Rows, id="some rows at a time"),
        pytest.param(12_500, ".npy", Columns, id="some columns at a time"),
        pytest.param(7000, ".npy", Stream, id="part of a row at a time"),
        pytest.param(12_500, ".npz", Stream, id="a zip member has no columns"),
    ],
)
def test_every_cut(tmp_path, monkeypatch, x, op, budget, source, plan):
    monkeypatch.setattr(onepass.files.slabs, "SHORTEST_RUN", 8 if plan is Columns else 1 << 20)
    given_file, out = tmp_path / f"in{source}", tmp_path / "out.npy"
    save(given_file, x)
    seen = []
    plan_slabs = onepass.files.slabs.plan_slabs
    monkeypatch.setattr("onepass.files.jobs.plan_slabs", lambda *a: seen.append(plan_slabs(*a)) or seen[-1])
    run_file(str(given_file), str(out), Request(op, (1,), max_memory=budget))
    assert [type(p) for p in seen] == [plan]
    check(load(out), x, op, 1)


def test_a_row_larger_than_memory_keeps_special_values(tmp_path):
    x = np.random.default_rng(2).standard_normal((5, 4000)).astype(np.float32)
    x[0, 1234] = np.nan
    x[1, 3999] = np.inf
    x[2] = -np.inf
    x[3, :3999] = -np.inf
    x[4] *= 1e30
    np.save(tmp_path / "in.npy", x)
    for op in OPS:
        run_file(str(tmp_path / "in.npy"), str(tmp_path / "out.npy"), Request(op, max_memory=2000))
        check(np.load(tmp_path / "out.npy"), x, op, -1)


@given(
    shape=st.lists(st.integers(0, 9), min_size=0, max_size=4).map(tuple),
    op=st.sampled_from(OPS),
    data=st.data(),
    dtype=st.sampled_from(sorted(DTYPES)),
    fortran=st.booleans(),
    swapped=st.booleans(),
    budget=st.integers(600, 8000),
    keepdim=st.booleans(),
)
def test_any_array(tmp_path_factory, count_example, shape, op, data, dtype, fortran, swapped, budget, keepdim):
    directory = tmp_path_factory.mktemp("any")
    dim = data.draw(st.none() | st.integers(-max(1, len(shape)), max(1, len(shape)) - 1))
    rng = np.random.default_rng(len(shape))
    x = np.array(rng.standard_normal(shape) * 3).astype(DTYPES[dtype])
    length = x.size if dim is None else (shape[dim] if shape else 1)
    source, target = directory / "in.safetensors", directory / "out.safetensors"
    if dtype == "bfloat16":
        save(source, x)
    else:
        source, target = directory / "in.npy", directory / data.draw(st.sampled_from(["out.npy", "out.npz"]))
        stored = np.asfortranarray(x) if fortran and shape else x
        np.save(source, stored.astype(x.dtype.newbyteorder(">")) if swapped else stored)
    budget = 1 << 18 if target.suffix == ".npz" else budget  # written in order: the state of all columns must fit
    request = Request(op, None if dim is None else (dim,), None, keepdim, budget)
    try:
        run_file(str(source), str(target), request)
    except FileError:
        assert length == 0
        assert op in ("amax", "amin")
        no_debris(directory, source.name)
    else:
        if length or op not in ("amax", "amin"):
            check(load(target), x, op, dim, keepdim)
    count_example("files")


@pytest.mark.parametrize("op", ["logsumexp", "sum", "mean"])
@pytest.mark.parametrize("target", ["out.npy", "out.npz"])
def test_more_empty_columns_than_fit_are_done_in_turn(tmp_path, op, target):
    x = np.zeros((3, 0, 500), np.float32)
    np.save(tmp_path / "in.npy", x)
    run_file(str(tmp_path / "in.npy"), str(tmp_path / target), Request(op, (1,), max_memory=2000))
    check(load(tmp_path / target), x, op, 1)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("budget", [1 << 20, 2000])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("result", sorted(DTYPES))
def test_result_type(tmp_path, op, budget, dtype, result):
    x = (np.random.default_rng(3).standard_normal((3, 800)) * 3).astype(DTYPES[dtype])
    save(tmp_path / "in.safetensors", x)
    request = Request(op, dtype=DTYPES[result], max_memory=budget)
    run_file(str(tmp_path / "in.safetensors"), str(tmp_path / "out.safetensors"), request)
    got, want = load(tmp_path / "out.safetensors"), getattr(reference, op)(x, -1)
    assert got.dtype == DTYPES[result]
    # The coarser of the two types rules what can be expected; the sums themselves are tested elsewhere.
    coarse = min(dtype, result, key=["bfloat16", "float16", "float32", "float64"].index)
    floor = np.abs(x.astype(np.float64)).sum(-1) if op in ("sum", "mean") else 2.0**-14 if op == "softmax" else 1.0
    assert max_ulp(got, want, dtype=DTYPES[coarse], floor=floor) <= 12


def test_a_wider_sum_does_not_overflow_first(tmp_path):
    np.save(tmp_path / "in.npy", np.full((2, 100), 6e4, np.float16))
    run_file(str(tmp_path / "in.npy"), str(tmp_path / "out.npy"), Request("sum", dtype=np.dtype(np.float32)))
    assert np.load(tmp_path / "out.npy").tolist() == [np.float32(np.float16(6e4)) * 100] * 2


def test_integers_are_as_in_the_library(tmp_path):
    x = np.arange(24).reshape(4, 6)
    np.save(tmp_path / "in.npy", x)
    for op in OPS:
        for budget in (1 << 20, 180):
            run_file(str(tmp_path / "in.npy"), str(tmp_path / "out.npy"), Request(op, (0,), max_memory=budget))
            got, want = np.load(tmp_path / "out.npy"), getattr(onepass, op)(x, dim=0)
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-14, atol=1e-15)


def test_large_integers_stay_exact_when_streamed(tmp_path):
    x = np.array([[2**53 + 1], [2**53 + 3], [5]])
    np.save(tmp_path / "in.npy", x)
    for op, want in (("sum", 2**54 + 9), ("amax", 2**53 + 3), ("amin", 5)):
        run_file(str(tmp_path / "in.npy"), str(tmp_path / "out.npy"), Request(op, (0,), max_memory=100))
        assert np.load(tmp_path / "out.npy").tolist() == [want]


def test_several_dims(tmp_path, x):
    np.save(tmp_path / "in.npy", x)
    for dims in ((0, 1), (-1, 1), (2, 0, 1)):
        run_file(str(tmp_path / "in.npy"), str(tmp_path / "out.npy"), Request("softmax", dims))
        check(np.load(tmp_path / "out.npy"), x, "softmax", dims)
    for dims, message in (((0, 2), "side by side"), ((1, 1), "twice"), ((3,), "out of range"), ((-4,), "out of range")):
        with pytest.raises(UsageError, match=message):
            run_file(str(tmp_path / "in.npy"), str(tmp_path / "out2.npy"), Request("softmax", dims))
    no_debris(tmp_path, "in.npy", "out.npy")


@pytest.mark.parametrize("target", [".npz", ".safetensors"])
def test_the_floating_arrays_of_several(tmp_path, x, target):
    out = tmp_path / f"out{target}"
    np.savez(tmp_path / "in.npz", a=x, ids=np.arange(5), b=np.float64([[1, 2]]), mask=np.array([True]), turned=x.T)
    summary = run_file(str(tmp_path / "in.npz"), str(out), Request("softmax"))
    got = load_tensors(out)[0] if target == ".safetensors" else dict(np.load(out))
    assert (summary.computed, summary.copied) == (3, 2)
    assert set(got) == {"a", "ids", "b", "mask", "turned"}
    check(got["a"], x, "softmax", -1)
    check(got["turned"], x.T, "softmax", -1)
    assert got["b"].dtype == np.float64
    assert got["ids"].tolist() == [0, 1, 2, 3, 4]
    assert got["mask"].tolist() == [True]


def test_named_arrays(tmp_path, x):
    np.savez(tmp_path / "in.npz", a=x, b=x[0], ids=np.arange(5))
    source = str(tmp_path / "in.npz")
    run_file(source, str(tmp_path / "out.npz"), Request("softmax"), ("b", "ids"))
    got = np.load(tmp_path / "out.npz")
    assert np.array_equal(got["a"], x)
    check(got["b"], x[0], "softmax", -1)
    assert got["ids"].dtype == np.float64
    run_file(source, str(tmp_path / "out.npy"), Request("softmax"), ("a",))
    check(np.load(tmp_path / "out.npy"), x, "softmax", -1)
    with pytest.raises(UsageError, match="holds no array named 'c'; it holds 'a', 'b', 'ids'"):
        run_file(source, str(tmp_path / "no.npz"), Request("softmax"), ("c",))
    with pytest.raises(UsageError, match="pick one with --name"):
        run_file(source, str(tmp_path / "no.npy"), Request("softmax"))
    with pytest.raises(UsageError, match="dim 2 is out of range for array 'b'"):
        run_file(source, str(tmp_path / "no.npz"), Request("softmax", (2,)))
    no_debris(tmp_path, "in.npz", "out.npz", "out.npy")


def test_no_floating_array(tmp_path):
    np.savez(tmp_path / "in.npz", a=np.arange(3), b=np.arange(4))
    with pytest.raises(UsageError, match="no floating array"):
        run_file(str(tmp_path / "in.npz"), str(tmp_path / "out.npz"), Request("softmax"))


def test_safetensors_across_to_its_own_package(tmp_path, x):
    package = pytest.importorskip("safetensors.numpy")
    arrays = {"a": x, "odd": x[0, 0, :3].astype(np.float16), "ids": np.arange(3, dtype=np.int8)}
    package.save_file(arrays, tmp_path / "in.safetensors", metadata={"format": "pt"})
    run_file(str(tmp_path / "in.safetensors"), str(tmp_path / "out.safetensors"), Request("log_softmax"))
    got = package.load_file(tmp_path / "out.safetensors")
    check(got["a"], x, "log_softmax", -1)
    check(got["odd"], arrays["odd"], "log_softmax", -1)
    assert got["ids"].tolist() == [0, 1, 2]
    assert load_tensors(tmp_path / "out.safetensors")[1] == {"format": "pt"}


def test_safetensors_types_unknown_to_numpy_are_copied(tmp_path):
    header = {
        "f": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "q": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [8, 11]},
    }
    text = json.dumps(header).encode()
    source, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    source.write_bytes(len(text).to_bytes(8, "little") + text + np.float32([0, 0]).tobytes() + b"abc")
    run_file(str(source), str(out), Request("softmax"))
    with read_safetensors(out) as held:
        q = next(tensor for tensor in held.tensors if tensor.info.name == "q")
        raw = np.empty(3, np.uint8)
        q.open().read(0, raw)
    assert (raw.tobytes(), q.info.label) == (b"abc", "F8_E4M3")
    with pytest.raises(UsageError, match="'q'"):
        run_file(str(source), str(tmp_path / "out.npz"), Request("softmax"))
    no_debris(tmp_path, "in.safetensors", "out.safetensors")


def test_bfloat16_needs_safetensors(tmp_path):
    save(tmp_path / "in.safetensors", np.ones((2, 4), BFLOAT16))
    for request in (Request("softmax"), Request("softmax", dtype=BFLOAT16)):
        with pytest.raises(UsageError, match=r"write a \.safetensors file, or give --dtype"):
            run_file(str(tmp_path / "in.safetensors"), str(tmp_path / "out.npy"), request)
    np.save(tmp_path / "in.npy", np.ones((2, 4), BFLOAT16))
    with pytest.raises(FileError, match="bfloat16 or other raw bytes"):
        run_file(str(tmp_path / "in.npy"), str(tmp_path / "out.npy"), Request("softmax"))
    no_debris(tmp_path, "in.safetensors", "in.npy")


def test_fortran_order_stays_in_npy_and_is_turned_for_safetensors(tmp_path, x):
    source = tmp_path / "in.npy"
    np.save(source, np.asfortranarray(x))
    run_file(str(source), str(tmp_path / "out.npy"), Request("softmax", (0,)))
    assert np.load(tmp_path / "out.npy").flags.f_contiguous
    run_file(str(source), str(tmp_path / "out.safetensors"), Request("softmax", (0,), max_memory=1 << 21))
    check(load(tmp_path / "out.safetensors"), x, "softmax", 0)
    with pytest.raises(FileError, match="Fortran order"):
        run_file(str(source), str(tmp_path / "no.safetensors"), Request("softmax", (0,), max_memory=1 << 20))


def test_existing_output_survives_a_failure_and_is_replaced_by_success(tmp_path, monkeypatch, x):
    np.save(tmp_path / "in.npy", x)
    out = tmp_path / "out.npy"
    out.write_text("before")
    link = tmp_path / "link.npy"
    link.symlink_to(out)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(FileError, match="No space left on device: it needs 84,128 bytes"):
            run_file(str(tmp_path / "in.npy"), str(out), Request("softmax"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FileError, match=r"out\.npy: No space left"):
            run_file(str(tmp_path / "in.npy"), str(out), Request("softmax"))
    assert out.read_text() == "before"
    no_debris(tmp_path, "in.npy", "out.npy", "link.npy")
    run_file(str(tmp_path / "in.npy"), str(link), Request("softmax"))
    assert link.is_symlink()
    check(np.load(out), x, "softmax", -1)


@given(
    shape=st.tuples(*[st.integers(0, 12)] * 3),
    item=st.sampled_from([2, 4, 8]),
    out=st.sampled_from([0, 2, 4, 8]),
    budget=st.integers(500, 5000),
    access=st.sampled_from(list(Access)),
    passes=st.sampled_from([1, 2]),
)
def test_slabs_stay_within_the_budget(shape, item, out, budget, access, passes):
    outer, length, inner = shape
    cost = Cost(item, item + out, 16 if passes == 1 else 0, item + 8 + out)
    plan = plan_slabs(shape, cost, budget, access, passes)
    if isinstance(plan, Rows):
        assert plan.step >= 1
        assert plan.step * inner * (length * cost.element + cost.kept) <= budget or outer * length * inner == 0
    elif isinstance(plan, Columns):
        assert access == Access.RANDOM or length == 0
        assert 1 <= plan.width <= inner
        assert plan.width * (length * cost.element + cost.kept) <= budget
    elif isinstance(plan, Stream):
        assert plan.width * (plan.step * cost.stream_element + 64) <= budget
        assert access == Access.RANDOM or plan.width == inner
        assert passes == 1 or access > Access.ONCE
    else:
        assert access < Access.RANDOM


@given(shape=st.tuples(*[st.integers(1, 6)] * 3), step=st.integers(1, 4), width=st.integers(1, 4))
def test_the_runs_of_all_tiles_cover_each_element_once(shape, step, width):
    outer, length, inner = shape
    seen = np.zeros(outer * length * inner, int)
    for o in cuts(outer, 1):
        for k in cuts(length, step):
            for i in cuts(inner, width):
                for first, count in runs(shape, o, k, i):
                    seen[first : first + count] += 1
    assert (seen == 1).all()


def test_a_pipe_that_would_have_to_be_read_twice_is_refused(x):
    info = Info("arr_0", x.dtype, x.shape, x.nbytes)
    tensor, target = Tensor(info, Access.ONCE, lambda: None), Target(Access.ONCE, fortran=True, many=False)
    with pytest.raises(FileError, match="only read and write in order"):
        compute_job(tensor, Request("softmax", (0,), max_memory=5000), target)
    assert isinstance(compute_job(tensor, Request("sum", (2,), max_memory=5000), target).plan, Rows)
