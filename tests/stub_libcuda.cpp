// A libcuda for tests on machines without a GPU: every call succeeds and is recorded, or fails with the code it was
// told to fail with. It has two GPUs, no memory and no kernels; what a launch was given is kept for the test to look
// at.
//
//     c++ -std=c++17 -shared -fPIC -o libcuda.so stub_libcuda.cpp
//     ONEPASS_LIBCUDA=./libcuda.so python ...
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kDevices = 2;
constexpr int kArgumentBytes = 4096;

struct Launch {
    std::uint32_t grid[3], block[3], shared_bytes, cluster, cooperative;
    std::uint64_t stream, function, context;
    unsigned char arguments[kArgumentBytes];
};

struct State {
    std::mutex mutex;
    std::string calls;  // names, each with a newline behind it
    std::map<std::string, int> failures;
    std::map<std::pair<std::uint64_t, int>, int> function_attributes;
    std::map<int, int> device_attributes;
    int occupancy = 2, clusters = 33;
    // The capture that is under way on each stream, the id of each (else its handle), and what graphs hold.
    std::map<std::uint64_t, std::uint64_t> captures, stream_ids;
    std::map<std::uint64_t, std::pair<void (*)(void*), void*>> user_objects;
    std::map<std::uint64_t, std::uint64_t> holders;  // graph of a user object
    std::size_t parameter_bytes = 0;
    Launch last{};
    bool recording = true;
};
// Never destroyed: a test's interpreter may call to its very end.
State& state = *new State;
thread_local std::uint64_t context_stack[16];
thread_local int depth = 0;
thread_local int capture_mode = 0;

// What every entry starts with: its code, once it has been recorded.
int enter(const char* name) {
    if (!state.recording) return 0;
    std::lock_guard lock(state.mutex);
    state.calls += name;
    state.calls += '\n';
    const auto found = state.failures.find(name);
    return found == state.failures.end() ? 0 : found->second;
}

std::uint64_t current() { return depth > 0 ? context_stack[depth - 1] : 0; }

// H200's, where a plan or a grid depends on it.
int device_attribute(int attribute) {
    const auto found = state.device_attributes.find(attribute);
    if (found != state.device_attributes.end()) return found->second;
    switch (attribute) {
        case 10: return 32;        // WARP_SIZE
        case 16: return 132;       // MULTIPROCESSOR_COUNT
        case 36: return 3201000;   // MEMORY_CLOCK_RATE, kHz
        case 37: return 6144;      // GLOBAL_MEMORY_BUS_WIDTH
        case 38: return 60 << 20;  // L2_CACHE_SIZE
        case 39: return 2048;      // MAX_THREADS_PER_MULTIPROCESSOR
        case 75: return 9;         // COMPUTE_CAPABILITY_MAJOR
        case 76: return 0;         // COMPUTE_CAPABILITY_MINOR
        case 81: return 233472;    // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        case 82: return 65536;     // MAX_REGISTERS_PER_MULTIPROCESSOR
        case 97: return 232448;    // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        default: return 1;
    }
}

int record(const char* name, Launch launch, void** parameters) {
    const int code = enter(name);
    if (!state.recording) return 0;
    std::lock_guard lock(state.mutex);
    launch.context = current();
    std::memcpy(launch.arguments, parameters[0], state.parameter_bytes ? state.parameter_bytes : kArgumentBytes);
    state.last = launch;
    return code;
}

struct Attribute {
    int id;
    char padding[4];
    union {
        char size[64];
        unsigned value[16];
    };
};
struct Config {
    unsigned grid[3], block[3], shared_bytes;
    std::uint64_t stream;
    Attribute* attributes;
    unsigned count;
};

}  // namespace

// ---- for the test ----

