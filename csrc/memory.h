// The memory of large results: blocks that are kept when a result dies and handed to the next one.
//
// Filling fresh pages is most of what a large result costs (30 of torch's 44 ms for 128 MiB), so pages are reused, and
// huge ones asked for. Free blocks are bounded; the least recently used go back to the system first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onepass {

// Results of this many bytes and more live in blocks. Smaller ones come from the array library's own allocator, which
// reuses its memory at that size.
constexpr std::size_t kSmallestBlock = std::size_t{256} << 10;

struct MemoryStats {
    std::size_t bound_bytes, cached_bytes, cached_blocks, live_bytes, live_blocks, hits, misses;
};

void* take_block(std::size_t bytes);  // nullptr when the system has none, even after giving back every free block
void give_block(void* block) noexcept;
std::size_t empty_cache();  // returns the bytes given back
void set_cache_bound(std::size_t bytes);
MemoryStats memory_stats();

}  // namespace onepass
