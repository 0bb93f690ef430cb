#include "gpu_call.h"

#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "device_array.h"
#include "producers.h"

namespace onepass {
namespace {

constexpr std::size_t kMostArguments = 8;

PyObject* shared(PyObject* object) {
    if (object == Py_None) return nullptr;
    Py_XINCREF(object);
    return object;
}

cuda::Launch::Addresses addresses_of(const Sources& in, void* y) {
    return {in.x->data, y, in.second ? in.second->data : nullptr, in.third ? in.third->data : nullptr};
}

// What x's library made, or the engine in its place.
bool view_made(PyObject* made, const ArrayView& x, ArrayView& view) {
    DeviceArray* array = nullptr;
    if (x.api && Py_TYPE(made) == Py_TYPE(x.object)) return view_tensor(made, x.api, view);
    if (view_array(made, view)) return true;
    if (!nanobind::try_cast(nanobind::handle(made), array)) return false;
    array->view(view);
    return true;
}

}  // namespace

Maker::Maker(PyObject* make, PyObject* positional, PyObject* keyword_names, PyObject* keyword_values, PyObject* finish)
    : make_(shared(make)), finish_(shared(finish)), keyword_names_(shared(keyword_names)), args_{nullptr} {
    for (PyObject* values : {positional, keyword_values}) {
        for (Py_ssize_t i = 0; i < PyTuple_Size(values); ++i) args_.push_back(shared(PyTuple_GetItem(values, i)));
    }
    if (args_.size() > kMostArguments) throw std::invalid_argument("Maker: more than 7 arguments");
}

Maker::Maker(Maker&& other) noexcept
    : make_(std::exchange(other.make_, nullptr)),
      finish_(std::exchange(other.finish_, nullptr)),
      keyword_names_(std::exchange(other.keyword_names_, nullptr)),
      args_(std::exchange(other.args_, {})) {}

// The last to hold it may be a thread of torch's, without the GIL.
Maker::~Maker() {
    const bool holds_any = make_ || finish_ || keyword_names_ || args_.size() > 1;
    if (!holds_any || !Py_IsInitialized()) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(make_);
    Py_XDECREF(finish_);
    Py_XDECREF(keyword_names_);
    for (PyObject* arg : args_) Py_XDECREF(arg);
    PyGILState_Release(state);
}

PyObject* Maker::operator()(const ArrayView& x, const Result& result, void** data) const {
    if (!make_) return new_array(x, result.dtype, result.ndim, result.shape, data);
    std::array<PyObject*, kMostArguments> args;
    for (std::size_t i = 1; i < args_.size(); ++i) args[i] = args_[i];
    args[0] = x.object;
    const std::size_t keywords = keyword_names_ ? static_cast<std::size_t>(PyTuple_Size(keyword_names_)) : 0;
    PyObject* made = PyObject_Vectorcall(make_, args.data(), args_.size() - keywords, keyword_names_);
    if (!made) return nullptr;
    ArrayView view;
    if (!view_made(made, x, view) || view.device != x.device || view.dtype != result.dtype || alignment_of(view.data)) {
        Py_DECREF(made);
        PyErr_SetString(PyExc_TypeError,
                        "onepass: the result's array library made an array of another kind, as under fake tensors and "
                        "torch function modes; pass out=, or call outside the mode");
        return nullptr;
    }
    *data = view.data;
    return made;
}

PyObject* Maker::finish(PyObject* made, const Sources& in) const {
    if (!finish_) return made;
    const auto owner = [](const ArrayView* view) { return view->owner.get() ? view->owner.get() : Py_None; };
    PyObject* finished =
        PyObject_CallFunctionObjArgs(finish_, made, owner(in.x), in.second ? owner(in.second) : nullptr,
                                     in.third ? owner(in.third) : nullptr, nullptr);
    Py_DECREF(made);
    return finished;
}

PyObject* run_gpu(const GpuCall& call, const Result& result, const Sources& in, PyObject* out,
                  const ArrayView* out_view) {
    const ArrayView& x = *in.x;
    if (call.launch.arrays() != 2 + (in.second != nullptr) + (in.third != nullptr)) {
        PyErr_Format(PyExc_TypeError, "run: the plan is bound for %d arrays", call.launch.arrays());
        return nullptr;
    }
    if (cuda::forked()) {
        cuda::Failure::in_forked_process().set_python_error();
        return nullptr;
    }
    cuda::Stream stream;
    if (!current_stream(x, stream)) return nullptr;
    void* y;
    if (out) {
        Py_INCREF(out);
        y = out_view->data;
    } else {
        out = call.maker(x, result, &y);
        if (!out) return nullptr;
    }
    // A full queue makes the driver wait, perhaps for a callback that needs the GIL.
    PyThreadState* released = PyEval_SaveThread();
    const cuda::Status code = call.launch(addresses_of(in, y), stream);
    PyEval_RestoreThread(released);
    if (code != cuda::kSuccess) {
        cuda::Failure(code, std::string("launch ") + call.algorithm).set_python_error();
        Py_DECREF(out);
        return nullptr;
    }
    return out_view ? out : call.maker.finish(out, in);
}

bool launch_gpu(const GpuCall& call, const Sources& in, void* y) {
    cuda::Stream stream;
    return !call.maker.finishes() && !cuda::forked() && alignment_of(y) == 0 && current_stream(*in.x, stream) &&
           call.launch(addresses_of(in, y), stream) == cuda::kSuccess;
}

}  // namespace onepass
