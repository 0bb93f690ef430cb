#include "arrays.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <dlfcn.h>
#include <numpy/arrayobject.h>

#include <memory>
#include <new>
#include <vector>

#include "memory.h"
#include "producers.h"

namespace onepass {
namespace {

static_assert(sizeof(npy_intp) == sizeof(std::int64_t), "onepass needs a 64-bit system");

struct ExchangeType {
    PyObject* type;
    const dlpack::ExchangeApi* api;
    int kind;
    // `requires_grad` of the type: the descriptor, and what reads it from an instance; null without. Looking up the
    // attribute's name in every call would cost more than reading it.
    PyObject* requires_grad;
    descrgetfunc get_requires_grad;
};
std::vector<ExchangeType> exchange_types;  // guarded by the GIL; never more than a few
PyObject* bfloat16_descr = nullptr;
int bfloat16_number = -1;
PyTypeObject* memory_map_type = nullptr;  // numpy.memmap, once somebody uses it
PyObject* is_neg_name = nullptr;
PyObject* forward_ad_dict = nullptr;  // of torch.autograd.forward_ad, once torch has been seen
PyObject* level_name = nullptr;
thread_local bool data_only = false;
struct {
    int kind = -1;
    PyObject* notice = nullptr;
} told_of_writes;
struct {
    int kind = -1;
    MakeTensor make = nullptr;
} tensor_maker;

struct Watched {
    PyObject* function;
    bool half_only;
};
std::vector<Watched> watched;  // guarded by the GIL

// torch::jit::tracer::getTracingState(): a std::shared_ptr, null where nothing is traced.
using TracingState = const void* const* (*)();
TracingState tracing_state = nullptr;

// Of this thread: c10::impl::TorchDispatchModeTLS::any_modes_set(skip_infra_modes), and
// tls_is_dispatch_key_included(key), for the key of modes that are on another stack.
using AnyModesSet = bool (*)(bool);
AnyModesSet any_modes_set = nullptr;
using IsKeyIncluded = bool (*)(std::uint16_t);
IsKeyIncluded is_key_included = nullptr;
std::uint16_t pre_dispatch = 0;

template <class Function>
bool find_function(Function& function, const char* library, const char* name) {
    void* const loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    function = loaded ? reinterpret_cast<Function>(dlsym(loaded, name)) : nullptr;
    return function != nullptr;
}

bool numpy_dtype(int number, DType& dtype) {
    switch (number) {
        case NPY_FLOAT: dtype = DType::f32; return true;
        case NPY_DOUBLE: dtype = DType::f64; return true;
        case NPY_HALF: dtype = DType::f16; return true;
        default: dtype = DType::bf16; return number == bfloat16_number && number >= 0;
    }
}

bool view_numpy(PyArrayObject* array, ArrayView& view) {
    if (!PyArray_ISALIGNED(array) || !PyArray_ISNOTSWAPPED(array)) return false;
    if (!numpy_dtype(PyArray_TYPE(array), view.dtype)) return false;
    view.data = PyArray_BYTES(array);
    view.ndim = PyArray_NDIM(array);
    view.shape = reinterpret_cast<const std::int64_t*>(PyArray_DIMS(array));
    view.writable = PyArray_ISWRITEABLE(array);
    view.device = kCpu;
    view.kind = 0;
    view.api = nullptr;
    const std::int64_t size = size_of(view.dtype);
    for (int i = 0; i < view.ndim; ++i) {
        const npy_intp bytes = PyArray_STRIDE(array, i);
        view.strides[i] = bytes / size;
        if (view.strides[i] * size != bytes) return false;  // a field of a structured array
    }
    return true;
}

// Takes the reference to `value`; null: a Python exception, which is dropped.
bool is_exactly(PyObject* value, PyObject* expected) {
    if (!value) PyErr_Clear();
    const bool is = value == expected;
    Py_XDECREF(value);
    return is;
}

bool requires_grad_is(PyObject* tensor, const ExchangeType& type, PyObject* expected) {
    return is_exactly(type.get_requires_grad(type.requires_grad, tensor, type.type), expected);
}

// Borrowed; null where there is none. PyDict_GetItem would put aside and restore the thread's exception each time.
PyObject* find_in(PyObject* dict, PyObject* name) {
    PyObject* value = PyDict_GetItemWithError(dict, name);
    if (!value) PyErr_Clear();
    return value;
}

// Inside torch's forward-mode differentiation any tensor may carry a tangent, which DLPack does not show.
bool in_forward_ad() {
    PyObject* level = forward_ad_dict ? find_in(forward_ad_dict, level_name) : nullptr;
    if (!level) return false;
    const long value = PyLong_AsLong(level);
    if (value == -1) PyErr_Clear();
    return value >= 0;
}

// Whether torch may have negated a tensor without touching its memory. `conj().imag` does: every second element of
// complex numbers, the odd ones. Asking torch costs as much as all else of a tensor, so it is asked only of what may
// lie there: elements apart from each other, or next to each other at an odd place.
bool may_be_negated(const ArrayView& view) {
    const auto pair = static_cast<std::uintptr_t>(2 * size_of(view.dtype));
    if ((reinterpret_cast<std::uintptr_t>(view.data) & (pair - 1)) != 0) return true;
    std::int64_t stride = 1;
    for (int i = view.ndim - 1; i >= 0; --i) {
        if (view.shape[i] != 1 && view.strides[i] != stride) return true;
        stride *= view.shape[i];
    }
    return false;
}

// DLPack says nothing of torch's lazy negation.
bool is_its_memory(PyObject* object, const ArrayView& view) {
    return !may_be_negated(view) || is_exactly(PyObject_VectorcallMethod(is_neg_name, &object, 1, nullptr), Py_False);
}

bool view_exchange(PyObject* object, const ExchangeType& known, ArrayView& view) {
    const bool is_torchs = known.requires_grad != nullptr;
    // Nor does DLPack say anything of gradients.
    if (is_torchs && !data_only && !requires_grad_is(object, known, Py_False)) {
        view.requires_grad = requires_grad_is(object, known, Py_True);
        return false;
    }
    view.kind = known.kind;
    return view_tensor(object, known.api, view) && (!is_torchs || is_its_memory(object, view));
}

const ExchangeType* type_that_requires_grad(PyObject* object) {
    if (data_only) return nullptr;
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    for (const ExchangeType& known : exchange_types) {
        if (type == known.type)
            return known.requires_grad && requires_grad_is(object, known, Py_True) ? &known : nullptr;
    }
    return nullptr;
}

void set_memory_error(std::size_t bytes) {
    PyErr_Format(PyExc_MemoryError, "onepass: no memory for a result of %zu bytes", bytes);
}

void release_capsule(PyObject* capsule) { give_block(PyCapsule_GetPointer(capsule, "onepass.block")); }

PyObject* new_numpy(DType dtype, int ndim, const std::int64_t* shape, std::size_t bytes, void** data) {
    PyArray_Descr* descr;
    if (dtype == DType::bf16) {
        Py_INCREF(bfloat16_descr);
        descr = reinterpret_cast<PyArray_Descr*>(bfloat16_descr);
    } else {
        descr = PyArray_DescrFromType(dtype == DType::f32 ? NPY_FLOAT : dtype == DType::f64 ? NPY_DOUBLE : NPY_HALF);
    }
    auto* dims = reinterpret_cast<const npy_intp*>(shape);
    void* block = nullptr;
    PyObject* owner = nullptr;
    if (bytes >= kSmallestBlock) {
        block = take_block(bytes);
        owner = block ? PyCapsule_New(block, "onepass.block", release_capsule) : nullptr;
        if (!owner) {
            if (block) give_block(block);
            Py_DECREF(descr);
            if (!PyErr_Occurred()) set_memory_error(bytes);
            return nullptr;
        }
    }
    PyObject* array =
        PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, nullptr, block, block ? NPY_ARRAY_CARRAY : 0, nullptr);
    if (!array) {
        Py_XDECREF(owner);
        return nullptr;
    }
    auto* result = reinterpret_cast<PyArrayObject*>(array);
    if (owner && PyArray_SetBaseObject(result, owner) < 0) {  // takes the reference, also when it fails
        Py_DECREF(array);
        return nullptr;
    }
    *data = PyArray_DATA(result);
    return array;
}

void set_exchange_error(void*, const char* kind, const char* message) {
    PyErr_Format(PyExc_MemoryError, "onepass: cannot allocate a result: %s: %s", kind, message);
}

// A managed tensor over one of our blocks, with its shape and strides behind it.
struct BlockTensor {
    dlpack::ManagedTensor managed;
    std::int64_t shape[kMostAxes];
    std::int64_t strides[kMostAxes];

