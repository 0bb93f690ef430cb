// The part of DLPack 1.x that the engine uses: tensor views and the C exchange API (`__dlpack_c_exchange_api__`), as
// the standard lays them out. https://dmlc.github.io/dlpack
#pragma once

#include <cstdint>

namespace onepass::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaManaged = 13 };
enum TypeCode : std::uint8_t { kFloat = 2, kBfloat = 4 };
constexpr std::uint64_t kReadOnly = 1;

struct Version {
    std::uint32_t major, minor;
};
struct Device {
    std::int32_t type, id;
};
struct DataType {
    std::uint8_t code, bits;
    std::uint16_t lanes;
};
struct Tensor {
    void* data;
    Device device;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};
struct ManagedTensor {
    Version version;
    void* context;
    void (*deleter)(ManagedTensor*);
    std::uint64_t flags;
    Tensor tensor;
};
// What `__dlpack__` hands over unless a newer form is asked for.
struct UnversionedTensor {
    Tensor tensor;
    void* context;
    void (*deleter)(UnversionedTensor*);
};
struct ExchangeHeader {
    Version version;
    ExchangeHeader* previous;
};
struct ExchangeApi {
    ExchangeHeader header;
    int (*allocate)(Tensor* prototype, ManagedTensor** out, void* error_context,
                    void (*set_error)(void* error_context, const char* kind, const char* message));
    int (*managed_from_object)(void* object, ManagedTensor** out);
    int (*object_from_managed)(ManagedTensor* tensor, void** out);
    int (*view_of_object)(void* object, Tensor* out);
    int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

}  // namespace onepass::dlpack