API void stub_reset() {
    std::lock_guard lock(state.mutex);
    state.calls.clear();
    state.failures.clear();
    state.function_attributes.clear();
    state.device_attributes.clear();
    state.occupancy = 2;
    state.clusters = 33;
    state.captures.clear();
    state.stream_ids.clear();
    state.parameter_bytes = 0;
    state.last = {};
    state.recording = true;
}
API void stub_fail(const char* name, int code) { state.failures[name] = code; }
API const char* stub_calls() { return state.calls.c_str(); }
API void stub_forget_calls() { state.calls.clear(); }
API const Launch* stub_launch() { return &state.last; }
API void stub_set_occupancy(int blocks) { state.occupancy = blocks; }
API void stub_set_clusters(int clusters) { state.clusters = clusters; }
API void stub_set_parameter_bytes(std::size_t bytes) { state.parameter_bytes = bytes; }
API void stub_set_device_attribute(int attribute, int value) { state.device_attributes[attribute] = value; }
API int stub_function_attribute(std::uint64_t function, int attribute) {
    return state.function_attributes[{function, attribute}];
}
API void stub_set_capture(std::uint64_t stream, std::uint64_t id) { state.captures[stream] = id; }
API void stub_set_stream_id(std::uint64_t stream, std::uint64_t id) { state.stream_ids[stream] = id; }
// The graph of a capture is gone, and all that it held.
API int stub_destroy_graph(std::uint64_t capture) {
    int destroyed = 0;
    for (auto& [object, graph] : state.holders) {
        if (graph != capture || state.user_objects.count(object) == 0) continue;
        const auto [destroy, argument] = state.user_objects[object];
        state.user_objects.erase(object);
        destroy(argument);
        ++destroyed;
    }
    return destroyed;
}
API void stub_set_context(std::uint64_t context) {
    depth = 1;
    context_stack[0] = context;
}
API std::uint64_t stub_context() { return current(); }
API int stub_depth() { return depth; }
API void stub_record(bool recording) { state.recording = recording; }

// ---- the driver API ----

