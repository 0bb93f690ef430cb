#include "recorder.h"

#include <cstddef>
#include <utility>

#include "arrays.h"
#include "calls.h"

namespace onepass {
namespace {

constexpr long kRecorded = 3;  // operations: softmax, log_softmax, logsumexp
constexpr long kLogsumexp = 2;

// References that live as long as the process; null before they are set.
struct {
    PyObject* is_grad_enabled = nullptr;
    PyObject* is_transforming = nullptr;
    PyObject* functions = nullptr;
    PyObject* attach = nullptr;
    PyObject* unrecorded = nullptr;
    PyObject* operators = nullptr;
} recorder;

void replace(PyObject*& held, PyObject* by) {
    Py_XINCREF(by);
    Py_XDECREF(std::exchange(held, by));
}

// Holds the function while it runs: it lets other threads run, and one of them may set another recorder.
PyObject* call_held(PyObject* function, PyObject* const* args, std::size_t count) {
    Py_INCREF(function);
    PyObject* result = PyObject_Vectorcall(function, args, count, nullptr);
    Py_DECREF(function);
    return result;
}

// torch's operator, which knows of all that x may be, and of grad mode. Null without an exception: the arguments are
// none of its.
PyObject* by_operator(long op, PyObject* const* args) {
    if (args[4] != Py_None || args[6] != Py_None || !PyLong_CheckExact(args[2])) return nullptr;
    PyObject* function = PyTuple_GetItem(recorder.operators, op);
    PyObject* y = call_held(function, args + 1, op == kLogsumexp ? 3 : 2);
    // What it refuses onepass refuses in its own words; of memory that is not there, say, torch has said enough.
    if (!y && (PyErr_ExceptionMatches(PyExc_IndexError) || PyErr_ExceptionMatches(PyExc_NotImplementedError)))
        PyErr_Clear();
    return y;
}

// The result, made known to autograd in C++. None: it is not for here.
PyObject* by_node(PyObject* attach, PyObject* const* args) {
    PyObject* y = call_unrecorded(args);
    if (y == Py_None && only_requires_grad(args[1])) {  // its plan has to be made
        Py_DECREF(y);
        y = call_held(recorder.unrecorded, args, 7);
    }
    if (!y || y == Py_None) return y;
    PyObject* given[] = {y, args[1], args[2], args[3]};
    PyObject* attached = PyObject_Vectorcall(attach, given, 4, nullptr);
    Py_DECREF(y);
    return attached;
}

}  // namespace

void set_recorder(PyObject* is_grad_enabled, PyObject* is_transforming, PyObject* functions, PyObject* unrecorded,
                  PyObject* attach) {
    replace(recorder.is_grad_enabled, is_grad_enabled);
    replace(recorder.is_transforming, is_transforming);
    replace(recorder.functions, functions);
    replace(recorder.unrecorded, unrecorded);
    replace(recorder.attach, attach == Py_None ? nullptr : attach);
}

void set_recording_operators(PyObject* functions) {
    replace(recorder.operators, functions == Py_None ? nullptr : functions);
}

PyObject* record(PyObject* const* args) {
    if (!recorder.functions) Py_RETURN_NONE;
    const long op = PyLong_AsLong(args[0]);
    const bool recorded = op < kRecorded && args[5] == Py_None;
    if (recorder.attach && recorded) {
        PyObject* attach = Py_NewRef(PyTuple_GetItem(recorder.attach, op));  // as in call_held
        PyObject* y = by_node(attach, args);
        Py_DECREF(attach);
        return y;
    }
    if (recorder.operators && recorded) {
        PyObject* y = by_operator(op, args);
        if (y || PyErr_Occurred()) return y;
    }
    if (!only_requires_grad(args[1])) Py_RETURN_NONE;
    PyObject* enabled = PyObject_CallNoArgs(recorder.is_grad_enabled);
    if (!enabled) return nullptr;
    Py_DECREF(enabled);
    if (enabled != Py_True) return call_held(recorder.unrecorded, args, 7);
    if (!recorded) Py_RETURN_NONE;
    PyObject* transforming = PyObject_CallNoArgs(recorder.is_transforming);
    if (!transforming) return nullptr;
    Py_DECREF(transforming);
    if (transforming == Py_True) Py_RETURN_NONE;
    PyObject* function = PyTuple_GetItem(recorder.functions, op);
    if (op == kLogsumexp) {
        PyObject* given[] = {args[1], args[2], args[3], args[4], args[6], Py_None};
        return call_held(function, given, 6);
    }
    PyObject* given[] = {args[1], args[2], args[4], args[6], Py_None};
    return call_held(function, given, 5);
}

}  // namespace onepass
