#include "calls.h"

#include <pthread.h>

#include <array>
#include <bit>
#include <exception>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "isa.h"

namespace onepass {
namespace {

// Work of more bytes than this (about 50 us) runs without the GIL.
constexpr std::int64_t kReleaseBytes = std::int64_t{256} << 10;
// Calls are remembered until there are this many; then all are forgotten. A program with that many shapes replans.
constexpr std::size_t kMostRemembered = 4096;

// The first six in the order of the engine's Algorithm; the others are a GPU's.
constexpr const char* kAlgorithmNames[] = {"registers",      "row",        "online",    "split",  "strided",
                                           "packed",         "warp",       "warp_smem", "block",  "block_smem",
                                           "block_uncached", "three_pass", "cluster",   "stream", "strided_split"};

// In the order of Form.
constexpr const char* kFormNames[] = {"usual", "transposed", "folded", "across", "columns", "wide", "gathered"};

thread_local const char* last_run = "";
thread_local Form form_of_last = Form::usual;
struct {
    int kind = -1;
    ThreadLender lender = nullptr;
} lending;

// What a plan depends on, as one flat sequence of integers, and its hash, which grows with it: hashed afterwards it
// would be as much work as all the rest of a key.
class Key {
   public:
    void add(std::int64_t v) {
        values_[size_++] = v;
        hash_ = std::rotl(hash_ ^ static_cast<std::uint64_t>(v), 29) * kOdd;
    }
    void add(const ArrayView& v) {
        add(std::int64_t{v.device + 1} << 16 | static_cast<std::int64_t>(v.dtype) << 8 | v.ndim);
        for (int i = 0; i < v.ndim; ++i) add(v.shape[i]);
        for (int i = 0; i < v.ndim; ++i) add(v.strides[i]);
        // Kernels for GPUs are made for an alignment.
        if (v.device != kCpu) add(alignment_of(v.data));
    }
    std::string_view bytes() const {
        return {reinterpret_cast<const char*>(values_.data()), size_ * sizeof(std::int64_t)};
    }
    std::size_t hash() const { return hash_ ^ hash_ >> 32; }

   private:
    static constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;  // the golden ratio's bits

