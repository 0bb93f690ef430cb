#include "torch_shim.h"

#include <Python.h>
#include <dlfcn.h>

#include <cstring>
#include <exception>
#include <stdexcept>
#include <typeinfo>
#include <vector>

namespace onepass::torch_shim {
namespace {

// Only torch can make its exceptions. This function of its Python half unpacks a tuple of integers, and throws
// python_error where an integer is -1 and a Python exception set: which is how CPython says that it is no integer.
using UnpackLongs = std::vector<int> (*)(PyObject*);
UnpackLongs unpack_longs = nullptr;
PyObject* minus_one = nullptr;

// c10::detail::maybe_wrap_dim_slow(dim, ndim, wrap_scalar), which throws for a dim that is out of range, and is called
// for no other. May be null.
using WrapDim = std::int64_t (*)(std::int64_t, std::int64_t, bool);
WrapDim wrap_dim = nullptr;

struct Library {
    void* handle;

    template <class F>
    bool find(F& function, const char* name) const {
        function = handle ? reinterpret_cast<F>(dlsym(handle, name)) : nullptr;
        return function != nullptr;
    }
};

bool find_dtypes(const Library& torch, std::int32_t* dtypes) {
    const char* const names[] = {"aoti_torch_dtype_float32", "aoti_torch_dtype_float64", "aoti_torch_dtype_float16",
                                 "aoti_torch_dtype_bfloat16"};
    for (const char* name : names) {
        std::int32_t (*dtype)();
        if (!torch.find(dtype, name)) return false;
        *dtypes++ = dtype();
    }
    return true;
}

bool find_all(Shim& s) {
    const Library torch{dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD)};
    const Library torch_python{dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD)};
    const Library c10{dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD)};
    c10.find(wrap_dim, "_ZN3c106detail19maybe_wrap_dim_slowIlEET_S2_S2_b");
    torch.find(s.from_blob, "torch_from_blob");
    minus_one = Py_BuildValue("(i)", -1);
    return minus_one && torch_python.find(unpack_longs, "_Z20THPUtils_unpackLongsP7_object") &&
           torch.find(s.data, "torch_get_const_data_ptr") && torch.find(s.ndim, "aoti_torch_get_dim") &&
           torch.find(s.sizes, "aoti_torch_get_sizes") && torch.find(s.strides, "aoti_torch_get_strides") &&
           torch.find(s.dtype, "aoti_torch_get_dtype") && torch.find(s.device_type, "aoti_torch_get_device_type") &&
           torch.find(s.device_index, "aoti_torch_get_device_index") &&
           torch.find(s.release, "aoti_torch_delete_tensor_object") &&
           torch.find(s.empty, "aoti_torch_empty_strided") && torch.find(s.parallel_for, "torch_parallel_for") &&
           torch.find(s.open_library, "aoti_torch_library_init_impl") &&
           torch.find(s.implement, "aoti_torch_library_impl") &&
           torch.find(s.close_library, "aoti_torch_delete_library_object") && find_dtypes(torch, s.dtypes);
}

}  // namespace

const Shim* find() {
    static Shim shim;
    static const bool found = find_all(shim);
    return found ? &shim : nullptr;
}

void lend_threads(int threads, void (*work)(void*), void* context) {
    struct Work {
        void (*run)(void*);
        void* context;
    } given{work, context};
    find()->parallel_for(
        0, threads, 1,
        [](std::int64_t, std::int64_t, void* to_do) {
            const auto* work = static_cast<Work*>(to_do);
            work->run(work->context);
        },
        &given);
}

void check_dim(std::int64_t dim, std::int64_t ndim) {
    const std::int64_t limit = ndim > 0 ? ndim : 1;
    if (wrap_dim && (dim < -limit || dim >= limit)) wrap_dim(dim, ndim, true);
}

void throw_python_error() {
    unpack_longs(minus_one);
    throw std::runtime_error("onepass: a Python exception was lost on its way through torch");
}

bool can_throw_python_error() {
    PyErr_SetString(PyExc_RuntimeError, "onepass: not seen by anyone");
    bool can = false;
    try {
        throw_python_error();
    } catch (const std::exception& error) {
        can = std::strcmp(typeid(error).name(), "12python_error") == 0 && PyErr_Occurred();
    }
    PyErr_Clear();
    return can;
}

}  // namespace onepass::torch_shim
