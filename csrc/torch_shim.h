// What routes use of torch's C interface (torch/csrc/inductor/aoti_torch/c/shim.h, torch/csrc/stable/c/shim.h), which
// stays the same from version to version. Looked up in the torch that is loaded: the engine is not linked to any.
#pragma once

#include <cstdint>

namespace onepass::torch_shim {

using Handle = struct TensorOpaque*;
using LibraryHandle = struct LibraryOpaque*;
using Error = std::int32_t;  // 0: none
// An operator's arguments come in `stack`, one word each, the handles owned by the kernel; so go its results.
using BoxedKernel = void (*)(std::uint64_t* stack, std::uint64_t inputs, std::uint64_t outputs);
using Deleter = void (*)(void* data, void* context);

constexpr std::int32_t kStrided = 0;  // layout
constexpr std::int32_t kCpu = 0;      // device type
constexpr std::int32_t kCuda = 1;

struct Shim {
    Error (*data)(Handle, const void** out);
    Error (*ndim)(Handle, std::int64_t* out);
    Error (*sizes)(Handle, std::int64_t** out);
    Error (*strides)(Handle, std::int64_t** out);
    Error (*dtype)(Handle, std::int32_t* out);
    Error (*device_type)(Handle, std::int32_t* out);
    Error (*device_index)(Handle, std::int32_t* out);
    Error (*release)(Handle);
    Error (*empty)(std::int64_t ndim, const std::int64_t* sizes, const std::int64_t* strides, std::int32_t dtype,
                   std::int32_t device_type, std::int32_t device_index, Handle* out);
    // Null before torch 2.11.
    Error (*from_blob)(void* data, std::int64_t ndim, const std::int64_t* sizes, const std::int64_t* strides,
                       std::int64_t offset, std::int32_t dtype, std::int32_t device_type, std::int32_t device_index,
                       Handle* out, std::int32_t layout, const std::uint8_t* metadata, std::int64_t metadata_size,
                       Deleter, void* context);
    Error (*parallel_for)(std::int64_t begin, std::int64_t end, std::int64_t grain,
                          void (*run)(std::int64_t begin, std::int64_t end, void* context), void* context);
    Error (*open_library)(const char* name_space, const char* key, const char* file, std::uint32_t line,
                          LibraryHandle* out);
    Error (*implement)(LibraryHandle, const char* name, BoxedKernel);
    Error (*close_library)(LibraryHandle);
    std::int32_t dtypes[4];  // torch's numbers, in the order of DType
};

// Null where torch is not loaded, or lacks any of it.
const Shim* find();

// Runs `work(context)` on up to so many of torch's own threads, as ThreadLender (threads.h) has it.
void lend_threads(int threads, void (*work)(void*), void* context);

// Throws torch's own exception for a dim that is out of range. It has a text for C++ too, such as TorchScript's
// interpreter, which a Python exception does not.
void check_dim(std::int64_t dim, std::int64_t ndim);

// Throws the Python exception that is set, which the thread holding the GIL has, as torch's own kernels do: torch gives
// it to Python as it is. Every other C++ exception would become a RuntimeError.
[[noreturn]] void throw_python_error();
// Whether that works with this torch. With the GIL.
bool can_throw_python_error();

}  // namespace onepass::torch_shim