    std::array<std::int64_t, 10 * kMostAxes> values_;  // four arrays, dims, and what is not per axis
    std::size_t size_ = 0;
    std::uint64_t hash_ = 0;
};

// A key that is remembered: its bytes, of which there are far fewer than a Key has room for.
struct KeptKey {
    std::string bytes;
    std::size_t hash;
};

struct Hash {
    using is_transparent = void;
    std::size_t operator()(const Key& key) const { return key.hash(); }
    std::size_t operator()(const KeptKey& key) const { return key.hash; }
};

struct Same {
    using is_transparent = void;
    bool operator()(const KeptKey& a, const KeptKey& b) const { return a.bytes == b.bytes; }
    bool operator()(const KeptKey& a, const Key& b) const { return a.bytes == b.bytes(); }
    bool operator()(const Key& a, const KeptKey& b) const { return b.bytes == a.bytes(); }
};

// Changed under the GIL and the mutex, so read under either. Never destroyed: what it holds may refer to Python
// objects, and outlive the interpreter.
using Remembered = std::unordered_map<KeptKey, std::shared_ptr<const Bound>, Hash, Same>;
auto& remembered = *new Remembered;
std::mutex& remembered_mutex = *[] {
    static auto* mutex = new std::mutex;
    pthread_atfork([] { mutex->lock(); }, [] { mutex->unlock(); }, [] { mutex->unlock(); });
    return mutex;
}();
std::vector<std::pair<PyObject*, DType>> dtype_objects;

bool add_int(Key& key, PyObject* number) {
    if (!PyLong_CheckExact(number)) return false;
    const long long v = PyLong_AsLongLong(number);
    if (v == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    key.add(v);
    return true;
}

bool add_dims(Key& key, PyObject* dims) {
    if (dims == Py_None) {
        key.add(-1);
        return true;
    }
    if (!PyTuple_CheckExact(dims)) {
        key.add(0);
        return add_int(key, dims);
    }
    const Py_ssize_t n = PyTuple_Size(dims);
    if (n > kMostAxes) return false;
    key.add(n + 1);
    for (Py_ssize_t i = 0; i < n; ++i) {
        if (!add_int(key, PyTuple_GetItem(dims, i))) return false;
    }
    return true;
}

bool add_dtype(Key& key, PyObject* dtype) {
    if (dtype == Py_None) {
        key.add(-1);
        return true;
    }
    for (const auto& [object, known] : dtype_objects) {
        if (object != dtype) continue;
        key.add(static_cast<std::int64_t>(known));
        return true;
    }
    return false;
}

bool add_algorithm(Key& key, PyObject* algorithm) {
    if (algorithm == Py_None) {
        key.add(-1);
        return true;
    }
    if (!PyUnicode_Check(algorithm)) return false;
    for (std::size_t i = 0; i < std::size(kAlgorithmNames); ++i) {
        if (PyUnicode_CompareWithASCIIString(algorithm, kAlgorithmNames[i]) != 0) continue;
        key.add(static_cast<std::int64_t>(i));
        return true;
    }
    return false;
}

bool add_out(Key& key, PyObject* out, ArrayView& view) {
    if (!view_array(out, view) || !view.writable) return false;
    key.add(view.kind);
    key.add(view);
    return true;
}

// Anything else is as true as Python finds it, which its address does not say.
bool add_flags(Key& key, PyObject* keepdim, std::int64_t others) {
    if (keepdim != Py_True && keepdim != Py_False) return false;
    key.add(others | (keepdim == Py_True ? 1 : 0));
    return true;
}

// The key of a call, and views of its arrays. False if it is not one that can be hot.
bool key_of(PyObject* const* args, Key& key, ArrayView& x, ArrayView& out, bool& has_out) {
    if (!view_array(args[1], x)) return false;
    has_out = args[5] != Py_None;
    if (!add_int(key, args[0])) return false;
    if (!add_flags(key, args[3], std::int64_t{x.kind} << 2 | (has_out ? 2 : 0))) return false;
    key.add(x);
    if (!add_dims(key, args[2]) || !add_dtype(key, args[4]) || !add_algorithm(key, args[6])) return false;
    return !has_out || add_out(key, args[5], out);
}

// The inputs of a gradient, and where its result goes.
struct GradientViews {
    ArrayView x, second, third, out;
    bool has_third, has_out;

    Sources sources() const { return {&x, &second, has_third ? &third : nullptr}; }
};

bool key_of_gradient(PyObject* const* args, Key& key, GradientViews& v) {
    v.has_third = args[3] != Py_None;
    v.has_out = args[7] != Py_None;
    if (!view_array(args[1], v.x) || !view_array(args[2], v.second)) return false;
    if (v.has_third && !view_array(args[3], v.third)) return false;
    if (!add_int(key, args[0])) return false;
    const std::int64_t has = (v.has_out ? 2 : 0) | (v.has_third ? 4 : 0);
    if (!add_flags(key, args[5], std::int64_t{v.x.kind} << 3 | has)) return false;
    key.add(v.x);
    key.add(v.second.kind);
    key.add(v.second);
    if (v.has_third) {
        key.add(v.third.kind);
        key.add(v.third);
    }
    if (!add_dims(key, args[4]) || !add_dtype(key, args[6]) || !add_algorithm(key, args[8])) return false;
    return !v.has_out || add_out(key, args[7], v.out);
}

void keep(const Key& key, std::shared_ptr<const Bound> bound) {
    Remembered forgotten;  // dies after the lock: what it holds may run Python, which may call us
    const std::lock_guard lock(remembered_mutex);
    if (remembered.size() >= kMostRemembered) remembered.swap(forgotten);
    remembered[{std::string(key.bytes()), key.hash()}].swap(bound);
}

void run_kernel(const CpuCall& call, const Sources& in, void* y) {
    const BorrowedThreads threads(in.x->kind == lending.kind ? lending.lender : nullptr);
    const Addresses from{in.x->data, in.second ? in.second->data : nullptr, in.third ? in.third->data : nullptr};
    if (call.job.is_gathered()) {
        form_of_last = kernels().gathered(call.job, from, y);
        return;
    }
    if (is_gradient(call.job.op)) {
        form_of_last = (call.tiles ? kernels().gradient_tiles : kernels().gradient_rows)(call.job, from, y);
        return;
    }
    form_of_last = (call.tiles ? kernels().tiles : kernels().rows)(call.job, in.x->data, y);
}

PyObject* run_cpu(const CpuCall& call, const Result& result, const Sources& in, PyObject* out,
                  const ArrayView* out_view) {
    void* y;
    if (out) {
        Py_INCREF(out);
        y = out_view->data;
    } else {
        out = new_array(*in.x, result.dtype, result.ndim, result.shape, &y);
        if (!out) return nullptr;
    }
    last_run = kAlgorithmNames[static_cast<std::size_t>(call.job.algorithm)];
    PyThreadState* released = call.bytes > kReleaseBytes ? PyEval_SaveThread() : nullptr;
    bool failed = false;
    try {
        run_kernel(call, in, y);
    } catch (const std::exception&) {  // scratch memory: the only thing a kernel asks for
        failed = true;
    }
    if (released) PyEval_RestoreThread(released);
    if (failed) {
        Py_DECREF(out);
        PyErr_Format(PyExc_MemoryError, "onepass: no scratch memory for rows of %lld elements",
                     static_cast<long long>(call.job.length));
        return nullptr;
    }
    return out;
}

}  // namespace

PyObject* run_bound(const Bound& bound, const Sources& in, PyObject* out, const ArrayView* out_view) {
    if (out && !may_write(*out_view)) return nullptr;
    if (const auto* cpu = std::get_if<CpuCall>(&bound.how)) return run_cpu(*cpu, bound.result, in, out, out_view);
    const auto& gpu = std::get<GpuCall>(bound.how);
    last_run = gpu.algorithm;
    return run_gpu(gpu, bound.result, in, out, out ? out_view : nullptr);
}

namespace {

// A call whose plan is remembered; None: it is not, or somebody watches.
PyObject* run_remembered(const Key& key, const ArrayView& x, PyObject* out, const ArrayView& out_view) {
    if (is_watched(x)) Py_RETURN_NONE;
    const auto found = remembered.find(key);
    if (found == remembered.end()) Py_RETURN_NONE;
    // Exactly in place is fine: every kernel has read an element before it writes it.
    if (out && overlap_of(x, out_view) == Overlap::some) Py_RETURN_NONE;
    const std::shared_ptr<const Bound> bound = found->second;  // keeps it while the GIL is released
    return run_bound(*bound, {&x}, out, &out_view);
}

}  // namespace

PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "call(op, x, dim, keepdim, dtype, out, algorithm)");
        return nullptr;
    }
    Key key;
    ArrayView x, out;
    bool has_out;
    if (!key_of(args, key, x, out, has_out)) {
        if (x.requires_grad) return record(args);
        Py_RETURN_NONE;
    }
    return run_remembered(key, x, has_out ? args[5] : nullptr, out);
}

