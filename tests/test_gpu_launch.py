"""What the engine hands to the driver: on the stub driver, so on any machine."""

import threading

import pytest
from stub_gpu import CONTEXTS, ELF

from onepass import _engine

HOT = ["cuCtxGetCurrent", "cuLaunchKernel"]  # all that a call may ask of the driver where its GPU is current
WORDS = (64, 1000, 64, 1000, 1000)


def bind(kernel, shape=(64, 1000), **changes):
    arguments = {
        "algorithm": "warp",
        "threads": 128,
        "cluster": 1,
        "cooperative": False,
        "shared_bytes": 0,
        "units": 64,
        "units_per_block": 4,
        "waves": 32,
        "arrays": 2,
        "words": WORDS,
        "result_dtype": 0,
        "shape": shape,
        "make": None,
        "positional": (),
        "keyword_names": None,
        "keyword_values": (),
        "finish": None,
    }
    return _engine.bind_gpu(kernel=kernel, **{**arguments, **changes})


def test_as_many_addresses_as_the_kernel_has_arrays(stub, kernel, array):
    for count in (2, 3, 4):
        bound = bind(kernel, arrays=count)
        inputs, out = [array() for _ in range(count - 1)], array()
        assert _engine.run(bound, inputs[0], out, *inputs[1:]) is out
        addresses = (inputs[0].address, out.address, *(x.address for x in inputs[1:]))
        assert stub.words(count + len(WORDS)) == (*addresses, *WORDS)
        for given in {2, 3, 4} - {count}:
            stub.forget_calls()
            with pytest.raises(TypeError, match=f"the plan is bound for {count} arrays"):
                _engine.run(bound, inputs[0], out, *[array() for _ in range(given - 2)])
            assert stub.calls == []
    for count in (1, 5):
        with pytest.raises(ValueError, match="two, three or four arrays"):
            bind(kernel, arrays=count)


def test_only_kernels_with_one_input_are_relaunched(stub, kernel, array):
    bound = bind(kernel, arrays=3)
    with pytest.raises(TypeError, match="with one input"):
        _engine.relaunch(bound, array(), array(), 2)


@pytest.fixture
def kernel(stub):
    loaded = _engine.load_kernel(0, ELF, "kernel")
    stub.forget_calls()
    return loaded


@pytest.fixture
def array(fake_gpu):
    """A fake array whose type the engine reads."""

    def make(shape=(64, 1000), **keywords):
        assert _engine.register_exchange_type(fake_gpu.Array)
        return fake_gpu.Array(shape, **keywords)

    return make


def test_the_job_is_two_addresses_and_the_words_of_the_plan(stub, kernel, array):
    x, out = array(), array()
    bound = bind(kernel)
    assert _engine.run(bound, x, out) is out
    assert stub.words(7) == (x.address, out.address, *WORDS)
    assert list(stub.launched.grid) == [16, 1, 1]
    assert list(stub.launched.block) == [128, 1, 1]
    assert stub.launched.shared_bytes == 0


def test_a_result_is_made_on_the_same_gpu(stub, kernel, array):
    y = _engine.run(bind(kernel, shape=(64,), result_dtype=1), array(), None)
    assert (y.shape, y.dtype, y.device) == ((64,), "float64", 0)
    assert stub.words(2)[1] == y.address


def test_a_hot_call_asks_nothing_of_the_driver_but_the_launch(stub, kernel, array):
    bound = bind(kernel)
    x = array()
    stub.set_context(CONTEXTS[0])
    stub.forget_calls()
    for out in (None, array()):
        _engine.run(bound, x, out)
        assert stub.calls == HOT


def test_another_gpu_is_made_current_for_the_launch_only(stub, array):
    bound = bind(_engine.load_kernel(1, ELF, "kernel"))
    x = array(device=1)
    stub.set_context(CONTEXTS[0])
    stub.forget_calls()
    _engine.run(bound, x, None)
    assert stub.calls == ["cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuLaunchKernel", "cuCtxPopCurrent_v2"]
    assert stub.launched.context == CONTEXTS[1]
    assert (stub.context(), stub.depth()) == (CONTEXTS[0], 1)


