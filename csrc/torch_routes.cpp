#include "torch_routes.h"

#include <atomic>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "calls.h"
#include "memory.h"

namespace onepass {
namespace {

using torch_shim::Handle;

struct Slot {
    PyObject* missed = nullptr;
    std::atomic<std::int64_t> served{0};
};

constexpr struct {
    Op op;
    const char* name;
} kOperators[] = {{Op::softmax, "_softmax"},
                  {Op::log_softmax, "_log_softmax"},
                  {Op::softmax_backward, "_softmax_backward_data"},
                  {Op::log_softmax_backward, "_log_softmax_backward_data"}};
constexpr int kOperatorCount = std::size(kOperators);
constexpr const char* kKeys[] = {"CPU", "CUDA"};
static_assert(kRoutes == kOperatorCount * std::size(kKeys));

Slot slots[kRoutes];
TensorKind tensors;  // set before a kernel is put in place

const torch_shim::Shim& shim() { return *torch_shim::find(); }

class Tensor {
   public:
    Tensor() = default;
    explicit Tensor(Handle handle) : handle_(handle) {}
    explicit Tensor(std::uint64_t word) : handle_(reinterpret_cast<Handle>(word)) {}
    Tensor(Tensor&& other) noexcept : handle_(other.take()) {}
    Tensor& operator=(Tensor&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Tensor() {
        if (handle_) shim().release(handle_);
    }
    explicit operator bool() const { return handle_ != nullptr; }
    Handle get() const { return handle_; }
    Handle take() { return std::exchange(handle_, nullptr); }
    std::uint64_t take_word() { return reinterpret_cast<std::uint64_t>(take()); }

   private:
    Handle handle_ = nullptr;
};

bool dtype_of(std::int32_t number, DType& dtype) {
    for (int i = 0; i < 4; ++i) {
        if (shim().dtypes[i] != number) continue;
        dtype = static_cast<DType>(i);
        return true;
    }
    return false;
}

// False for what the kernels do not read.
bool view_handle(const Tensor& tensor, ArrayView& view) {
    const torch_shim::Shim& s = shim();
    const void* data;
    std::int64_t ndim, *sizes, *strides;
    std::int32_t dtype, device_type, device;
    if (s.ndim(tensor.get(), &ndim) || ndim > kMostAxes || s.dtype(tensor.get(), &dtype) ||
        !dtype_of(dtype, view.dtype) || s.sizes(tensor.get(), &sizes) || s.strides(tensor.get(), &strides) ||
        s.device_type(tensor.get(), &device_type) || s.device_index(tensor.get(), &device) ||
        s.data(tensor.get(), &data) || !data)
        return false;
    view.object = nullptr;
    view.data = static_cast<char*>(const_cast<void*>(data));
    view.ndim = static_cast<int>(ndim);
    view.shape = sizes;
    for (int i = 0; i < view.ndim; ++i) view.strides[i] = strides[i];
    view.writable = true;
    view.device = device_type == torch_shim::kCpu ? kCpu : device;
    view.kind = tensors.number;
    view.api = tensors.api;
    view.producer = nullptr;
    return true;
}

void give_back(void* block, void*) { give_block(block); }

// Memory for a result, as arrays.cpp takes it. Null: not here. A CPU's index is -1 to torch too.
Tensor new_tensor(const Result& result, int device, void** data) {
    std::size_t bytes;
    if (!count_bytes(result.dtype, result.ndim, result.shape, bytes)) return Tensor{};
    std::int64_t strides[kMostAxes];
    std::int64_t size = 1;
    for (int i = result.ndim - 1; i >= 0; --i) {
        strides[i] = size;
        size *= result.shape[i];
    }
    const std::int32_t dtype = shim().dtypes[static_cast<int>(result.dtype)];
    Handle made = nullptr;
    if (device != kCpu || bytes < kSmallestBlock) {
        const std::int32_t type = device == kCpu ? torch_shim::kCpu : torch_shim::kCuda;
        const void* address;
        if (shim().empty(result.ndim, result.shape, strides, dtype, type, device, &made) != 0) return Tensor{};
        Tensor tensor(made);
        if (shim().data(made, &address) != 0) return Tensor{};
        *data = const_cast<void*>(address);
        return tensor;
    }
    void* block = shim().from_blob ? take_block(bytes) : nullptr;
    if (!block) return Tensor{};
    if (shim().from_blob(block, result.ndim, result.shape, strides, 0, dtype, torch_shim::kCpu, device, &made,
                         torch_shim::kStrided, nullptr, 0, give_back, nullptr) != 0) {
        give_block(block);
        return Tensor{};
    }
    *data = block;
    return Tensor(made);
}

// The result of a call that has been planned. Null: it has not, or something failed, which Python will run into too and
// can say.
Tensor serve(const RoutedCall& call) {
    const std::shared_ptr<const Bound> bound = find_routed(call);
    if (!bound) return Tensor{};
    void* y;
    Tensor result = new_tensor(bound->result, call.in.x->device, &y);
    if (!result || !run_into(*bound, call.in, y)) return Tensor{};
    return result;
}

class Gil {
   public:
    Gil() : state_(PyGILState_Ensure()) {}
    ~Gil() { PyGILState_Release(state_); }
    Gil(const Gil&) = delete;
    Gil& operator=(const Gil&) = delete;

