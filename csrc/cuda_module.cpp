#include "cuda_module.h"

#include <nanobind/stl/string.h>

#include "cuda_kernel.h"
#include "device_array.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onepass {
namespace {

int driver_version() {
    int version = 0;
    cuda::check(cuda::driver().version(&version), "ask for the driver's version");
    return version;
}

int device_count() {
    int count = 0;
    cuda::check(cuda::driver().device_count(&count), "count the GPUs");
    return count;
}

std::string device_name(int ordinal) {
    char name[256] = "";
    cuda::check(cuda::driver().device_name(name, sizeof name, cuda::device(ordinal)), "ask for the GPU's name");
    return name;
}

int device_attribute(int ordinal, int attribute) {
    int value = 0;
    cuda::check(cuda::driver().device_attribute(&value, attribute, cuda::device(ordinal)),
                "ask for an attribute of the GPU");
    return value;
}

std::size_t device_memory(int ordinal) {
    std::size_t bytes = 0;
    cuda::check(cuda::driver().device_memory(&bytes, cuda::device(ordinal)), "ask for the size of the GPU's memory");
    return bytes;
}

cuda::Kernel* load_kernel(int ordinal, nb::bytes cubin, const std::string& symbol) {
    return new cuda::Kernel(ordinal, std::string(cubin.c_str(), cubin.size()), symbol);
}

template <cuda::FunctionAttribute which>
int attribute(const cuda::Kernel& kernel) {
    return kernel.attribute(which);
}

}  // namespace

void define_cuda(nb::module_& m) {
    PyObject* error_type = cuda::make_error_type();
    if (!error_type) throw nb::python_error();
    m.attr("CudaError") = nb::steal(error_type);
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const cuda::Failure& failure) {
            failure.set_python_error();
        }
    });
    using enum cuda::FunctionAttribute;
    nb::class_<cuda::Kernel>(m, "Kernel")
        .def_prop_ro("ordinal", &cuda::Kernel::ordinal)
        .def_prop_ro("registers", &attribute<registers>)
        .def_prop_ro("static_shared_bytes", &attribute<static_shared_bytes>)
        .def_prop_ro("local_bytes", &attribute<local_bytes>)
        .def_prop_ro("max_threads", &attribute<max_threads>);
    define_device_array(m);
    m.def("load_kernel", &load_kernel, "ordinal"_a, "cubin"_a, "symbol"_a);
    m.def("gpu_driver_version", &driver_version);
    m.def("gpu_count", &device_count);
    m.def("gpu_name", &device_name, "ordinal"_a);
    m.def("gpu_attribute", &device_attribute, "ordinal"_a, "attribute"_a);
    m.def("gpu_memory", &device_memory, "ordinal"_a);
}

}  // namespace onepass
