// The hot path: a call whose like has been seen before finds its bound plan and runs, all in C++.
#pragma once

#include <Python.h>

#include <memory>
#include <string>

#include "arrays.h"
#include "onepass/cpu/job.h"

namespace onepass {

// A plan, bound: everything a call needs but the addresses.
struct Bound {
    Job job;
    bool tiles;          // which family of kernels runs it
    DType result_dtype;  // of the array that is returned
    int ndim;            // shape of the result
    std::int64_t shape[kMostAxes];
    std::int64_t bytes;  // that it reads and writes, for the decision to release the GIL
};

// Runs `bound` on x. `out` null: a new array. Returns a new reference, or null with an exception set.
PyObject* run_bound(const Bound& bound, const ArrayView& x, PyObject* out, const ArrayView* out_view);

// call(op, x, dim, keepdim, dtype, out, algorithm): the result, or None when this call has to be planned first.
PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count);
// remember(op, x, dim, keepdim, dtype, out, algorithm, bound): the next call with arguments like these is hot.
void remember(PyObject* const* args, std::shared_ptr<const Bound> bound);
void forget_all();
void register_dtype(PyObject* object, DType dtype);
const char* last_algorithm();

}  // namespace onepass
