// Arrays in and out: NumPy's by their own C structure, tensors (torch 2.10 and later) by DLPack's C exchange API,
// arrays on a GPU of libraries that have no such API (CuPy, JAX) by `__dlpack__`. Nothing here converts; an array that
// is none of these is a matter for onepass/arrays.py.
#pragma once

#include <Python.h>

#include <cstdint>

#include "dlpack.h"
#include "onepass/cpu/job.h"

namespace onepass {

struct Producer;

// An address as plans for GPUs see it: modulo a cache line. Results that are made for a call start on one.
inline std::int64_t alignment_of(const void* data) { return reinterpret_cast<std::intptr_t>(data) & 127; }

constexpr int kCpu = -1;

// A Python reference that a view may need for as long as it is used.
class Owner {
   public:
    Owner() = default;
    ~Owner() { Py_XDECREF(object_); }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    void take(PyObject* object) {  // the reference becomes ours
        Py_XDECREF(object_);
        object_ = object;
    }
    PyObject* get() const { return object_; }

   private:
    PyObject* object_ = nullptr;
};

struct ArrayView {
    PyObject* object;  // borrowed: the array itself
    char* data;
    DType dtype;
    int ndim;
    const std::int64_t* shape;
    std::int64_t strides[kMostAxes];  // in elements
    bool writable;
    int device;                      // ordinal of the GPU that the memory is on, or kCpu
    int kind;                        // 0 for NumPy; arrays of one kind are read, and their results made, in one way
    const dlpack::ExchangeApi* api;  // null without one
    const Producer* producer;        // null unless it was read by `__dlpack__`
    Owner owner;
    bool requires_grad = false;  // for which it was refused (view_array)
};

bool import_numpy();  // false with a Python exception set

// Whether `object` is an array the kernels can read as it is: a plain ndarray (aligned, native, one of our dtypes), or
// an array of a registered type, on a CPU or an NVIDIA GPU, that needs no gradient. Otherwise false, never an
// exception.
bool view_array(PyObject* object, ArrayView& view);
// While one of these lives, this thread views tensors that require grad or carry tangents too, whatever transforms are
// active: somebody above takes care of all that, and what is wanted is the memory.
class DataOnly {
   public:
    DataOnly();
    ~DataOnly();
    DataOnly(const DataOnly&) = delete;
    DataOnly& operator=(const DataOnly&) = delete;

   private:
    bool before_;
};
// Whether an object is a tensor that nothing but requiring grad keeps from being a hot call's.
bool only_requires_grad(PyObject* object);
// As view_array, of a tensor that is known to have this API and no gradient.
bool view_tensor(PyObject* object, const dlpack::ExchangeApi* api, ArrayView& view);
// What DLPack says of an array. False for dtypes, devices and numbers of dimensions that the kernels do not know.
bool view_dlpack(const dlpack::Tensor& tensor, ArrayView& view);

// Makes tensors of one kind (ArrayView) on a CPU at less cost than DLPack, which makes two: a new reference, and where
// its elements go; null with an exception set. torch/extension.cpp has one. On a GPU's host it costs 2 to 4% more.
using MakeTensor = PyObject* (*)(int dtype, int ndim, const std::int64_t* shape, void** data);
void make_tensors_by(int kind, MakeTensor make);

// Bytes of an array without gaps; false: more than there are addresses, as of a tensor that repeats a few elements.
bool count_bytes(DType dtype, int ndim, const std::int64_t* shape, std::size_t& bytes);

// A new contiguous array of the same kind and on the same device as `like`, which is NumPy's or has an exchange API.
// Its memory in `data`; null with a Python exception set.
PyObject* new_array(const ArrayView& like, DType dtype, int ndim, const std::int64_t* shape, void** data);
dlpack::DataType dlpack_dtype(DType dtype);

// What views of one such type have in common.
struct TensorKind {
    const dlpack::ExchangeApi* api = nullptr;
    int number = 0;
};
// False for a type that is not registered.
bool tensor_kind(PyObject* type, TensorKind& kind);

// Tensor types whose instances may be read through the C exchange API. False if the type has none.
bool register_exchange_type(PyObject* type);
// Types of arrays on GPUs that are to be read by `__dlpack__`. See Producer.
void register_producer(PyObject* type, PyObject* stream);
// `notice(array)` is called before an array of this kind that a caller passed as `out` is written.
void tell_of_writes(int kind, PyObject* notice);
bool may_write(const ArrayView& out);  // calls it; false with a Python exception set
// The dictionary of torch.autograd.forward_ad, whose `_current_level` says whether tensors may carry tangents.
void watch_forward_ad(PyObject* module_dict);
// While a call of `function` gives something true, no call with a tensor is hot; `half_only`: with a 16-bit one.
void watch(PyObject* function, bool half_only);
// The same while this thread has a mode that sees operators (torch.utils._python_dispatch); `library`: libc10, and
// torch's number of the key of modes before dispatch. False where it cannot tell, and `watch` has to.
bool watch_modes(const char* library, int pre_dispatch_key);
// The same while torch.jit traces; `library`: libtorch_cpu. False where it cannot tell, and `watch` has to. Calling
// torch's function for Python takes as long as reading the tensor.
bool watch_tracing(const char* library);
bool is_watched(const ArrayView& view);  // whether one does
void register_bfloat16(PyObject* numpy_dtype);

// Arrays of this one subclass, numpy.memmap, are read and written as other arrays are.
void register_memory_map(PyTypeObject* numpy_memmap);

enum class Overlap { none, same, some };
Overlap overlap_of(const ArrayView& a, const ArrayView& b);

}  // namespace onepass