def test_a_thread_without_a_context_is_left_without_one(stub, kernel, array):
    bound, x, depths = bind(kernel), array(), []

    def call():
        _engine.run(bound, x, None)
        depths.append(stub.depth())

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert depths == [0]
    assert stub.launched.context == CONTEXTS[0]


@pytest.mark.parametrize("stream", [0, 1, 2, 0x7F00DEADBEEF])
def test_the_stream_is_the_one_that_the_library_has_current(stub, kernel, array, fake_gpu, stream):
    fake_gpu.set_stream(0, stream)
    try:
        _engine.run(bind(kernel), array(), None)
    finally:
        fake_gpu.set_stream(0, 0)
    assert stub.launched.stream == stream


@pytest.mark.parametrize(
    ("units", "per_block", "waves", "occupancy", "grid"),
    [
        (64, 4, 32, 2, 16),  # fewer blocks than are resident at once
        (65, 4, 32, 2, 17),  # a last block that is not full
        (10**9, 4, 32, 2, 2 * 132 * 32),  # so many that blocks take further units
        (10**9, 4, 1, 3, 3 * 132),
        (10**9, 1, 0, 2, 10**9),  # no waves: a block for each
    ],
)
def test_the_grid_follows_from_units_and_occupancy(stub, kernel, units, per_block, waves, occupancy, grid):
    stub.set_occupancy(occupancy)
    bound = bind(kernel, units=units, units_per_block=per_block, waves=waves)
    assert _engine.gpu_grid(bound) == (grid, occupancy)


def test_a_bound_plan_needs_its_kernel_object_no_more(stub, array):
    bound = bind(_engine.load_kernel(0, ELF, "kernel"))
    others = [_engine.load_kernel(1, ELF, "kernel") for _ in range(8)]
    _engine.run(bound, array(), None)
    assert stub.launched.context == CONTEXTS[0]
    assert len(others) == 8


def test_nothing_to_do_is_no_launch(stub, kernel, array):
    bound = bind(kernel, shape=(0, 1000), units=0)
    stub.forget_calls()
    assert _engine.run(bound, array((0, 1000)), None).shape == (0, 1000)
    assert stub.calls == []


def test_clusters_and_cooperative_launches_go_by_the_extensible_launch(stub, kernel, array):
    bound = bind(kernel, cluster=4, units=10, units_per_block=1, shared_bytes=1024)
    stub.forget_calls()
    _engine.run(bound, array(), None)
    assert "cuLaunchKernelEx" in stub.calls
    assert (stub.launched.cluster, stub.launched.cooperative) == (4, 0)
    assert list(stub.launched.grid) == [12, 1, 1]  # whole clusters
    assert stub.launched.shared_bytes == 1024

    _engine.run(bind(kernel, cooperative=True), array(), None)
    assert (stub.launched.cluster, stub.launched.cooperative) == (1, 1)


def test_waves_of_clusters_are_what_fits_the_whole_gpu(stub, kernel, array):
    bound = bind(kernel, cluster=16, units=10**6, units_per_block=1, waves=1)
    assert _engine.gpu_grid(bound)[0] == 33 * 16
    _engine.run(bound, array(), None)
    assert stub.function_attribute(stub.launched.function, 14) == 1  # clusters of more than 8 have to be allowed


def test_shared_memory_beyond_48_kib_is_asked_for_once(stub, kernel, array):
    bound = bind(kernel, shared_bytes=200_000)
    assert stub.calls.count("cuFuncSetAttribute") == 1
    bind(kernel, shared_bytes=100_000)
    bind(kernel, shared_bytes=48 << 10)
    assert "cuFuncSetAttribute" not in stub.calls
    _engine.run(bound, array(), None)
    assert stub.launched.shared_bytes == 200_000
    assert stub.function_attribute(stub.launched.function, 8) == 200_000


def test_what_needs_no_asking_is_static_and_dynamic_memory_together(stub, kernel):
    assert kernel.static_shared_bytes == 512
    bind(kernel, shared_bytes=(48 << 10) - 512)
    assert "cuFuncSetAttribute" not in stub.calls
    bind(kernel, shared_bytes=48 << 10)
    assert stub.calls.count("cuFuncSetAttribute") == 1


def test_attributes_of_a_kernel(kernel):
    assert (kernel.ordinal, kernel.registers, kernel.local_bytes, kernel.max_threads) == (0, 40, 0, 1024)


