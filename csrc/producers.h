// Arrays on GPUs of libraries that have `__dlpack__` and no C exchange API.
#pragma once

#include "arrays.h"
#include "cuda_driver.h"

namespace onepass {

struct Producer {
    PyObject* type;
    // f(device) -> the stream, as an integer, that the library has current there: kernels are launched on it, as the
    // library's own are. Null for a library whose streams are its own affair (JAX): it is told to have the array ready
    // on the legacy default stream.
    PyObject* stream;
    int kind;
};

const Producer* find_producer(PyObject* type);
// False also for an array that is on the CPU: arrays.py takes those.
bool view_producer(PyObject* object, const Producer& producer, ArrayView& view);
// The stream to launch on, in order with whatever computes `view`. False with a Python exception set.
bool current_stream(const ArrayView& view, cuda::Stream& stream);

}  // namespace onepass
