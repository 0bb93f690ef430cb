// Calls of the public functions that reach the engine before any Python of theirs is run: a fifth of a small call.
#pragma once

#include <Python.h>

namespace onepass {

constexpr int kFunctions = 7;  // softmax to amin, by their Op

// From now on a call of `function`, in Python (x, dim, keepdim or dtype, *, some of out, algorithm, and what only
// Python knows), is first tried as operation `op`; `otherwise`, which takes the same, has the calls that the engine
// leaves alone. `names` are those of its parameters, in order; an argument that is `unset` is Python's. CPython 3.11
// looks whom to call only where a call is not made in Python.
void try_first(PyObject* function, int op, PyObject* names, PyObject* unset, PyObject* otherwise);

}  // namespace onepass
