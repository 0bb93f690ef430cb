// What torch lets C++ do that is built against it, and no interface of its that is stable: to record a result for
// autograd as torch does those of its own operators, at a third of what a Function in Python costs (gradients.py), and
// to make a tensor in one step. Compiled where torch is (extension.py).
#include <ATen/EmptyTensor.h>
#include <Python.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <mutex>
#include <string>
#include <utility>

namespace {

namespace py = pybind11;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// ---- tensors ----

// A new tensor for the engine (MakeTensor in csrc/arrays.h).
PyObject* make_tensor(int dtype, int ndim, const std::int64_t* shape, void** data) {
    static constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};  // by its DType
    try {
        at::Tensor tensor = at::detail::empty_cpu({shape, static_cast<std::size_t>(ndim)}, kDtypes[dtype],
                                                  /*pin_memory=*/false, std::nullopt);
        *data = tensor.data_ptr();
        return THPVariable_Wrap(std::move(tensor));
    } catch (const std::exception& error) {
        PyErr_Format(PyExc_MemoryError, "onepass: cannot allocate a result: %s", error.what());
        return nullptr;
    }
}

// ---- autograd ----

// What is the same for all calls of an operation. As long as the process lives: nodes refer to it.
struct Operation {
    std::string node_name;
    bool reduces;  // whether there is a keepdim, and the gradient is one of x as well
    // The engine's call_gradient_memory and the number of the gradient; None: no plan yet.
    py::object planned, number;
    py::object is_plain;  // the engine's
    py::object backward;  // (dy, y, dim, dtype of x), or of a reduction (dy, x, y, dim, keepdim)
};

// A result of softmax or log_softmax, whose gradient y is all that is needed for, or of logsumexp, which needs x, too.
class Recorded final : public torch::autograd::Node {
   public:
    Recorded(const Operation& op, const at::Tensor& x, PyObject* dim, PyObject* keepdim)
        : op_(op), dtype_(x.scalar_type()), dim_(Py_NewRef(dim)), keepdim_(Py_NewRef(keepdim)) {}
    ~Recorded() override {
        if (!Py_IsInitialized()) return;  // the process ends
        if (PyGILState_Check()) {
            release();
        } else {
            py::gil_scoped_acquire gil;
            release();
        }
    }

    // Once y has this node: a result is saved without it, or the two would hold one another. A hook of saved tensors
    // may raise here; the node then goes with y.
    void save(const at::Tensor& x, const at::Tensor& y) {
        if (op_.reduces) x_ = SavedVariable(x, /*is_output=*/false);
        y_ = SavedVariable(y, /*is_output=*/true);
    }

    std::string name() const override { return op_.node_name; }

    void release_variables() override {
        const std::lock_guard<std::mutex> lock(mutex_);
        x_.reset_data();
        y_.reset_data();
    }

    // Compiled autograd traces the same computation of other tensors, once for all nodes that say the same here.
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
        args.collect(op_.node_name + arguments());
        if (op_.reduces) args.collect(x_, /*is_output=*/false);
        args.collect(y_, /*is_output=*/true);
    }
    variable_list apply_with_saved(const variable_list& dy,
                                   torch::dynamo::autograd::SwapSavedVariables& saved) override {
        if (op_.reduces) saved.before(x_);
        saved.before(y_);
        variable_list dx = apply(variable_list(dy));
        if (op_.reduces) saved.after(x_);
        saved.after(y_);
        return dx;
    }

   protected:
    variable_list apply(variable_list&& dy) override {
        at::Tensor x, y;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (op_.reduces) x = x_.unpack();
            y = y_.unpack(getptr());
        }
        if (!dy[0].defined()) return {at::Tensor()};
        py::gil_scoped_acquire gil;
        const py::object grad = wrap(dy[0]), of_x = op_.reduces ? wrap(x) : py::none(), of_y = wrap(y);
        const py::handle dim(dim_), keepdim(keepdim_);
        const py::handle dtype(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype_)));
        py::object dx = py::none();
        // What gradients.py decides too, without its frames, when nobody will differentiate what comes out. (A trace of
        // compiled autograd has fake tensors here, which are not plain.)
        const bool is_memory =
            THPVariable_CheckExact(of_y.ptr()) && (!op_.reduces || THPVariable_CheckExact(of_x.ptr()));
        if (is_memory && !at::GradMode::is_enabled() && op_.is_plain(grad).is(py::bool_(true))) {
            const py::none none;
            dx = op_.reduces ? op_.planned(op_.number, of_x, grad, of_y, dim, keepdim, dtype, none, none)
                             : op_.planned(op_.number, of_y, grad, none, dim, keepdim, dtype, none, none);
        }
        if (dx.is_none()) {
            dx = op_.reduces ? op_.backward(grad, of_x, of_y, dim, keepdim) : op_.backward(grad, of_y, dim, dtype);
        }
        return {THPVariable_Unpack(dx.ptr())};
    }

   private:
    static py::object wrap(const at::Tensor& tensor) {
        return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
    }
    void release() const {
        Py_DECREF(dim_);
        Py_DECREF(keepdim_);
    }
    std::string arguments() const {
        py::gil_scoped_acquire gil;
        return std::string(py::repr(py::handle(dim_))) + std::string(py::repr(py::handle(keepdim_))) +
               c10::toString(dtype_);
    }

    const Operation& op_;
    const at::ScalarType dtype_;
    PyObject* const dim_;
    PyObject* const keepdim_;
    SavedVariable x_, y_;
};

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
template <class... Args>
std::shared_ptr<Recorded> make_node(Args&&... args) {
    return {new Recorded(std::forward<Args>(args)...), torch::autograd::deleteNode};
}
#else
template <class... Args>
c10::intrusive_ptr<Recorded> make_node(Args&&... args) {
    return c10::make_intrusive<Recorded>(std::forward<Args>(args)...);
}
#endif

// (y, x, dim, keepdim): y is the result of an operation on x, a plain tensor that requires grad. Returns y, which has a
// gradient where grad mode is on, or None if a transform of torch.func is under way: it would have to know of the call.
PyObject* attach(PyObject* self, PyObject* const* args, Py_ssize_t) {
    HANDLE_TH_ERRORS
    if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) Py_RETURN_NONE;
    if (at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled()) {
        const auto& op = *static_cast<const Operation*>(PyCapsule_GetPointer(self, nullptr));
        const at::Tensor &y = THPVariable_Unpack(args[0]), &x = THPVariable_Unpack(args[1]);
        const auto node = make_node(op, x, args[2], args[3]);
        node->set_next_edges(torch::autograd::collect_next_edges(x));
        torch::autograd::set_history(y, node);
        node->save(x, y);
    }
    return Py_NewRef(args[0]);
    END_HANDLE_TH_ERRORS
}

PyMethodDef attach_method{"attach", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(attach)), METH_FASTCALL,
                          nullptr};

// `attach` of one operation.
py::object attach_of(std::string node_name, bool reduces, const py::object& engine, py::object number,
                     py::object backward) {
    auto* op = new Operation{
        std::move(node_name), reduces, engine.attr("call_gradient_memory"), std::move(number), engine.attr("is_plain"),
        std::move(backward)};
    return py::reinterpret_steal<py::object>(PyCFunction_New(&attach_method, py::capsule(op).release().ptr()));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("attach_of", attach_of);
    module.attr("make_tensor") = py::capsule(reinterpret_cast<void*>(make_tensor), "onepass.make_tensor");
}
