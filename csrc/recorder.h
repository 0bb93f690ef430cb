// Calls of tensors that require grad: which of torch's mechanisms records them.
#pragma once

#include <Python.h>

namespace onepass {

// How calls are recorded, by Python functions. `functions` are those of softmax, log_softmax and logsumexp, called with
// (x, dim, [keepdim,] dtype, algorithm, None), unless a transform is under way, of which they do not know. `attach`, if
// not None, are called instead with a result: (y, x, dim, keepdim), and return it, with a gradient if there is to be
// one, or None if a transform is under way. Calls that nobody records, since grad mode is off or inference mode on, are
// `unrecorded`'s, with the arguments of `call`. `kept_dim(dim)`: a dim that nobody can change, or dim itself if it is
// none.
void set_recorder(PyObject* is_grad_enabled, PyObject* is_inference, PyObject* is_transforming, PyObject* kept_dim,
                  PyObject* functions, PyObject* unrecorded, PyObject* attach);

// While torch's own operators are onepass's, they record in C++, at half the cost: functions(x, dim) of softmax and
// log_softmax, where there is no `attach`. None: they are torch's.
void set_recording_operators(PyObject* functions);

// call(op, x, dim, keepdim, dtype, out, algorithm) of a tensor that requires grad. None: it is not for here.
PyObject* record(PyObject* const* args);

}  // namespace onepass