   private:
    PyGILState_STATE state_;
};

// A tuple of capsules, to which the handles then belong; null with a Python exception set, and the handles as they
// were.
PyObject* capsules_of(Tensor* tensors, int count) {
    PyObject* capsules = PyTuple_New(count);
    for (int i = 0; capsules && i < count; ++i) {
        PyObject* capsule = PyCapsule_New(tensors[i].get(), nullptr, nullptr);
        if (!capsule) {
            Py_DECREF(capsules);
            return nullptr;
        }
        PyTuple_SetItem(capsules, i, capsule);
    }
    for (int i = 0; capsules && i < count; ++i) tensors[i].take();
    return capsules;
}

Handle call_python(const Slot& slot, Tensor* tensors, int count, std::int64_t dim, std::int64_t other) {
    std::int64_t ndim;
    if (shim().ndim(tensors[count - 1].get(), &ndim) == 0) torch_shim::check_dim(dim, ndim);
    const Gil gil;
    PyObject* missed = slot.missed;
    Py_INCREF(missed);  // while it runs, another thread may put another in its place
    PyObject* capsules = capsules_of(tensors, count);
    PyObject* made = capsules ? PyObject_CallFunction(missed, "OLL", capsules, dim, other) : nullptr;
    Py_XDECREF(capsules);
    Py_DECREF(missed);
    void* handle = made ? PyCapsule_GetPointer(made, nullptr) : nullptr;
    Py_XDECREF(made);
    if (!handle) torch_shim::throw_python_error();
    return static_cast<Handle>(handle);
}

void finish(Slot& slot, std::uint64_t* stack, Tensor* tensors, int count, Tensor result, std::int64_t dim,
            std::int64_t other) {
    if (result) {
        slot.served.fetch_add(1, std::memory_order_relaxed);
        stack[0] = result.take_word();
    } else {
        stack[0] = reinterpret_cast<std::uint64_t>(call_python(slot, tensors, count, dim, other));
    }
}

// (x, dim, half_to_float) -> y
template <int number>
void forward(std::uint64_t* stack, std::uint64_t, std::uint64_t) {
    Tensor x(stack[0]);
    const auto dim = static_cast<std::int64_t>(stack[1]);
    const bool half_to_float = (stack[2] & 1) != 0;
    ArrayView view;
    Tensor y;
    if (view_handle(x, view)) {
        std::optional<DType> dtype;
        if (half_to_float) dtype = DType::f32;
        y = serve({kOperators[number % kOperatorCount].op, {&view}, dim, dtype});
    }
    finish(slots[number], stack, &x, 1, std::move(y), dim, half_to_float);
}

// (grad, output, dim, input_dtype) -> grad_input
template <int number>
void backward(std::uint64_t* stack, std::uint64_t, std::uint64_t) {
    Tensor given[] = {Tensor(stack[0]), Tensor(stack[1])};
    const auto dim = static_cast<std::int64_t>(stack[2]);
    const auto dtype_number = static_cast<std::int32_t>(stack[3]);
    ArrayView grad, output;
    DType dtype;
    Tensor dx;
    if (view_handle(given[0], grad) && view_handle(given[1], output) && dtype_of(dtype_number, dtype))
        dx = serve({kOperators[number % kOperatorCount].op, {&output, &grad}, dim, dtype});
    finish(slots[number], stack, given, 2, std::move(dx), dim, dtype_number);
}

constexpr torch_shim::BoxedKernel kKernels[kRoutes] = {forward<0>, forward<1>, backward<2>, backward<3>,
                                                       forward<4>, forward<5>, backward<6>, backward<7>};

}  // namespace

bool can_route() { return torch_shim::find() && torch_shim::can_throw_python_error(); }

std::vector<RouteName> native_routes() {
    std::vector<RouteName> names;
    for (int i = 0; i < kRoutes; ++i)
        names.emplace_back(std::string("aten::") + kOperators[i % kOperatorCount].name, kKeys[i / kOperatorCount]);
    return names;
}

RoutedLibrary::RoutedLibrary(const std::string& key, PyObject* tensor_type) {
    if (!tensor_kind(tensor_type, tensors) ||
        shim().open_library("aten", key.c_str(), __FILE__, __LINE__, &library_) != 0)
        throw std::runtime_error("install: torch opens no library for kernels on " + key);
}

RoutedLibrary::~RoutedLibrary() { close(); }

void RoutedLibrary::close() {
    if (library_) shim().close_library(library_);
    library_ = nullptr;
}

void RoutedLibrary::route(int number, PyObject* missed) {
    Slot& slot = slots[number];
    Py_INCREF(missed);
    Py_XDECREF(std::exchange(slot.missed, missed));
    slot.served = 0;
    const char* name = kOperators[number % kOperatorCount].name;
    if (shim().implement(library_, name, kKernels[number]) != 0)
        throw std::runtime_error(std::string("install: torch takes no kernel for aten::") + name);
}

std::int64_t natively_served(int number) { return slots[number].served; }

}  // namespace onepass