    static void release(dlpack::ManagedTensor* managed) {
        give_block(managed->tensor.data);
        delete static_cast<BlockTensor*>(managed->context);
    }
};

dlpack::ManagedTensor* block_tensor(DType dtype, int ndim, const std::int64_t* shape, std::size_t bytes) {
    void* block = take_block(bytes);
    if (!block) {
        set_memory_error(bytes);
        return nullptr;
    }
    auto* t = new (std::nothrow) BlockTensor;
    if (!t) {
        give_block(block);
        set_memory_error(bytes);
        return nullptr;
    }
    std::int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; --i) {
        t->shape[i] = shape[i];
        t->strides[i] = stride;
        stride *= shape[i];
    }
    t->managed = {.version = {1, 1},
                  .context = t,
                  .deleter = BlockTensor::release,
                  .flags = 0,
                  .tensor = {block, {dlpack::kCpu, 0}, ndim, dlpack_dtype(dtype), t->shape, t->strides, 0}};
    return &t->managed;
}

PyObject* new_exchange(const dlpack::ExchangeApi* api, int device, DType dtype, int ndim, const std::int64_t* shape,
                       std::size_t bytes, void** data) {
    dlpack::ManagedTensor* managed = nullptr;
    if (device == kCpu && bytes >= kSmallestBlock) {
        managed = block_tensor(dtype, ndim, shape, bytes);
        if (!managed) return nullptr;
    } else {
        const dlpack::Device where =
            device == kCpu ? dlpack::Device{dlpack::kCpu, 0} : dlpack::Device{dlpack::kCuda, device};
        dlpack::Tensor prototype{nullptr, where, ndim, dlpack_dtype(dtype), const_cast<std::int64_t*>(shape),
                                 nullptr, 0};
        if (api->allocate(&prototype, &managed, nullptr, set_exchange_error) != 0) {
            if (!PyErr_Occurred()) set_memory_error(bytes);
            return nullptr;
        }
    }
    *data = static_cast<char*>(managed->tensor.data) + managed->tensor.byte_offset;
    void* object = nullptr;
    if (api->object_from_managed(managed, &object) != 0) {
        managed->deleter(managed);
        return nullptr;
    }
    return static_cast<PyObject*>(object);
}

}  // namespace

