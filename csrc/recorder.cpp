#include "recorder.h"

#include <cstddef>
#include <utility>

#include "arrays.h"
#include "calls.h"

namespace onepass {
namespace {

constexpr long kRecorded = 3;  // operations: softmax, log_softmax, logsumexp
constexpr long kLogsumexp = 2;
// Operations that torch's own operators may record: logsumexp's gradient in a row of -inf is NaN there, and 0 here.
constexpr long kByOperator = 2;

// References that live as long as the process; null before they are set.
struct {
    PyObject* is_grad_enabled = nullptr;
    PyObject* is_inference = nullptr;
    PyObject* is_transforming = nullptr;
    PyObject* kept_dim = nullptr;
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
    PyObject* y = call_held(function, args + 1, 2);
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

// What such a function of torch's says; -1 with an exception set.
int ask(PyObject* function) {
    PyObject* answer = PyObject_CallNoArgs(function);
    if (!answer) return -1;
    Py_DECREF(answer);
    return answer == Py_True;
}

PyObject* record_kept(PyObject* const* args) {
    const long op = PyLong_AsLong(args[0]);
    const bool recorded = op < kRecorded && args[5] == Py_None;
    if (recorder.attach && recorded) {
        PyObject* attach = Py_NewRef(PyTuple_GetItem(recorder.attach, op));  // as in call_held
        PyObject* y = by_node(attach, args);
        Py_DECREF(attach);
        return y;
    }
    if (recorder.operators && recorded && op < kByOperator) {
        PyObject* y = by_operator(op, args);
        if (y || PyErr_Occurred()) return y;
    }
    if (!only_requires_grad(args[1])) Py_RETURN_NONE;
    const int enabled = ask(recorder.is_grad_enabled), inference = enabled > 0 ? ask(recorder.is_inference) : 0;
    if (enabled < 0 || inference < 0) return nullptr;
    if (!enabled || inference) return call_held(recorder.unrecorded, args, 7);
    if (!recorded) Py_RETURN_NONE;
    const int transforming = ask(recorder.is_transforming);
    if (transforming < 0) return nullptr;
    if (transforming) Py_RETURN_NONE;
    PyObject* function = PyTuple_GetItem(recorder.functions, op);
    if (op == kLogsumexp) {
        PyObject* given[] = {args[1], args[2], args[3], args[4], args[6], Py_None};
        return call_held(function, given, 6);
    }
    PyObject* given[] = {args[1], args[2], args[4], args[6], Py_None};
    return call_held(function, given, 5);
}

}  // namespace

void set_recorder(PyObject* is_grad_enabled, PyObject* is_inference, PyObject* is_transforming, PyObject* kept_dim,
                  PyObject* functions, PyObject* unrecorded, PyObject* attach) {
    replace(recorder.is_grad_enabled, is_grad_enabled);
    replace(recorder.is_inference, is_inference);
    replace(recorder.is_transforming, is_transforming);
    replace(recorder.kept_dim, kept_dim);
    replace(recorder.functions, functions);
    replace(recorder.unrecorded, unrecorded);
    replace(recorder.attach, attach == Py_None ? nullptr : attach);
}

void set_recording_operators(PyObject* functions) {
    replace(recorder.operators, functions == Py_None ? nullptr : functions);
}

PyObject* record(PyObject* const* args) {
    if (!recorder.functions) Py_RETURN_NONE;
    PyObject* dim = args[2];
    if (dim == Py_None || PyLong_CheckExact(dim)) return record_kept(args);
    // The backward pass needs it again: as it is now, whatever becomes of a list.
    PyObject* kept = call_held(recorder.kept_dim, &dim, 1);
    if (!kept) return nullptr;
    PyObject* given[] = {args[0], args[1], kept, args[3], args[4], args[5], args[6]};
    PyObject* y = record_kept(given);
    Py_DECREF(kept);
    return y;
}

}  // namespace onepass
