#include "device_array.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cuda_driver.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onepass {
namespace {

constexpr unsigned kNoTiming = 2;  // CU_EVENT_DISABLE_TIMING

// Makes `stream` wait, on the GPU, for what the legacy default stream has been given so far.
void order_after_legacy_stream(int device, cuda::Stream stream) {
    const cuda::Driver& d = cuda::driver();
    const cuda::Scope scope(cuda::primary_context(device));
    cuda::check(scope.code(), "make the GPU current");
    cuda::Event event;
    cuda::check(d.create_event(&event, kNoTiming), "create an event");
    cuda::Status code = d.record_event(event, cuda::legacy_stream());
    if (code == cuda::kSuccess) code = d.wait_event(stream, event, 0);
    d.destroy_event(event);  // takes effect once it is reached
    cuda::check(code, "order two streams");
}

}  // namespace

struct DeviceArray::Block {
    cuda::Address address = 0;
    cuda::Context context = nullptr;
    int device;
    DType dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    nb::object kept;

    ~Block() {
        if (!address || cuda::forked()) return;
        // Waits for the GPU, which neither cuMemFreeAsync nor a pool would do: who used the memory last, and on which
        // stream, is not known here. What it waits for may need the GIL.
        const nb::gil_scoped_release release;
        const cuda::OutsideCapture outside(cuda::ready_driver());
        const cuda::Scope scope(context);
        if (scope.code() == cuda::kSuccess) cuda::ready_driver().free(address);
    }
};

DeviceArray::DeviceArray(nb::handle like, const std::vector<std::int64_t>& shape, int dtype)
    : block_(std::make_shared<Block>()) {
    ArrayView x;
    if (!view_array(like.ptr(), x) || x.device == kCpu || dtype < 0 || dtype > 3 || shape.size() > kMostAxes)
        throw nb::value_error("DeviceArray(like, shape, dtype): an array on a GPU, its shape, the number of a dtype");
    Block& b = *block_;
    b.device = x.device;
    b.dtype = static_cast<DType>(dtype);
    b.shape = shape;
    b.strides.resize(shape.size());
    std::int64_t size = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
        b.strides[i] = size;
        size *= shape[i];
    }
    if (size == 0) return;
    const cuda::Driver& d = cuda::driver();
    b.context = cuda::primary_context(b.device);
    const cuda::Scope scope(b.context);
    cuda::check(scope.code(), "make the GPU current");
    const auto bytes = static_cast<std::size_t>(size * size_of(b.dtype));
    const cuda::OutsideCapture outside(d);
    const cuda::Status code = d.allocate(&b.address, bytes);
    if (code != cuda::kSuccess) throw cuda::Failure(code, "allocate a result of " + std::to_string(bytes) + " bytes");
}

void DeviceArray::view(ArrayView& view) const {
    view.data = reinterpret_cast<char*>(block_->address);
    view.dtype = block_->dtype;
    view.ndim = static_cast<int>(block_->shape.size());
    view.shape = block_->shape.data();
    std::copy(block_->strides.begin(), block_->strides.end(), view.strides);
    view.writable = true;
    view.device = block_->device;
    view.api = nullptr;
}

int DeviceArray::device() const { return block_->device; }
void DeviceArray::keep(nb::object object) { block_->kept = std::move(object); }

nb::object DeviceArray::capsule(std::optional<std::intptr_t> stream) const {
    // None and 1 are the legacy default stream itself, -1 asks for no order.
    if (stream && *stream > 1) order_after_legacy_stream(block_->device, reinterpret_cast<cuda::Stream>(*stream));
    struct Managed {
        dlpack::UnversionedTensor tensor;
        std::shared_ptr<Block> block;
    };
    auto* managed = new Managed{{}, block_};
    Block& b = *block_;
    managed->tensor = {.tensor = {reinterpret_cast<void*>(b.address),
                                  {dlpack::kCuda, b.device},
                                  static_cast<std::int32_t>(b.shape.size()),
                                  dlpack_dtype(b.dtype),
                                  b.shape.data(),
                                  b.strides.data(),
                                  0},
                       .context = managed,
                       .deleter = [](dlpack::UnversionedTensor* tensor) {
                           auto* gone = static_cast<Managed*>(tensor->context);
                           if (!nb::is_alive()) return;
                           const nb::gil_scoped_acquire gil;  // the library frees on any thread; `kept` is Python's
                           delete gone;
                       }};
    PyObject* capsule = PyCapsule_New(&managed->tensor, "dltensor", [](PyObject* unused) {
        if (!PyCapsule_IsValid(unused, "dltensor")) return;  // consumed
        auto* tensor = static_cast<dlpack::UnversionedTensor*>(PyCapsule_GetPointer(unused, "dltensor"));
        tensor->deleter(tensor);
    });
    if (!capsule) {
        delete managed;
        throw nb::python_error();
    }
    return nb::steal(capsule);
}

void define_device_array(nb::module_& m) {
    nb::class_<DeviceArray>(m, "DeviceArray")
        .def(nb::init<nb::handle, const std::vector<std::int64_t>&, int>(), "like"_a, "shape"_a, "dtype"_a)
        .def("keep", &DeviceArray::keep, "object"_a.none())
        .def(
            "__dlpack__",
            [](const DeviceArray& a, std::optional<std::intptr_t> stream, nb::object, nb::object, nb::object) {
                return a.capsule(stream);
            },
            nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(), "dl_device"_a = nb::none(),
            "copy"_a = nb::none())
        .def("__dlpack_device__", [](const DeviceArray& a) { return std::pair<int, int>(dlpack::kCuda, a.device()); });
}

}  // namespace onepass
