// Arrays in and out: NumPy's by their own C structure, tensors (torch 2.10 and later) by DLPack's C exchange API.
// Nothing here converts; an array that is neither is a matter for onepass/arrays.py.
#pragma once

#include <Python.h>

#include <cstdint>

#include "dlpack.h"
#include "onepass/cpu/job.h"

namespace onepass {

struct ArrayView {
    char* data;
    DType dtype;
    int ndim;
    const std::int64_t* shape;
    std::int64_t strides[kMostAxes];  // in elements
    bool writable;
    const dlpack::ExchangeApi* api;  // null for NumPy
};

bool import_numpy();  // false with a Python exception set

// Whether `object` is an array the kernels can read as it is: a plain ndarray (aligned, native, one of our dtypes), or
// a tensor on the CPU of a registered type that needs no gradient. Otherwise false, never an exception.
bool view_array(PyObject* object, ArrayView& view);

// A new contiguous array of the same kind as `like`, its memory in `data`; null with a Python exception set.
PyObject* new_array(const ArrayView& like, DType dtype, int ndim, const std::int64_t* shape, void** data);

// Tensor types whose instances may be read through the C exchange API. False if the type has none.
bool register_exchange_type(PyObject* type);
// The dictionary of torch.autograd.forward_ad, whose `_current_level` says whether tensors may carry tangents.
void watch_forward_ad(PyObject* module_dict);
void register_bfloat16(PyObject* numpy_dtype);

enum class Overlap { none, same, some };
Overlap overlap_of(const ArrayView& a, const ArrayView& b);

}  // namespace onepass
