// The NVIDIA driver, opened when a GPU is first asked for: the engine links against nothing of CUDA, and a machine
// without a driver loses nothing but GPUs. The declarations are the few of the driver API that are used here.
// https://docs.nvidia.com/cuda/cuda-driver-api
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

namespace onepass::cuda {

using Result = int;
using Device = int;
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Address = unsigned long long;

constexpr Result kSuccess = 0, kOutOfMemory = 2, kNotInitialized = 3;

// What DLPack and the array interfaces call stream 1.
inline Stream legacy_stream() { return reinterpret_cast<Stream>(std::uintptr_t{1}); }

struct LaunchAttribute {
    enum Id : std::int32_t { cooperative = 2, cluster = 4 };
    Id id;
    char padding[4];
    union {
        char size[64];
        unsigned cluster_shape[3];
        int is_cooperative;
    };
};

struct LaunchConfig {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    Stream stream;
    LaunchAttribute* attributes;
    unsigned attribute_count;
};

enum class FunctionAttribute : std::int32_t {
    max_threads = 0,
    static_shared_bytes = 1,
    local_bytes = 3,
    registers = 4,
    max_dynamic_shared_bytes = 8,
    non_portable_cluster_allowed = 14,
};

constexpr int kCaptureRelaxed = 2;

// The functions of libcuda that are used. Optional ones are null where an older driver has none.
struct Driver {
    Result (*init)(unsigned flags);
    Result (*version)(int* version);
    Result (*error_name)(Result, const char** name);
    Result (*device_count)(int* count);
    Result (*device_get)(Device*, int ordinal);
    Result (*device_name)(char* name, int size, Device);
    Result (*device_attribute)(int* value, int attribute, Device);
    Result (*device_memory)(std::size_t* bytes, Device);
    Result (*retain_primary)(Context*, Device);
    Result (*current)(Context*);
    Result (*push)(Context);
    Result (*pop)(Context*);
    Result (*memory_info)(std::size_t* free, std::size_t* total);
    Result (*load_module)(Module*, const void* image);
    Result (*get_function)(Function*, Module, const char* name);
    Result (*function_attribute)(int* value, FunctionAttribute, Function);
    Result (*set_function_attribute)(Function, FunctionAttribute, int value);
    Result (*occupancy)(int* blocks, Function, int threads, std::size_t dynamic_shared_bytes);
    Result (*launch)(Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                     unsigned block_z, unsigned shared_bytes, Stream, void** parameters, void** extra);
    Result (*exchange_capture_mode)(int* mode);
    Result (*allocate)(Address*, std::size_t bytes);
    Result (*free)(Address);
    Result (*create_event)(Event*, unsigned flags);
    Result (*destroy_event)(Event);
    Result (*record_event)(Event, Stream);
    Result (*wait_event)(Stream, Event, unsigned flags);
    Result (*launch_ex)(const LaunchConfig*, Function, void** parameters, void** extra);            // optional: 11.8
    Result (*clusters)(int* count, Function, const LaunchConfig*);                                  // optional: 11.8
    Result (*parameter_info)(Function, std::size_t index, std::size_t* offset, std::size_t* size);  // optional: 12.4
};

// A call of the driver that failed, as Python will see it: onepass.cuda.CudaError, or MemoryError.
class Failure : public std::exception {
   public:
    // `doing` completes "onepass could not ...".
    Failure(Result code, const std::string& doing);
    // There is no driver to ask.
    explicit Failure(const std::string& message);
    static Failure in_forked_process();
    const char* what() const noexcept override { return message_.c_str(); }
    void set_python_error() const;

   private:
    Result code_;
    std::string name_;
    std::string message_;
};

// The exception type, a new reference; made by the module's initialization.
PyObject* make_error_type();

// The initialized driver. Throws Failure without one, without a GPU, and in a process forked after it was initialized.
const Driver& driver();

// The initialized driver where a kernel has been loaded already, without any of the above.
const Driver& ready_driver() noexcept;
// Whether this process was forked from one that had initialized the driver. It cannot be used here.
bool forked() noexcept;

inline void check(Result code, const char* doing) {
    if (code != kSuccess) throw Failure(code, doing);
}

Device device(int ordinal);
// The context that the CUDA runtime, torch and CuPy use too; retained for the life of the process.
Context primary_context(int ordinal);

// Makes `context` current for a scope, unless it is already. Nothing else changes what the calling thread has current.
class Scope {
   public:
    explicit Scope(Context context) noexcept {
        Context now = nullptr;
        code_ = ready_driver().current(&now);
        if (code_ != kSuccess || now == context) return;
        code_ = ready_driver().push(context);
        pushed_ = code_ == kSuccess;
    }
    ~Scope() {
        Context popped;
        if (pushed_) ready_driver().pop(&popped);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    Result code() const { return code_; }

   private:
    Result code_;
    bool pushed_ = false;
};

}  // namespace onepass::cuda