bool import_numpy() {
    is_neg_name = PyUnicode_InternFromString("is_neg");
    level_name = PyUnicode_InternFromString("_current_level");
    return is_neg_name && level_name && _import_array() >= 0;
}

bool view_array(PyObject* object, ArrayView& view) {
    view.object = object;
    view.producer = nullptr;
    if (Py_TYPE(object) == &PyArray_Type || Py_TYPE(object) == memory_map_type)
        return view_numpy(reinterpret_cast<PyArrayObject*>(object), view);
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    for (const ExchangeType& known : exchange_types) {
        if (type == known.type) return view_exchange(object, known, view);
    }
    const Producer* producer = find_producer(type);
    return producer && view_producer(object, *producer, view);
}

DataOnly::DataOnly() : before_(data_only) { data_only = true; }
DataOnly::~DataOnly() { data_only = before_; }

bool only_requires_grad(PyObject* object) {
    const ExchangeType* known = type_that_requires_grad(object);
    if (!known) return false;
    ArrayView view;
    view.object = object;
    view.producer = nullptr;
    view.kind = known->kind;
    return view_tensor(object, known->api, view) && is_its_memory(object, view) && !is_watched(view);
}

void watch(PyObject* function, bool half_only) {
    for (const Watched& known : watched) {
        if (known.function == function) return;
    }
    Py_INCREF(function);
    watched.push_back({function, half_only});
}

bool watch_tracing(const char* library) {
    return find_function(tracing_state, library, "_ZN5torch3jit6tracer15getTracingStateEv");
}

bool watch_modes(const char* library, int pre_dispatch_key) {
    pre_dispatch = static_cast<std::uint16_t>(pre_dispatch_key);
    return find_function(is_key_included, library, "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE") &&
           find_function(any_modes_set, library, "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb");
}

bool is_watched(const ArrayView& view) {
    if (!view.api || data_only) return false;
    if (in_forward_ad() || (tracing_state && *tracing_state())) return true;
    if (any_modes_set && (any_modes_set(false) || is_key_included(pre_dispatch))) return true;
    for (const Watched& w : watched) {
        if (w.half_only && size_of(view.dtype) != 2) continue;
        PyObject* value = PyObject_CallNoArgs(w.function);
        const int active = value ? PyObject_IsTrue(value) : -1;
        Py_XDECREF(value);
        if (active == 0) continue;
        PyErr_Clear();
        return true;
    }
    return false;
}

bool view_tensor(PyObject* object, const dlpack::ExchangeApi* api, ArrayView& view) {
    dlpack::Tensor tensor;
    if (api->view_of_object(object, &tensor) != 0) {
        PyErr_Clear();
        return false;
    }
    view.api = api;
    view.writable = true;
    return view_dlpack(tensor, view);
}

