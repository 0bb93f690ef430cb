// For AddressSanitizer, which knows what was allocated but not how much of it a block or a scratch buffer has in use.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace onepass {

// From now on, of the `size` bytes at `memory` only the first `used` may be touched. Without the sanitizer, nothing.
inline void allow_only([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t used,
                       [[maybe_unused]] std::size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(memory, size);
    __asan_unpoison_memory_region(memory, used);
#endif
}

}  // namespace onepass
