// Results in GPU memory of the engine's own, for libraries that let nobody write into theirs (JAX).
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "arrays.h"

namespace onepass {

// A contiguous array of fresh memory, computed on the legacy default stream and handed over by `__dlpack__`.
class DeviceArray {
   public:
    // On the GPU that `like` is on. Throws cuda::Failure, nanobind::value_error.
    DeviceArray(nanobind::handle like, const std::vector<std::int64_t>& shape, int dtype);

    void view(ArrayView& view) const;
    int device() const;
    // Holds `object` until the memory is freed, which waits for every kernel that reads or writes either.
    void keep(nanobind::object object);
    // A capsule of this memory. Work that is put on `stream` from now on comes after the computation.
    nanobind::object capsule(std::optional<std::intptr_t> stream) const;

   private:
    struct Block;
    std::shared_ptr<Block> block_;
};

void define_device_array(nanobind::module_& m);

}  // namespace onepass
