// A Python extension for tests: `fake_gpu.Array`, an array that says it is on a GPU. Its memory is the host's, which no
// kernel ever touches. It speaks DLPack's C exchange API and `__dlpack__`, so the engine takes it for a GPU library's.
#include <Python.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "dlpack.h"

namespace dl = onepass::dlpack;

namespace {

struct Array {
    PyObject_HEAD void* block;  // what is to be freed
    void* data;
    std::int32_t device;
    int ndim;
    std::int64_t shape[64];
    std::int64_t strides[64];
    dl::DataType dtype;
    dl::ManagedTensor* managed;  // whose memory it is, if it came out of an exchange
};

PyTypeObject* array_type = nullptr;
void* streams[8] = {};
bool fail_allocation = false;

struct Named {
    const char* name;
    dl::DataType dtype;
};
constexpr Named kDTypes[] = {{"float32", {dl::kFloat, 32, 1}},
                             {"float64", {dl::kFloat, 64, 1}},
                             {"float16", {dl::kFloat, 16, 1}},
                             {"bfloat16", {dl::kBfloat, 16, 1}}};

std::int64_t contiguous(int ndim, const std::int64_t* shape, std::int64_t* strides) {
    std::int64_t size = 1;
    for (int i = ndim - 1; i >= 0; --i) {
        strides[i] = size;
        size *= shape[i];
    }
    return size;
}

void tensor_of(const Array& a, dl::Tensor& t) {
    t = {a.data,
         {dl::kCuda, a.device},
         a.ndim,
         a.dtype,
         const_cast<std::int64_t*>(a.shape),
         const_cast<std::int64_t*>(a.strides),
         0};
}

// ---- the C exchange API ----

struct Owned {
    dl::ManagedTensor managed;
    std::int64_t shape[64];
    std::int64_t strides[64];
};

int allocate(dl::Tensor* like, dl::ManagedTensor** out, void* context,
             void (*set_error)(void*, const char*, const char*)) {
    if (fail_allocation) {
        set_error(context, "MemoryError", "no memory on the fake GPU");
        return -1;
    }
    auto* owned = new Owned;
    std::memcpy(owned->shape, like->shape, sizeof(std::int64_t) * static_cast<std::size_t>(like->ndim));
    const std::int64_t size = contiguous(like->ndim, owned->shape, owned->strides);
    owned->managed = {{1, 0},
                      owned,
                      [](dl::ManagedTensor* m) {
                          std::free(m->tensor.data);
                          delete static_cast<Owned*>(m->context);
                      },
                      0,
                      *like};
    owned->managed.tensor.data = std::aligned_alloc(256, static_cast<std::size_t>(size * 8 + 256) / 256 * 256);
    owned->managed.tensor.shape = owned->shape;
    owned->managed.tensor.strides = owned->strides;
    owned->managed.tensor.byte_offset = 0;
    *out = &owned->managed;
    return 0;
}

int object_from_managed(dl::ManagedTensor* managed, void** out) {
    auto* a = reinterpret_cast<Array*>(array_type->tp_alloc(array_type, 0));
    if (!a) return -1;
    const dl::Tensor& t = managed->tensor;
    a->data = t.data;
    a->device = t.device.id;
    a->ndim = t.ndim;
    a->dtype = t.dtype;
    std::memcpy(a->shape, t.shape, sizeof(std::int64_t) * static_cast<std::size_t>(t.ndim));
    std::memcpy(a->strides, t.strides, sizeof(std::int64_t) * static_cast<std::size_t>(t.ndim));
    a->managed = managed;
    *out = a;
    return 0;
}

int managed_from_object(void*, dl::ManagedTensor**) { return -1; }

int view_of_object(void* object, dl::Tensor* out) {
    tensor_of(*static_cast<Array*>(object), *out);
    return 0;
}

int current_stream(std::int32_t, std::int32_t device, void** out) {
    *out = streams[device];
    return 0;
}

dl::ExchangeApi api{{{1, 1}, nullptr},   allocate,       managed_from_object,
                    object_from_managed, view_of_object, current_stream};

// ---- the type ----

bool read_sizes(PyObject* tuple, std::int64_t* sizes, int ndim) {
    for (int i = 0; i < ndim; ++i) sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    return !PyErr_Occurred();
}

PyObject* tuple_of(const std::int64_t* values, int n) {
    PyObject* tuple = PyTuple_New(n);
    for (int i = 0; tuple && i < n; ++i) PyTuple_SetItem(tuple, i, PyLong_FromLongLong(values[i]));
    return tuple;
}

// Array(shape, dtype="float32", device=0, strides=None, offset=0): strides in elements, offset in bytes.
PyObject* new_array(PyTypeObject* type, PyObject* args, PyObject* keywords) {
    static const char* names[] = {"shape", "dtype", "device", "strides", "offset", nullptr};
    PyObject *shape, *strides = Py_None;
    const char* dtype = "float32";
    int device = 0, offset = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!|siOi", const_cast<char**>(names), &PyTuple_Type, &shape,
                                     &dtype, &device, &strides, &offset))
        return nullptr;
    auto* a = reinterpret_cast<Array*>(type->tp_alloc(type, 0));
    if (!a) return nullptr;
    a->ndim = static_cast<int>(PyTuple_Size(shape));
    a->device = device;
    for (const Named& named : kDTypes) {
        if (std::string(named.name) == dtype) a->dtype = named.dtype;
    }
    if (!read_sizes(shape, a->shape, a->ndim)) return nullptr;
    const std::int64_t size = contiguous(a->ndim, a->shape, a->strides);
    if (strides != Py_None && !read_sizes(strides, a->strides, a->ndim)) return nullptr;
    a->block = std::aligned_alloc(256, static_cast<std::size_t>(size * 8 + offset + 511) / 256 * 256);
    a->data = static_cast<char*>(a->block) + offset;
    return reinterpret_cast<PyObject*>(a);
}