bool view_dlpack(const dlpack::Tensor& tensor, ArrayView& view) {
    switch (tensor.device.type) {
        case dlpack::kCpu: view.device = kCpu; break;
        case dlpack::kCuda:
        case dlpack::kCudaManaged: view.device = tensor.device.id; break;
        default: return false;
    }
    if (tensor.dtype.lanes != 1 || tensor.ndim > kMostAxes) return false;
    if (tensor.dtype.code == dlpack::kFloat) {
        switch (tensor.dtype.bits) {
            case 32: view.dtype = DType::f32; break;
            case 64: view.dtype = DType::f64; break;
            case 16: view.dtype = DType::f16; break;
            default: return false;
        }
    } else if (tensor.dtype.code == dlpack::kBfloat && tensor.dtype.bits == 16) {
        view.dtype = DType::bf16;
    } else {
        return false;
    }
    view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    view.ndim = tensor.ndim;
    view.shape = tensor.shape;
    std::int64_t contiguous = 1;
    for (int i = view.ndim - 1; i >= 0; --i) {
        view.strides[i] = tensor.strides ? tensor.strides[i] : contiguous;
        contiguous *= view.shape[i];
    }
    return tensor.data || contiguous == 0;  // a wrapper (torch.func.functionalize) has elements but no memory
}

dlpack::DataType dlpack_dtype(DType dtype) {
    const auto bits = static_cast<std::uint8_t>(size_of(dtype) * 8);
    return {dtype == DType::bf16 ? dlpack::kBfloat : dlpack::kFloat, bits, 1};
}

bool count_bytes(DType dtype, int ndim, const std::int64_t* shape, std::size_t& bytes) {
    bytes = static_cast<std::size_t>(size_of(dtype));
    for (int i = 0; i < ndim; ++i) {
        if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(shape[i]), &bytes)) return false;
    }
    return true;
}

PyObject* new_array(const ArrayView& like, DType dtype, int ndim, const std::int64_t* shape, void** data) {
    std::size_t bytes;
    if (!count_bytes(dtype, ndim, shape, bytes)) {
        set_memory_error(SIZE_MAX);
        return nullptr;
    }
    if (like.kind == tensor_maker.kind && like.device == kCpu && bytes < kSmallestBlock) {
        return tensor_maker.make(static_cast<int>(dtype), ndim, shape, data);
    }
    return like.api ? new_exchange(like.api, like.device, dtype, ndim, shape, bytes, data)
                    : new_numpy(dtype, ndim, shape, bytes, data);
}

void make_tensors_by(int kind, MakeTensor make) { tensor_maker = {make ? kind : -1, make}; }

bool register_exchange_type(PyObject* type) {
    for (const ExchangeType& known : exchange_types) {
        if (known.type == type) return true;
    }
    PyObject* capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
    if (!capsule) {
        PyErr_Clear();
        return false;
    }
    auto* api = static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    Py_DECREF(capsule);
    if (!api) PyErr_Clear();
    // Another major version lays the table out differently; producers then chain the older one behind it.
    while (api && api->header.version.major != 1) api = reinterpret_cast<dlpack::ExchangeApi*>(api->header.previous);
    if (!api || !api->view_of_object) return false;
    int kind = 1 + static_cast<int>(exchange_types.size());
    for (const ExchangeType& known : exchange_types) {
        if (known.api == api) kind = known.kind;  // torch.Tensor and torch.nn.Parameter
    }
    PyObject* requires_grad = PyObject_GetAttrString(type, "requires_grad");
    if (!requires_grad) PyErr_Clear();
    void* get = requires_grad ? PyType_GetSlot(Py_TYPE(requires_grad), Py_tp_descr_get) : nullptr;
    if (requires_grad && !get) {  // no descriptor: nothing says what an instance requires
        PyErr_Clear();
        Py_DECREF(requires_grad);
        return false;
    }
    Py_INCREF(type);
    exchange_types.push_back({type, api, kind, requires_grad, reinterpret_cast<descrgetfunc>(get)});
    return true;
}

bool tensor_kind(PyObject* type, TensorKind& kind) {
    for (const ExchangeType& known : exchange_types) {
        if (known.type != type) continue;
        kind = {known.api, known.kind};
        return true;
    }
    return false;
}

void tell_of_writes(int kind, PyObject* notice) {
    if (told_of_writes.notice) return;
    Py_INCREF(notice);
    told_of_writes = {kind, notice};
}

bool may_write(const ArrayView& out) {
    if (out.kind != told_of_writes.kind) return true;
    PyObject* done = PyObject_Vectorcall(told_of_writes.notice, &out.object, 1, nullptr);
    Py_XDECREF(done);
    return done != nullptr;
}

void watch_forward_ad(PyObject* module_dict) {
    if (forward_ad_dict) return;
    Py_INCREF(module_dict);
    forward_ad_dict = module_dict;
}

void register_memory_map(PyTypeObject* numpy_memmap) {
    if (memory_map_type) return;
    Py_INCREF(reinterpret_cast<PyObject*>(numpy_memmap));
    memory_map_type = numpy_memmap;
}

void register_bfloat16(PyObject* numpy_dtype) {
    if (bfloat16_descr) return;
    Py_INCREF(numpy_dtype);
    bfloat16_descr = numpy_dtype;
    bfloat16_number = reinterpret_cast<PyArray_Descr*>(numpy_dtype)->type_num;
}

}  // namespace onepass
