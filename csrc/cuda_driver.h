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

using Status = int;  // CUresult
using Device = int;
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Graph = struct GraphTag*;
using UserObject = struct UserObjectTag*;
using Address = unsigned long long;

constexpr Status kSuccess = 0, kOutOfMemory = 2, kNotInitialized = 3;

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
    Status (*init)(unsigned flags);
    Status (*version)(int* version);
    Status (*error_name)(Status, const char** name);
    Status (*device_count)(int* count);
    Status (*device_get)(Device*, int ordinal);
    Status (*device_name)(char* name, int size, Device);
    Status (*device_attribute)(int* value, int attribute, Device);
    Status (*device_memory)(std::size_t* bytes, Device);
    Status (*retain_primary)(Context*, Device);
    Status (*current)(Context*);
    Status (*push)(Context);
    Status (*pop)(Context*);
    Status (*memory_info)(std::size_t* free, std::size_t* total);
    Status (*load_module)(Module*, const void* image);
    Status (*get_function)(Function*, Module, const char* name);
    Status (*function_attribute)(int* value, FunctionAttribute, Function);
    Status (*set_function_attribute)(Function, FunctionAttribute, int value);
    Status (*occupancy)(int* blocks, Function, int threads, std::size_t dynamic_shared_bytes);
    Status (*launch)(Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                     unsigned block_z, unsigned shared_bytes, Stream, void** parameters, void** extra);
    Status (*exchange_capture_mode)(int* mode);
    Status (*allocate)(Address*, std::size_t bytes);
    Status (*free)(Address);
    Status (*create_event)(Event*, unsigned flags);
    Status (*destroy_event)(Event);
    Status (*record_event)(Event, Stream);
    Status (*wait_event)(Stream, Event, unsigned flags);
    Status (*create_stream)(Stream*, unsigned flags);
    Status (*synchronize_stream)(Stream);
    Status (*set_bytes)(Address, unsigned char value, std::size_t count, Stream);
    Status (*launch_ex)(const LaunchConfig*, Function, void** parameters, void** extra);            // optional: 11.8
    Status (*clusters)(int* count, Function, const LaunchConfig*);                                  // optional: 11.8
    Status (*parameter_info)(Function, std::size_t index, std::size_t* offset, std::size_t* size);  // optional: 12.4
    Status (*capture_info)(Stream, int* status, unsigned long long* id, Graph*, const void** dependencies,
                           std::size_t* count);           // optional: 11.3
    Status (*stream_id)(Stream, unsigned long long* id);  // optional: 12.0
    Status (*create_user_object)(UserObject*, void* argument, void (*destroy)(void*), unsigned references,
                                 unsigned flags);  // optional, as the next two: 11.3
    Status (*release_user_object)(UserObject, unsigned count);
    Status (*retain_user_object)(Graph, UserObject, unsigned count, unsigned flags);
};

// A call of the driver that failed, as Python will see it: onepass.cuda.CudaError, or MemoryError.
class Failure : public std::exception {
   public:
    // `doing` completes "onepass could not ...".
    Failure(Status code, const std::string& doing);
    // There is no driver to ask.
    explicit Failure(const std::string& message);
    static Failure in_forked_process();
    const char* what() const noexcept override { return message_.c_str(); }
    void set_python_error() const;

   private:
    Status code_;
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

inline void check(Status code, const char* doing) {
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
    Status code() const { return code_; }

   private:
    Status code_;
    bool pushed_ = false;
};

// What a first call does is forbidden while any thread captures a graph, unless it says that it is not part of it.
class OutsideCapture {
   public:
    explicit OutsideCapture(const Driver& driver) : driver_(driver) { driver_.exchange_capture_mode(&mode_); }
    ~OutsideCapture() { driver_.exchange_capture_mode(&mode_); }
    OutsideCapture(const OutsideCapture&) = delete;
    OutsideCapture& operator=(const OutsideCapture&) = delete;

   private:
    const Driver& driver_;
    int mode_ = kCaptureRelaxed;
};

}  // namespace onepass::cuda