def test_first_calls_are_outside_a_capture(stub):
    bind(_engine.load_kernel(0, ELF, "kernel"), shared_bytes=100_000)
    calls = stub.calls
    assert "cuModuleLoadData" in calls  # the stub has another name for it in any but relaxed mode
    assert calls.count("cuThreadExchangeStreamCaptureMode") == 4  # in and out, of the loading and of the binding


def test_a_job_that_the_kernel_does_not_take_is_refused(stub):
    stub.set_parameter_bytes(8 * 7)
    kernel = _engine.load_kernel(0, ELF, "kernel")
    bind(kernel)
    with pytest.raises(ValueError, match="the kernel takes 56 bytes, the plan has 64"):
        bind(kernel, words=(*WORDS, 1))


@pytest.mark.parametrize(
    "changes",
    [{"threads": 0}, {"cluster": 0}, {"units": -1}, {"units_per_block": 0}, {"waves": -1}, {"words": (0,) * 511}],
)
def test_geometry_that_makes_no_sense_is_refused(kernel, changes):
    with pytest.raises(ValueError, match="launch: "):
        bind(kernel, **changes)


def test_more_blocks_than_a_grid_holds_are_refused(kernel):
    with pytest.raises(ValueError, match="the plan needs waves"):
        bind(kernel, units=1 << 31, units_per_block=1, waves=0)


class TestMakers:
    """Results that the array's library makes: make(x, *positional, **keywords), then finish(made, keep)."""

    def test_the_library_gets_x_and_the_fixed_arguments(self, stub, kernel, array, fake_gpu):
        seen = []

        def make(*args, **keywords):
            seen.append((args, keywords))
            return fake_gpu.Array((64,), dtype="float16")

        bound = bind(
            kernel,
            result_dtype=2,
            make=make,
            positional=((64,), "a"),
            keyword_names=("dtype", "b"),
            keyword_values=("float16", 2),
        )
        x = array()
        y = _engine.run(bound, x, None)
        assert seen == [((x, (64,), "a"), {"dtype": "float16", "b": 2})]
        assert stub.words(2) == (x.address, y.address)

    def test_finish_has_the_last_word(self, kernel, array, fake_gpu):
        made = fake_gpu.Array((64, 1000))
        bound = bind(kernel, make=lambda x: made, finish=lambda y, keep: ("finished", y, keep))
        assert _engine.run(bound, array(), None) == ("finished", made, None)
        out = array()
        assert _engine.run(bound, array(), out) is out

    @pytest.mark.parametrize("wrong", ["device", "dtype", "kind", "address"])
    def test_an_array_of_another_kind_is_an_error(self, kernel, array, fake_gpu, wrong):
        made = {
            "device": fake_gpu.Array((64, 1000), device=1),
            "dtype": fake_gpu.Array((64, 1000), dtype="float64"),
            "kind": "what a mode made of it",
            "address": fake_gpu.Array((64, 1000), offset=4),
        }[wrong]
        with pytest.raises(TypeError, match="made an array of another kind"):
            _engine.run(bind(kernel, make=lambda x: made), array(), None)

    def test_its_exceptions_pass(self, stub, kernel, array):
        def make(x):
            raise MemoryError("the library's own words")

        bound = bind(kernel, make=make)
        stub.forget_calls()
        with pytest.raises(MemoryError, match="the library's own words"):
            _engine.run(bound, array(), None)
        assert stub.calls == []


def test_no_memory_for_a_result_is_a_memory_error(kernel, array, fake_gpu):
    bound, x = bind(kernel), array()
    fake_gpu.fail_allocation(True)
    try:
        with pytest.raises(MemoryError, match="no memory on the fake GPU"):
            _engine.run(bound, x, None)
    finally:
        fake_gpu.fail_allocation(False)


def test_two_threads_do_not_share_their_arguments(stub, kernel, array):
    """The words of a launch are copied before the addresses are put in."""
    bound = bind(kernel)
    x = [array() for _ in range(2)]
    out = [array() for _ in range(2)]
    wrong = []

    def call(i):
        for _ in range(2000):
            if _engine.run(bound, x[i], out[i]) is not out[i]:
                wrong.append(i)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert stub.words(7)[:2] in [(x[i].address, out[i].address) for i in range(2)]
