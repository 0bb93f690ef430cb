// Calls of tensors that require grad: which of torch's mechanisms records them.
#pragma once

#include <Python.h>

namespace onepass {

// How calls are recorded, by Python functions. `functions` are those of softmax, log_softmax and logsumexp, called with
// (x, dim, [keepdim,] dtype, algorithm, None). Calls that nobody records, since grad mode is off, are `unrecorded`'s,
// with the arguments of `call`.
void set_recorder(PyObject* is_grad_enabled, PyObject* functions, PyObject* unrecorded);

// While torch's own operators are onepass's, they record in C++, at half the cost: functions(x, dim[, keepdim]) for the
// three. None: they are torch's.
void set_recording_operators(PyObject* functions);

// call(op, x, dim, keepdim, dtype, out, algorithm) of a tensor that requires_grad(). None: it is not for here.
PyObject* record(PyObject* const* args);

}  // namespace onepass
