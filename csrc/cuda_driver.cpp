#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cstdlib>
#include <vector>

namespace onepass::cuda {
namespace {

Driver table{};
bool initialized = false;  // under the GIL
bool in_forked_child = false;
std::vector<Context> primary_contexts;  // by ordinal; under the GIL
PyObject* error_type = nullptr;

const char* library_name() {
    const char* forced = std::getenv("ONEPASS_LIBCUDA");
    return forced && *forced ? forced : "libcuda.so.1";
}

template <class F>
void find(void* library, const char* name, F*& function, bool required = true) {
    function = reinterpret_cast<F*>(dlsym(library, name));
    if (!function && required) {
        throw Failure(std::string(library_name()) + " has no " + name +
                      ", which every NVIDIA driver for CUDA 11 and later has: upgrade the driver");
    }
}

Driver open_driver() {
    void* library = dlopen(library_name(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        throw Failure(std::string("no NVIDIA driver (") + dlerror() +
                      "): install one, or give the container the NVIDIA runtime; nvidia-smi must work. "
                      "NumPy arrays and CPU tensors need none");
    }
    Driver d{};
    find(library, "cuInit", d.init);
    find(library, "cuDriverGetVersion", d.version);
    find(library, "cuGetErrorName", d.error_name);
    find(library, "cuDeviceGetCount", d.device_count);
    find(library, "cuDeviceGet", d.device_get);
    find(library, "cuDeviceGetName", d.device_name);
    find(library, "cuDeviceGetAttribute", d.device_attribute);
    find(library, "cuDeviceTotalMem_v2", d.device_memory);
    find(library, "cuDevicePrimaryCtxRetain", d.retain_primary);
    find(library, "cuCtxGetCurrent", d.current);
    find(library, "cuCtxPushCurrent_v2", d.push);
    find(library, "cuCtxPopCurrent_v2", d.pop);
    find(library, "cuMemGetInfo_v2", d.memory_info);
    find(library, "cuModuleLoadData", d.load_module);
    find(library, "cuModuleGetFunction", d.get_function);
    find(library, "cuFuncGetAttribute", d.function_attribute);
    find(library, "cuFuncSetAttribute", d.set_function_attribute);
    find(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor", d.occupancy);
    find(library, "cuLaunchKernel", d.launch);
    find(library, "cuThreadExchangeStreamCaptureMode", d.exchange_capture_mode);
    find(library, "cuMemAlloc_v2", d.allocate);
    find(library, "cuMemFree_v2", d.free);
    find(library, "cuEventCreate", d.create_event);
    find(library, "cuEventDestroy_v2", d.destroy_event);
    find(library, "cuEventRecord", d.record_event);
    find(library, "cuStreamWaitEvent", d.wait_event);
    find(library, "cuStreamCreate", d.create_stream);
    find(library, "cuStreamSynchronize", d.synchronize_stream);
    find(library, "cuMemsetD8Async", d.set_bytes);
    find(library, "cuLaunchKernelEx", d.launch_ex, false);
    find(library, "cuOccupancyMaxActiveClusters", d.clusters, false);
    find(library, "cuFuncGetParamInfo", d.parameter_info, false);
    find(library, "cuStreamGetCaptureInfo_v2", d.capture_info, false);
    find(library, "cuStreamGetId", d.stream_id, false);
    find(library, "cuUserObjectCreate", d.create_user_object, false);
    find(library, "cuUserObjectRelease", d.release_user_object, false);
    find(library, "cuGraphRetainUserObject", d.retain_user_object, false);
    return d;
}

std::string version_text() {
    int version = 0;
    if (!table.version || table.version(&version) != kSuccess) return "an unknown CUDA version";
    return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string memory_text() {
    std::size_t free = 0, total = 0;
    if (!table.memory_info || table.memory_info(&free, &total) != kSuccess) return "";
    return " (" + std::to_string(free >> 20) + " of " + std::to_string(total >> 20) + " MiB are free)";
}

// What a person can do about it.
std::string remedy(Status code) {
    switch (code) {
        case 1:    // INVALID_VALUE
        case 400:  // INVALID_HANDLE
        case 500:  // NOT_FOUND
            return "This is a bug in onepass: please report it with the output of onepass.explain";
        case kOutOfMemory:
            return "Free memory on this GPU: other processes (nvidia-smi shows them), or torch.cuda.empty_cache()";
        case 4:  // DEINITIALIZED
            return "The process is ending: make no GPU calls from exit handlers";
        case 34:   // STUB_LIBRARY
        case 803:  // SYSTEM_DRIVER_MISMATCH
            return "The driver's library does not belong to the running driver: reinstall it, or reboot";
        case 46:   // DEVICE_UNAVAILABLE
        case 101:  // INVALID_DEVICE
            return "The GPU is in exclusive use or not there: see nvidia-smi and CUDA_VISIBLE_DEVICES";
        case 100:  // NO_DEVICE
            return "No GPU is visible: see nvidia-smi, and whether CUDA_VISIBLE_DEVICES hides it";
        case 35:   // INSUFFICIENT_DRIVER
        case 36:   // CALL_REQUIRES_NEWER_DRIVER
        case 200:  // INVALID_IMAGE
        case 209:  // NO_BINARY_FOR_GPU
        case 218:  // INVALID_PTX
        case 222:  // UNSUPPORTED_PTX_VERSION
        case 300:  // INVALID_SOURCE
        case 804:  // COMPAT_NOT_SUPPORTED_ON_DEVICE
            return "The driver supports " + version_text() +
                   ": upgrade it, or install an nvidia-cuda-nvrtc of that version or older, then run "
                   "`onepass cache clear`";
        case 701:  // LAUNCH_OUT_OF_RESOURCES
        case 720:  // COOPERATIVE_LAUNCH_TOO_LARGE
        case 912:  // INVALID_CLUSTER_SIZE
            return "The plan asks for more than this GPU has: please report it with the output of onepass.explain";
        case 201:  // INVALID_CONTEXT
        case 709:  // CONTEXT_IS_DESTROYED
            return "The GPU was reset by this process (cudaDeviceReset?): restart the process";
        case 214:  // ECC_UNCORRECTABLE
        case 220:  // NVLINK_UNCORRECTABLE
        case 226:  // CONTAINED
        case 700:  // ILLEGAL_ADDRESS
        case 702:  // LAUNCH_TIMEOUT
        case 710:  // ASSERT
        case 714:  // HARDWARE_STACK_ERROR
        case 715:  // ILLEGAL_INSTRUCTION
        case 716:  // MISALIGNED_ADDRESS
        case 717:  // INVALID_ADDRESS_SPACE
        case 718:  // INVALID_PC
        case 719:  // LAUNCH_FAILED
            return "An earlier kernel of this process, of any library, failed, and nothing can run on this GPU any "
                   "more: restart the process; compute-sanitizer finds the kernel";
        case 900:  // STREAM_CAPTURE_UNSUPPORTED
        case 901:  // STREAM_CAPTURE_INVALIDATED
        case 906:  // STREAM_CAPTURE_IMPLICIT
        case 908:  // STREAM_CAPTURE_WRONG_THREAD
            return "A CUDA graph is being captured: make a call with these arguments once before the capture, on the "
                   "stream that is captured";
        default: return "See the CUDA driver API's description of this code";
    }
}

}  // namespace

Failure::Failure(Status code, const std::string& doing) : code_(code) {
    const char* name = nullptr;
    if (table.error_name) table.error_name(code, &name);
    name_ = name ? name : "CUDA_ERROR_" + std::to_string(code);
    message_ =
        "onepass could not " + doing + ": " + name_ + (code == kOutOfMemory ? memory_text() : "") + ". " + remedy(code);
}

Failure::Failure(const std::string& message)
    : code_(kNotInitialized), name_("CUDA_ERROR_NOT_INITIALIZED"), message_("onepass: " + message) {}

Failure Failure::in_forked_process() {
    return Failure(
        "this process was forked from one that had used CUDA, which CUDA does not survive: start processes by 'spawn' "
        "or 'forkserver' (multiprocessing.set_start_method)");
}

void Failure::set_python_error() const {
    if (code_ == kOutOfMemory) {
        PyErr_SetString(PyExc_MemoryError, what());
        return;
    }
    PyObject* error = PyObject_CallFunction(error_type, "s", what());
    PyObject* code = error ? PyLong_FromLong(code_) : nullptr;
    PyObject* name = error ? PyUnicode_FromString(name_.c_str()) : nullptr;
    if (code && name && PyObject_SetAttrString(error, "code", code) == 0 &&
        PyObject_SetAttrString(error, "name", name) == 0)
        PyErr_SetObject(error_type, error);
    Py_XDECREF(code);
    Py_XDECREF(name);
    Py_XDECREF(error);
}

PyObject* make_error_type() {
    error_type = PyErr_NewExceptionWithDoc(
        "onepass.cuda.CudaError", "The driver refused. `name` and `code` are CUDA's; the message says what to do.",
        PyExc_RuntimeError, nullptr);
    Py_XINCREF(error_type);
    return error_type;
}

const Driver& driver() {
    if (in_forked_child) throw Failure::in_forked_process();
    if (initialized) return table;
    table = open_driver();
    check(table.init(0), "initialize the NVIDIA driver");
    pthread_atfork(nullptr, nullptr, [] { in_forked_child = true; });
    initialized = true;
    return table;
}

const Driver& ready_driver() noexcept { return table; }
bool forked() noexcept { return in_forked_child; }

Device device(int ordinal) {
    const Driver& d = driver();
    Device found;
    check(d.device_get(&found, ordinal), "find the GPU");
    return found;
}

Context primary_context(int ordinal) {
    const Device found = device(ordinal);
    const auto index = static_cast<std::size_t>(ordinal);
    if (primary_contexts.size() <= index) primary_contexts.resize(index + 1);
    if (!primary_contexts[index]) check(table.retain_primary(&primary_contexts[index], found), "use the GPU");
    return primary_contexts[index];
}

}  // namespace onepass::cuda
