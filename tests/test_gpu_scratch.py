"""Cooperative launches and the memory through which their blocks talk: on the stub driver, so on any machine."""

import ctypes
import itertools
import threading

import pytest
from stub_gpu import CONTEXTS, ELF
from test_gpu_launch import WORDS, bind

from onepass import _engine

HOT = ["cuCtxGetCurrent", "cuStreamGetCaptureInfo_v2", "cuStreamGetId", "cuLaunchKernelEx"]
HEAD = 128  # bytes of scratch memory before what each block has
_streams = itertools.count(0x5000)  # the engine keeps memory for each that it has seen


@pytest.fixture
def kernel(stub):
    return _engine.load_kernel(0, ELF, "kernel")


@pytest.fixture
def run(stub, fake_gpu):
    """Runs a bound plan on a stream; the address of the scratch memory that its kernel got."""
    assert _engine.register_exchange_type(fake_gpu.Array)
    x = fake_gpu.Array((64, 1000))

    def run(bound, stream):
        fake_gpu.set_stream(0, stream)
        try:
            _engine.run(bound, x, None)
        finally:
            fake_gpu.set_stream(0, 0)
        return stub.words(3 + len(WORDS))[-1]

    return run


@pytest.fixture
def stream():
    return next(_streams)


def bind_team(kernel, team=5, rows=64, scratch_bytes=64, unit_slots=0):
    words = (*WORDS, 0)  # the last is the address
    return bind(
        kernel,
        cooperative=True,
        team=team,
        units=rows,
        units_per_block=1,
        words=words,
        scratch_bytes=scratch_bytes,
        unit_slots=unit_slots,
    )