API int cuInit(unsigned) { return enter("cuInit"); }
API int cuDriverGetVersion(int* version) {
    *version = 13010;
    return enter("cuDriverGetVersion");
}
API int cuGetErrorName(int code, const char** name) {
    static const std::map<int, const char*> names = {
        {1, "CUDA_ERROR_INVALID_VALUE"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {35, "CUDA_ERROR_INSUFFICIENT_DRIVER"},
        {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER"},
        {100, "CUDA_ERROR_NO_DEVICE"},
        {101, "CUDA_ERROR_INVALID_DEVICE"},
        {200, "CUDA_ERROR_INVALID_IMAGE"},
        {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
        {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
        {719, "CUDA_ERROR_LAUNCH_FAILED"},
        {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
        {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    };
    const auto found = names.find(code);
    *name = found == names.end() ? nullptr : found->second;
    return found == names.end();
}
API int cuDeviceGetCount(int* count) {
    *count = kDevices;
    return enter("cuDeviceGetCount");
}
API int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    const int code = enter("cuDeviceGet");
    return code || (ordinal >= 0 && ordinal < kDevices) ? code : 101;
}
API int cuDeviceGetName(char* name, int size, int) {
    std::snprintf(name, static_cast<std::size_t>(size), "NVIDIA H200");
    return enter("cuDeviceGetName");
}
API int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = device_attribute(attribute);
    return enter("cuDeviceGetAttribute");
}
API int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
    *bytes = std::size_t{141} << 30;
    return enter("cuDeviceTotalMem_v2");
}
API int cuDevicePrimaryCtxRetain(std::uint64_t* context, int device) {
    *context = 0x100u + static_cast<unsigned>(device);
    return enter("cuDevicePrimaryCtxRetain");
}
API int cuCtxGetCurrent(std::uint64_t* context) {
    *context = current();
    return enter("cuCtxGetCurrent");
}
API int cuCtxPushCurrent_v2(std::uint64_t context) {
    const int code = enter("cuCtxPushCurrent_v2");
    if (code == 0) context_stack[depth++] = context;
    return code;
}
API int cuCtxPopCurrent_v2(std::uint64_t* context) {
    *context = context_stack[--depth];
    return enter("cuCtxPopCurrent_v2");
}
API int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    *free = std::size_t{5} << 20;
    *total = std::size_t{141} << 30;
    return enter("cuMemGetInfo_v2");
}
API int cuModuleLoadData(std::uint64_t* module, const void* image) {
    *module = 0x1000;
    const int code = enter(capture_mode == 2 ? "cuModuleLoadData" : "cuModuleLoadData outside relaxed capture");
    return code || std::memcmp(image, "\177ELF", 4) == 0 ? code : 200;
}
API int cuModuleGetFunction(std::uint64_t* function, std::uint64_t, const char* name) {
    static std::uint64_t next = 0x10000;
    *function = next++;
    return *name ? enter("cuModuleGetFunction") : 500;
}
API int cuFuncGetAttribute(int* value, int attribute, std::uint64_t) {
    *value = attribute == 4   ? 40
             : attribute == 0 ? 1024
             : attribute == 1 ? 512
                              : 0;  // registers, threads, static shared
    return enter("cuFuncGetAttribute");
}
API int cuFuncSetAttribute(std::uint64_t function, int attribute, int value) {
    state.function_attributes[{function, attribute}] = value;
    return enter("cuFuncSetAttribute");
}
API int cuFuncGetParamInfo(std::uint64_t, std::size_t, std::size_t* offset, std::size_t* size) {
    *offset = 0;
    *size = state.parameter_bytes;
    return enter("cuFuncGetParamInfo");
}
API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, std::uint64_t, int, std::size_t) {
    *blocks = state.occupancy;
    return enter("cuOccupancyMaxActiveBlocksPerMultiprocessor");
}
API int cuOccupancyMaxActiveClusters(int* clusters, std::uint64_t, const Config*) {
    *clusters = state.clusters;
    return enter("cuOccupancyMaxActiveClusters");
}
API int cuThreadExchangeStreamCaptureMode(int* mode) {
    std::swap(*mode, capture_mode);
    return enter("cuThreadExchangeStreamCaptureMode");
}
API int cuLaunchKernel(std::uint64_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared_bytes, std::uint64_t stream, void** parameters, void**) {
    return record("cuLaunchKernel", {{gx, gy, gz}, {bx, by, bz}, shared_bytes, 1, 0, stream, function, 0, {}},
                  parameters);
}
API int cuLaunchKernelEx(const Config* c, std::uint64_t function, void** parameters, void**) {
    Launch launch{{c->grid[0], c->grid[1], c->grid[2]},
                  {c->block[0], c->block[1], c->block[2]},
                  c->shared_bytes,
                  1,
                  0,
                  c->stream,
                  function,
                  0,
                  {}};
    for (unsigned i = 0; i < c->count; ++i) {
        if (c->attributes[i].id == 4) launch.cluster = c->attributes[i].value[0];
        if (c->attributes[i].id == 2) launch.cooperative = c->attributes[i].value[0];
    }
    return record("cuLaunchKernelEx", launch, parameters);
}
API int cuMemAlloc_v2(void** address, std::size_t bytes) {
    const int code = enter(capture_mode == 2 ? "cuMemAlloc_v2" : "cuMemAlloc_v2 outside relaxed capture");
    *address = code ? nullptr : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    return code;
}
API int cuMemFree_v2(void* address) {
    std::free(address);
    return enter(capture_mode == 2 ? "cuMemFree_v2" : "cuMemFree_v2 outside relaxed capture");
}
API int cuEventCreate(std::uint64_t* event, unsigned) {
    *event = 0x2000;
    return enter("cuEventCreate");
}
API int cuEventDestroy_v2(std::uint64_t) { return enter("cuEventDestroy_v2"); }
API int cuEventRecord(std::uint64_t, std::uint64_t) { return enter("cuEventRecord"); }
API int cuStreamWaitEvent(std::uint64_t, std::uint64_t, unsigned) { return enter("cuStreamWaitEvent"); }
API int cuStreamCreate(std::uint64_t* stream, unsigned) {
    *stream = 0x3000;
    return enter("cuStreamCreate");
}
API int cuStreamSynchronize(std::uint64_t) { return enter("cuStreamSynchronize"); }
API int cuMemsetD8Async(void* address, unsigned char value, std::size_t bytes, std::uint64_t) {
    const int code = enter(capture_mode == 2 ? "cuMemsetD8Async" : "cuMemsetD8Async outside relaxed capture");
    if (code == 0) std::memset(address, value, bytes);
    return code;
}
API int cuStreamGetCaptureInfo_v2(std::uint64_t stream, int* status, std::uint64_t* id, std::uint64_t* graph,
                                  const void**, std::size_t*) {
    const auto found = state.captures.find(stream);
    *status = found != state.captures.end() && found->second != 0;
    *id = *graph = *status ? found->second : 0;
    return enter("cuStreamGetCaptureInfo_v2");
}
API int cuStreamGetId(std::uint64_t stream, unsigned long long* id) {
    const auto found = state.stream_ids.find(stream);
    *id = found == state.stream_ids.end() ? stream : found->second;
    return enter("cuStreamGetId");
}
API int cuUserObjectCreate(std::uint64_t* object, void* argument, void (*destroy)(void*), unsigned, unsigned) {
    static std::uint64_t next = 1;
    *object = next++;
    const int code = enter("cuUserObjectCreate");
    if (code == 0) state.user_objects[*object] = {destroy, argument};
    return code;
}
API int cuUserObjectRelease(std::uint64_t object, unsigned) {
    const auto [destroy, argument] = state.user_objects[object];
    state.user_objects.erase(object);
    destroy(argument);
    return enter("cuUserObjectRelease");
}
API int cuGraphRetainUserObject(std::uint64_t graph, std::uint64_t object, unsigned, unsigned) {
    const int code = enter("cuGraphRetainUserObject");
    if (code == 0) state.holders[object] = graph;
    return code;
}