void free_array(PyObject* self) {
    auto* a = reinterpret_cast<Array*>(self);
    std::free(a->block);
    if (a->managed) a->managed->deleter(a->managed);
    PyTypeObject* type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject* get_shape(PyObject* self, void*) {
    auto* a = reinterpret_cast<Array*>(self);
    return tuple_of(a->shape, a->ndim);
}
PyObject* get_dtype(PyObject* self, void*) {
    const dl::DataType t = reinterpret_cast<Array*>(self)->dtype;
    for (const Named& named : kDTypes) {
        if (named.dtype.code == t.code && named.dtype.bits == t.bits) return PyUnicode_FromString(named.name);
    }
    Py_RETURN_NONE;
}
PyObject* get_address(PyObject* self, void*) { return PyLong_FromVoidPtr(reinterpret_cast<Array*>(self)->data); }
PyObject* get_device(PyObject* self, void*) { return PyLong_FromLong(reinterpret_cast<Array*>(self)->device); }

PyObject* dlpack_device(PyObject* self, PyObject*) {
    return Py_BuildValue("(ii)", static_cast<int>(dl::kCuda), reinterpret_cast<Array*>(self)->device);
}

// The capsule keeps the array; it is what libraries without the C exchange API have.
PyObject* dlpack(PyObject* self, PyObject*, PyObject*) {
    auto* t = new dl::UnversionedTensor{};
    tensor_of(*reinterpret_cast<Array*>(self), t->tensor);
    Py_INCREF(self);
    t->context = self;
    t->deleter = [](dl::UnversionedTensor* gone) {
        Py_DECREF(static_cast<PyObject*>(gone->context));
        delete gone;
    };
    return PyCapsule_New(t, "dltensor", [](PyObject* capsule) {
        if (!PyCapsule_IsValid(capsule, "dltensor")) return;
        auto* unused = static_cast<dl::UnversionedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
        unused->deleter(unused);
    });
}

PyMethodDef methods[] = {{"__dlpack_device__", dlpack_device, METH_NOARGS, nullptr},
                         {"__dlpack__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(dlpack)),
                          METH_VARARGS | METH_KEYWORDS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyGetSetDef properties[] = {{"shape", get_shape, nullptr, nullptr, nullptr},
                            {"dtype", get_dtype, nullptr, nullptr, nullptr},
                            {"address", get_address, nullptr, nullptr, nullptr},
                            {"device", get_device, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_array)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(free_array)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {0, nullptr}};
PyType_Spec spec = {"fake_gpu.Array", sizeof(Array), 0, Py_TPFLAGS_DEFAULT, slots};

PyObject* set_stream(PyObject*, PyObject* args) {
    int device;
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "iK", &device, &stream)) return nullptr;
    streams[device] = reinterpret_cast<void*>(stream);
    Py_RETURN_NONE;
}
PyObject* set_fail_allocation(PyObject*, PyObject* value) {
    fail_allocation = PyObject_IsTrue(value) == 1;
    Py_RETURN_NONE;
}
PyMethodDef functions[] = {{"set_stream", set_stream, METH_VARARGS, "set_stream(device, stream)"},
                           {"fail_allocation", set_fail_allocation, METH_O, "fail_allocation(whether)"},
                           {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "fake_gpu", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_fake_gpu() {
    PyObject* m = PyModule_Create(&module);
    array_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    PyObject* capsule = PyCapsule_New(&api, "dlpack_exchange_api", nullptr);
    if (!m || !array_type || !capsule) return nullptr;
    PyObject* type = reinterpret_cast<PyObject*>(array_type);
    if (PyObject_SetAttrString(type, "__dlpack_c_exchange_api__", capsule) < 0) return nullptr;
    PyModule_AddObject(m, "Array", type);
    return m;
}