@pytest.mark.parametrize(
    ("rows", "team", "occupancy", "grid"),
    [
        (3, 5, 2, 15),  # every row at once
        (64, 5, 2, 2 * 132 // 5 * 5),  # as many whole teams as are resident
        (64, 264, 2, 264),  # the whole GPU for a row
        (1, 1, 1, 1),
    ],
)
def test_the_grid_is_whole_teams_that_are_resident_at_once(stub, kernel, run, stream, rows, team, occupancy, grid):
    stub.set_occupancy(occupancy)
    run(bind_team(kernel, team, rows), stream)
    assert list(stub.launched.grid) == [grid, 1, 1]
    assert (stub.launched.cluster, stub.launched.cooperative) == (1, 1)


@pytest.mark.parametrize(("rows", "team", "grid"), [(3, 5, 15), (64, 5, 2 * 132), (64, 264, 264), (1, 1, 1)])
def test_blocks_that_claim_slices_are_all_that_are_resident(stub, kernel, run, stream, rows, team, grid):
    """Also where they are no whole number of teams; a row has as many places in scratch memory as the plan says."""
    stub.set_occupancy(2)
    address = run(bind_team(kernel, team, rows, scratch_bytes=640, unit_slots=team + 3), stream)
    assert list(stub.launched.grid) == [grid, 1, 1]
    assert (stub.launched.cluster, stub.launched.cooperative) == (1, 1)
    assert not any(ctypes.string_at(address, HEAD + 640 * rows * (team + 3)))


def test_claims_without_a_team_make_no_sense(kernel):
    with pytest.raises(ValueError, match="only a team's blocks claim their shares"):
        bind(kernel, unit_slots=2)
    with pytest.raises(ValueError, match="only a team's blocks claim their shares"):
        bind_team(kernel, unit_slots=-1)


def test_a_team_that_does_not_fit_is_refused(stub, kernel):
    with pytest.raises(_engine.CudaError, match="fit 265 blocks on the GPU at once"):
        bind_team(kernel, team=265)


def bind_clusters(kernel, rows, waves=1):
    words = (*WORDS, 0)
    return bind(kernel, cluster=4, hands_out=True, units=4 * rows, units_per_block=1, waves=waves, words=words)


def test_clusters_get_a_counter_where_they_take_more_than_one_row(stub, kernel, run, stream):
    assert run(bind_clusters(kernel, rows=33), stream) == 0  # as many as the stub says are resident at once
    assert "cuStreamGetCaptureInfo_v2" not in stub.calls
    address = run(bind_clusters(kernel, rows=34), stream)
    assert list(stub.launched.grid) == [4 * 33, 1, 1] and (stub.launched.cluster, stub.launched.cooperative) == (4, 0)
    assert address and not any(ctypes.string_at(address, HEAD))
    assert run(bind_clusters(kernel, rows=2, waves=0), stream) == address  # a grid that says nothing about rows
    assert run(bind_team(kernel), stream) == address


def test_a_stream_has_memory_of_its_own(kernel, run, stream):
    bound, other = bind_team(kernel), bind_team(kernel, team=7)
    mine = run(bound, stream)
    assert run(bound, stream) == mine
    assert run(other, stream) == mine  # one launch comes after the other
    assert run(bound, next(_streams)) != mine


def test_new_memory_is_zero(kernel, run, stream):
    grid = 2 * 132 // 5 * 5
    address = run(bind_team(kernel, scratch_bytes=640), stream)
    assert not any(ctypes.string_at(address, HEAD + 640 * grid))


def test_a_stream_that_has_anothers_handle_has_its_own(stub, kernel, run, stream):
    """The other one may have been destroyed with work still to do."""
    bound = bind_team(kernel)
    mine = run(bound, stream)
    stub.set_stream_id(stream, next(_streams))
    assert run(bound, stream) != mine


def test_more_memory_for_a_larger_launch(kernel, run, stream):
    small, large = bind_team(kernel), bind_team(kernel, scratch_bytes=4096)
    before = run(small, stream)
    after = run(large, stream)
    assert after != before
    assert run(small, stream) == run(large, stream) == after
    assert not any(ctypes.string_at(after, HEAD + 4096 * (2 * 132 // 5 * 5)))


def test_a_hot_call_asks_for_the_capture_the_stream_and_the_launch(stub, kernel, run, stream):
    stub.set_context(CONTEXTS[0])
    bound = bind_team(kernel)
    run(bound, stream)
    stub.forget_calls()
    run(bound, stream)
    assert stub.calls == HOT


def test_every_capture_has_memory_of_its_own(stub, kernel, run, stream):
    """Two graphs that were captured on one stream may be replayed on two."""
    bound = bind_team(kernel)
    eager = run(bound, stream)
    seen = {eager}
    for _ in range(3):
        stub.set_capture(stream, next(_streams))
        address = run(bound, stream)
        assert run(bound, stream) == address
        seen.add(address)
    stub.set_capture(stream, 0)
    assert len(seen) == 4
    assert run(bound, stream) == eager


def test_streams_of_one_capture_do_not_share(stub, kernel, run, stream):
    capture, other = next(_streams), next(_streams)
    stub.set_capture(stream, capture)
    stub.set_capture(other, capture)
    bound = bind_team(kernel)
    assert run(bound, stream) != run(bound, other)


def test_default_streams_of_threads_in_one_capture_do_not_share(stub, kernel, run):
    """They have one handle."""
    per_thread, bound, addresses = 2, bind_team(kernel), []
    stub.set_capture(per_thread, next(_streams))
    try:
        for _ in range(20):  # in turn: what tells them apart does not come again with a thread's memory
            thread = threading.Thread(target=lambda: addresses.append(run(bound, per_thread)))
            thread.start()
            thread.join()
        addresses.append(run(bound, per_thread))
    finally:
        stub.set_capture(per_thread, 0)
    assert len(set(addresses)) == 21


def test_memory_of_a_graph_that_is_gone_is_used_again(stub, kernel, run, stream):
    bound = bind_team(kernel)
    capture = next(_streams)
    stub.set_capture(stream, capture)
    address = run(bound, stream)
    assert stub.destroy_graph(capture) == 1
    stub.forget_calls()
    stub.set_capture(stream, next(_streams))
    assert run(bound, stream) == address
    assert "cuMemAlloc_v2" not in stub.calls


@pytest.mark.parametrize("call", ["cuUserObjectCreate", "cuGraphRetainUserObject"])
def test_a_graph_that_cannot_hold_it_leaves_it_where_it_is(stub, kernel, run, stream, call):
    """Nobody else gets memory that the graph will use."""
    stub.fail(call, 801)
    stub.set_capture(stream, next(_streams))
    bound = bind_team(kernel)
    address = run(bound, stream)
    assert run(bound, stream) == address
    stub.fail(call, 0)
    stub.set_capture(stream, next(_streams))
    assert run(bound, stream) != address


def test_memory_is_cleared_outside_of_every_capture(stub, kernel, run, stream):
    stub.set_capture(stream, next(_streams))
    run(bind_team(kernel, scratch_bytes=1 << 12), stream)
    calls = stub.calls
    assert "cuMemsetD8Async" in calls  # the stub has another name for it in any but relaxed mode
    assert calls.index("cuMemsetD8Async") < calls.index("cuStreamSynchronize") < calls.index("cuLaunchKernelEx")


@pytest.mark.parametrize("call", ["cuMemAlloc_v2", "cuMemsetD8Async", "cuStreamSynchronize"])
def test_after_a_failure_the_next_call_tries_again(stub, kernel, run, stream, call):
    bound = bind_team(kernel)
    stub.fail(call, 2)
    with pytest.raises(MemoryError):
        run(bound, stream)
    stub.fail(call, 0)
    assert not any(ctypes.string_at(run(bound, stream), HEAD))


def test_a_launch_that_is_refused_leaves_the_memory_as_it_was(stub, kernel, run, stream):
    bound = bind_team(kernel)
    address = run(bound, stream)
    stub.fail("cuLaunchKernelEx", 719)
    with pytest.raises(_engine.CudaError, match="launch"):
        run(bound, stream)
    stub.fail("cuLaunchKernelEx", 0)
    assert run(bound, stream) == address
    assert not any(ctypes.string_at(address, HEAD))


def test_threads_find_memory_at_the_same_time(stub, kernel, fake_gpu):
    """Every thread on a stream of its own."""
    assert _engine.register_exchange_type(fake_gpu.Array)
    bound, found = bind_team(kernel), []

    def call(x):
        for _ in range(50):
            _engine.run(bound, x, None)
        found.append(1)

    threads = [threading.Thread(target=call, args=(fake_gpu.Array((64, 1000)),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4


@pytest.mark.parametrize("changes", [{"cluster": 1}, {"words": ()}])
def test_counters_that_make_no_sense_are_refused(kernel, changes):
    with pytest.raises(ValueError, match="launch: clusters take units from a counter"):
        bind(kernel, **{"cluster": 2, "hands_out": True, **changes})


@pytest.mark.parametrize("changes", [{"cooperative": False}, {"cluster": 2}, {"words": ()}, {"team": -1}])
def test_teams_that_make_no_sense_are_refused(kernel, changes):
    with pytest.raises(ValueError, match="launch: "):
        bind(kernel, **{"cooperative": True, "team": 2, "scratch_bytes": 64, **changes})
