// The hot path: a call whose like has been seen before finds its bound plan and runs, all in C++.
#pragma once

#include <Python.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "arrays.h"
#include "gpu_call.h"
#include "onepass/cpu/job.h"
#include "threads.h"

namespace onepass {

struct CpuCall {
    Job job;
    bool tiles;          // which family of kernels runs it: rows or tiles
    std::int64_t bytes;  // that it reads and writes, for the decision to release the GIL
};

// A plan, bound: everything a call needs but the addresses.
struct Bound {
    Result result;
    std::variant<CpuCall, GpuCall> how;
};

// Runs `bound`. `out` null: a new array. Returns a new reference, or null with an exception set.
PyObject* run_bound(const Bound& bound, const Sources& in, PyObject* out, const ArrayView* out_view);

// call(op, x, dim, keepdim, dtype, out, algorithm): the result, or None when this call has to be planned first. One
// of a tensor that requires grad is recorder.h's.
PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count);
// call with tensors read as memory alone (DataOnly), and so below.
PyObject* call_memory(PyObject* self, PyObject* const* args, Py_ssize_t count);
// call of a tensor that requires grad, which the result does not; None also where somebody watches (is_watched).
PyObject* call_unrecorded(PyObject* const* args);
// call_data(function, *args): function(*args), tensors read so in it.
PyObject* call_data(PyObject* self, PyObject* const* args, Py_ssize_t count);
// From now on calls with CPU arrays of this kind run on the threads of whoever made them.
void borrow_threads(int kind, ThreadLender lender);
// remember(op, x, dim, keepdim, dtype, out, algorithm, bound): the next call with arguments like these is hot.
void remember(PyObject* const* args, std::shared_ptr<const Bound> bound);
// The same for gradients: call_gradient(op, x, second, third, dim, keepdim, dtype, out, algorithm), x being the input
// that the result is like, `third` None where there is none.
PyObject* call_gradient(PyObject* self, PyObject* const* args, Py_ssize_t count);
PyObject* call_gradient_memory(PyObject* self, PyObject* const* args, Py_ssize_t count);
void remember_gradient(PyObject* const* args, std::shared_ptr<const Bound> bound);
void forget_all();

// A call as torch's dispatcher makes it (torch_routes.cpp), of tensors alone: what call and call_gradient are with
// keepdim=True, for which their operations have no use, without out= and algorithm=.
struct RoutedCall {
    Op op;
    Sources in;
    std::int64_t dim;
    std::optional<DType> dtype;
};
// Its plan, null if there is none. With or without the GIL.
std::shared_ptr<const Bound> find_routed(const RoutedCall& call);
// Runs a plan without the GIL. False if it failed; run_bound can say why.
bool run_into(const Bound& bound, const Sources& in, void* y);

void register_dtype(PyObject* object, DType dtype);
const char* last_algorithm();
const char* last_form();                              // of the last call on a CPU
const char* algorithm_name(const std::string& name);  // the same text for the life of the process

}  // namespace onepass