PyObject* call_unrecorded(PyObject* const* args) {
    Key key;
    ArrayView x, out;
    bool has_out;
    {
        const DataOnly views;
        if (!key_of(args, key, x, out, has_out)) Py_RETURN_NONE;
    }
    return run_remembered(key, x, has_out ? args[5] : nullptr, out);
}

PyObject* call_gradient(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 9) {
        PyErr_SetString(PyExc_TypeError, "call_gradient(op, x, second, third, dim, keepdim, dtype, out, algorithm)");
        return nullptr;
    }
    Key key;
    GradientViews v;
    if (!key_of_gradient(args, key, v) || is_watched(v.x)) Py_RETURN_NONE;
    const auto found = remembered.find(key);
    if (found == remembered.end()) Py_RETURN_NONE;
    const Sources in = v.sources();
    if (v.has_out) {
        // In place of one input, and clear of the others.
        for (const ArrayView* source : {in.x, in.second, in.third}) {
            if (source && overlap_of(*source, v.out) == Overlap::some) Py_RETURN_NONE;
        }
    }
    const std::shared_ptr<const Bound> bound = found->second;
    return run_bound(*bound, in, v.has_out ? args[7] : nullptr, &v.out);
}

PyObject* call_memory(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    const DataOnly views;
    return call(self, args, count);
}

PyObject* call_gradient_memory(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    const DataOnly views;
    return call_gradient(self, args, count);
}

PyObject* call_data(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "call_data(function, *args)");
        return nullptr;
    }
    const DataOnly views;
    return PyObject_Vectorcall(args[0], args + 1, static_cast<std::size_t>(count - 1), nullptr);
}

void remember(PyObject* const* args, std::shared_ptr<const Bound> bound) {
    Key key;
    ArrayView x, out;
    bool has_out;
    if (key_of(args, key, x, out, has_out)) keep(key, std::move(bound));
}

void remember_gradient(PyObject* const* args, std::shared_ptr<const Bound> bound) {
    Key key;
    GradientViews v;
    if (key_of_gradient(args, key, v)) keep(key, std::move(bound));
}

void forget_all() {
    Remembered forgotten;
    const std::lock_guard lock(remembered_mutex);
    remembered.swap(forgotten);
}

std::shared_ptr<const Bound> find_routed(const RoutedCall& call) {
    const ArrayView& x = *call.in.x;
    Key key;
    key.add(static_cast<std::int64_t>(call.op));
    if (const ArrayView* second = call.in.second) {
        key.add(std::int64_t{x.kind} << 3 | 1);
        key.add(x);
        key.add(second->kind);
        key.add(*second);
    } else {
        key.add(std::int64_t{x.kind} << 2 | 1);
        key.add(x);
    }
    key.add(0);  // one dim
    key.add(call.dim);
    key.add(call.dtype ? static_cast<std::int64_t>(*call.dtype) : -1);
    key.add(-1);  // no algorithm
    const std::lock_guard lock(remembered_mutex);
    const auto found = remembered.find(key);
    return found == remembered.end() ? nullptr : found->second;
}

bool run_into(const Bound& bound, const Sources& in, void* y) {
    if (const auto* gpu = std::get_if<GpuCall>(&bound.how)) {
        last_run = gpu->algorithm;
        return launch_gpu(*gpu, in, y);
    }
    const auto& cpu = std::get<CpuCall>(bound.how);
    last_run = kAlgorithmNames[static_cast<std::size_t>(cpu.job.algorithm)];
    try {
        run_kernel(cpu, in, y);
        return true;
    } catch (const std::exception&) {  // scratch memory
        return false;
    }
}

void borrow_threads(int kind, ThreadLender lender) { lending = {kind, lender}; }

void register_dtype(PyObject* object, DType dtype) {
    Py_INCREF(object);
    dtype_objects.emplace_back(object, dtype);
}

const char* last_algorithm() { return last_run; }
const char* last_form() { return kFormNames[static_cast<std::size_t>(form_of_last)]; }

const char* algorithm_name(const std::string& name) {
    static auto& names = *new std::set<std::string>;
    return names.insert(name).first->c_str();
}

}  // namespace onepass
