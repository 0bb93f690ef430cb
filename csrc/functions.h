// Calls of the public functions that reach the engine before any Python of theirs is run: it costs a quarter of a small
// call.
#pragma once

#include <Python.h>

namespace onepass {

// From now on a call of `function`, in Python (x, dim, keepdim or dtype, *, some of out, algorithm, and what only
// Python knows), is first tried as operation `op`; `otherwise`, which takes the same, has the calls that the engine
// leaves alone. `names` are those of its parameters, in order. Where CPython looks: from 3.12 on at every call, 3.11
// only at those that are not made in Python. False where it cannot be told to.
bool try_first(PyObject* function, long op, PyObject* names, PyObject* otherwise);

}  // namespace onepass
