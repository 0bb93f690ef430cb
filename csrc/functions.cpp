#include "functions.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "calls.h"

namespace onepass {
namespace {

// Of what `call` takes.
enum Argument { kOp, kX, kDim, kKeepdim, kDtype, kOut, kAlgorithm, kNone };
constexpr int kSlots = kNone;
constexpr struct {
    const char* name;
    Argument argument;
} kParameters[] = {{"x", kX},         {"dim", kDim}, {"axis", kDim},           {"keepdim", kKeepdim},
                   {"dtype", kDtype}, {"out", kOut}, {"algorithm", kAlgorithm}};

constexpr std::size_t kPositional = 3;

// References that live as long as the process.
struct Function {
    PyObject* op = nullptr;
    PyObject* otherwise = nullptr;
    PyObject* unset = nullptr;
    std::array<Argument, kPositional> positional;
    std::vector<std::pair<PyObject*, Argument>> names;
};
Function functions[kFunctions];
PyObject* last_dim = nullptr;  // -1

// Names in compiled code are interned: of any other Python may say what it means.
Argument argument_of(const Function& function, PyObject* name) {
    for (const auto& [known, argument] : function.names) {
        if (known == name) return argument;
    }
    return kNone;
}

// Puts the arguments of a call where `call` has them, borrowed. False where Python has to speak: one is missing,
// unknown or given twice.
bool arrange(const Function& function, PyObject* const* args, std::size_t positional, PyObject* names,
             std::array<PyObject*, kSlots>& arranged) {
    if (positional > kPositional) return false;
    for (std::size_t i = 0; i < positional; ++i) arranged[function.positional[i]] = args[i];
    const Py_ssize_t keywords = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t i = 0; i < keywords; ++i) {
        const Argument argument = argument_of(function, PyTuple_GetItem(names, i));
        PyObject* value = args[positional + static_cast<std::size_t>(i)];
        if (argument == kNone || arranged[argument] || value == function.unset) return false;
        arranged[argument] = value;
    }
    arranged[kOp] = function.op;
    if (!arranged[kDim]) arranged[kDim] = last_dim;
    if (!arranged[kKeepdim]) arranged[kKeepdim] = Py_False;
    for (Argument argument : {kDtype, kOut, kAlgorithm}) {
        if (!arranged[argument]) arranged[argument] = Py_None;
    }
    return arranged[kX] != nullptr;
}

template <std::size_t op>
PyObject* answer(PyObject*, PyObject* const* args, std::size_t count, PyObject* names) {
    const Function& function = functions[op];
    std::array<PyObject*, kSlots> arranged = {};
    if (arrange(function, args, static_cast<std::size_t>(PyVectorcall_NARGS(count)), names, arranged)) {
        PyObject* y = call(nullptr, arranged.data(), kSlots);
        if (y != Py_None) return y;
        Py_DECREF(y);
    }
    return PyObject_Vectorcall(function.otherwise, args, count, names);
}

constexpr auto kAnswers = []<std::size_t... op>(std::index_sequence<op...>) {
    return std::array<vectorcallfunc, kFunctions>{answer<op>...};
}(std::make_index_sequence<kFunctions>());

void set_vectorcall(PyObject* function, vectorcallfunc to) {
#ifdef Py_LIMITED_API
    // Documented, but not of the stable ABI: it may go, and calls run Python first again.
    static const auto set =
        reinterpret_cast<void (*)(PyObject*, vectorcallfunc)>(dlsym(RTLD_DEFAULT, "PyFunction_SetVectorcall"));
    if (set) set(function, to);
#elif PY_VERSION_HEX >= 0x030C0000
    PyFunction_SetVectorcall(reinterpret_cast<PyFunctionObject*>(function), to);
#else
    reinterpret_cast<PyFunctionObject*>(function)->vectorcall = to;
#endif
}

}  // namespace

void try_first(PyObject* function, int op, PyObject* names, PyObject* unset, PyObject* otherwise) {
    Function& known = functions[op];
    if (!last_dim) last_dim = PyLong_FromLong(-1);
    Py_INCREF(unset);
    Py_INCREF(otherwise);
    known = {PyLong_FromLong(op), otherwise, unset, {}, {}};
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); ++i) {
        PyObject* name = PyTuple_GetItem(names, i);
        for (const auto& [text, argument] : kParameters) {
            if (PyUnicode_CompareWithASCIIString(name, text) != 0) continue;
            Py_INCREF(name);
            known.names.push_back({name, argument});
            if (static_cast<std::size_t>(i) < kPositional) known.positional[i] = argument;
        }
    }
    set_vectorcall(function, kAnswers[static_cast<std::size_t>(op)]);
}

}  // namespace onepass
