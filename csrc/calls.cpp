#include "calls.h"

#include <array>
#include <exception>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "isa.h"

namespace onepass {
namespace {

// Work of more bytes than this (about 50 us) runs without the GIL.
constexpr std::int64_t kReleaseBytes = std::int64_t{256} << 10;
// Calls are remembered until there are this many; then all are forgotten. A program with that many shapes replans.
constexpr std::size_t kMostRemembered = 4096;

// The first six in the order of the engine's Algorithm; the others are a GPU's.
constexpr const char* kAlgorithmNames[] = {"registers",  "row",     "online", "split",        "strided",
                                           "packed",     "warp",    "block",  "block_smem",   "block_uncached",
                                           "three_pass", "cluster", "stream", "strided_split"};

thread_local const char* last_run = "";

// What a plan depends on, as one flat sequence of integers.
class Key {
   public:
    void add(std::int64_t v) { values_[size_++] = v; }
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

   private:
    std::array<std::int64_t, 6 * kMostAxes> values_;
    std::size_t size_ = 0;
};

struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view v) const { return std::hash<std::string_view>{}(v); }
};

// Under the GIL. Never destroyed: what it holds may refer to Python objects, and outlive the interpreter.
auto& remembered = *new std::unordered_map<std::string, std::shared_ptr<const Bound>, Hash, std::equal_to<>>;
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

// The key of a call, and views of its arrays. False if it is not one that can be hot.
bool key_of(PyObject* const* args, Key& key, ArrayView& x, ArrayView& out, bool& has_out) {
    if (!view_array(args[1], x)) return false;
    has_out = args[5] != Py_None;
    if (!add_int(key, args[0])) return false;
    key.add(std::int64_t{x.kind} << 2 | (args[3] == Py_True ? 1 : 0) | (has_out ? 2 : 0));
    key.add(x);
    if (!add_dims(key, args[2]) || !add_dtype(key, args[4]) || !add_algorithm(key, args[6])) return false;
    if (!has_out) return true;
    if (!view_array(args[5], out) || !out.writable) return false;
    key.add(out.kind);
    key.add(out);
    return true;
}

PyObject* run_cpu(const CpuCall& call, const Result& result, const ArrayView& x, PyObject* out,
                  const ArrayView* out_view) {
    void* y;
    if (out) {
        Py_INCREF(out);
        y = out_view->data;
    } else {
        out = new_array(x, result.dtype, result.ndim, result.shape, &y);
        if (!out) return nullptr;
    }
    const auto run = call.tiles ? kernels().tiles : kernels().rows;
    last_run = kAlgorithmNames[static_cast<std::size_t>(call.job.algorithm)];
    PyThreadState* released = call.bytes > kReleaseBytes ? PyEval_SaveThread() : nullptr;
    bool failed = false;
    try {
        run(call.job, x.data, y);
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

PyObject* run_bound(const Bound& bound, const ArrayView& x, PyObject* out, const ArrayView* out_view) {
    if (const auto* cpu = std::get_if<CpuCall>(&bound.how)) return run_cpu(*cpu, bound.result, x, out, out_view);
    const auto& gpu = std::get<GpuCall>(bound.how);
    last_run = gpu.algorithm;
    return run_gpu(gpu, bound.result, x, out, out ? out_view : nullptr);
}

PyObject* call(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "call(op, x, dim, keepdim, dtype, out, algorithm)");
        return nullptr;
    }
    Key key;
    ArrayView x, out;
    bool has_out;
    if (!key_of(args, key, x, out, has_out)) Py_RETURN_NONE;
    const auto found = remembered.find(key.bytes());
    if (found == remembered.end()) Py_RETURN_NONE;
    if (has_out) {
        // Exactly in place is fine: every kernel has read an element before it writes it.
        const Overlap overlap = overlap_of(x, out);
        if (overlap == Overlap::some) Py_RETURN_NONE;
    }
    const std::shared_ptr<const Bound> bound = found->second;  // keeps it while the GIL is released
    return run_bound(*bound, x, has_out ? args[5] : nullptr, &out);
}

void remember(PyObject* const* args, std::shared_ptr<const Bound> bound) {
    Key key;
    ArrayView x, out;
    bool has_out;
    if (!key_of(args, key, x, out, has_out)) return;
    if (remembered.size() >= kMostRemembered) remembered.clear();
    remembered[std::string(key.bytes())] = std::move(bound);
}

void forget_all() { remembered.clear(); }

void register_dtype(PyObject* object, DType dtype) {
    Py_INCREF(object);
    dtype_objects.emplace_back(object, dtype);
}

const char* last_algorithm() { return last_run; }

const char* algorithm_name(const std::string& name) {
    static auto& names = *new std::set<std::string>;
    return names.insert(name).first->c_str();
}

}  // namespace onepass
