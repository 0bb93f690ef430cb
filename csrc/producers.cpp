#include "producers.h"

#include <deque>

namespace onepass {
namespace {

constexpr int kFirstKind = 1 << 16;      // past those of exchange types
constexpr long kNoSynchronization = -1;  // of __dlpack__'s stream=
constexpr long kLegacyStream = 1;

// Views point into it: never moved, never destroyed. Under the GIL.
std::deque<Producer>& producers() {
    static auto* all = new std::deque<Producer>;
    return *all;
}

PyObject* capsule_of(PyObject* object, bool on_current_stream) {
    static PyObject* const name = PyUnicode_InternFromString("__dlpack__");
    static PyObject* const keywords = Py_BuildValue("(s)", "stream");
    static PyObject* const current = PyLong_FromLong(kNoSynchronization);
    static PyObject* const legacy = PyLong_FromLong(kLegacyStream);
    PyObject* args[] = {object, on_current_stream ? current : legacy};
    return PyObject_VectorcallMethod(name, args, 1, keywords);
}

}  // namespace

const Producer* find_producer(PyObject* type) {
    for (const Producer& producer : producers()) {
        if (producer.type == type) return &producer;
    }
    return nullptr;
}

void register_producer(PyObject* type, PyObject* stream) {
    if (find_producer(type)) return;
    Py_INCREF(type);
    if (stream == Py_None) stream = nullptr;
    Py_XINCREF(stream);
    producers().push_back({type, stream, kFirstKind + static_cast<int>(producers().size())});
}

bool view_producer(PyObject* object, const Producer& producer, ArrayView& view) {
    PyObject* capsule = capsule_of(object, producer.stream != nullptr);
    // The capsule is never renamed to say that it was consumed: it keeps the memory, and gives it back, by itself.
    auto* managed =
        capsule ? static_cast<dlpack::UnversionedTensor*>(PyCapsule_GetPointer(capsule, "dltensor")) : nullptr;
    if (!managed) {
        PyErr_Clear();
        Py_XDECREF(capsule);
        return false;
    }
    view.owner.take(capsule);
    view.producer = &producer;
    view.kind = producer.kind;
    view.api = nullptr;
    view.writable = producer.stream != nullptr;  // JAX arrays are values: they do not change
    return view_dlpack(managed->tensor, view) && view.device != kCpu;
}

bool current_stream(const ArrayView& view, cuda::Stream& stream) {
    if (view.api) {
        void* found = nullptr;
        if (view.api->current_stream(dlpack::kCuda, view.device, &found) != 0) return false;
        stream = static_cast<cuda::Stream>(found);
        return true;
    }
    stream = cuda::legacy_stream();
    if (!view.producer || !view.producer->stream) return true;
    PyObject* device = PyLong_FromLong(view.device);
    PyObject* number = device ? PyObject_CallFunctionObjArgs(view.producer->stream, device, nullptr) : nullptr;
    Py_XDECREF(device);
    if (!number) return false;
    stream = static_cast<cuda::Stream>(PyLong_AsVoidPtr(number));
    Py_DECREF(number);
    return !PyErr_Occurred();
}

}  // namespace onepass
