#include "memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <list>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

#include "poison.h"

namespace onepass {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = std::size_t{64} << 10;

class BlockCache {
   public:
    void* take(std::size_t bytes) {
        const std::size_t size = rounded(bytes);
        {
            std::lock_guard lock(mutex_);
            // A block up to an eighth larger serves as well; more would waste what the bound is there to limit.
            auto it = by_size_.lower_bound(size);
            if (it != by_size_.end() && it->first <= size + size / 8) {
                ++stats_.hits;
                void* block = *it->second;
                const std::size_t found = it->first;
                recent_.erase(it->second);
                by_size_.erase(it);
                stats_.cached_bytes -= found;
                --stats_.cached_blocks;
                return hand_out(block, found, bytes);
            }
            ++stats_.misses;
        }
        void* block = map(size);
        if (!block && empty() > 0) block = map(size);
        if (!block) return nullptr;
        std::lock_guard lock(mutex_);
        return hand_out(block, size, bytes);
    }

    void give(void* block) {
        std::lock_guard lock(mutex_);
        const auto it = live_.find(block);
        const std::size_t size = it->second;
        live_.erase(it);
        stats_.live_bytes -= size;
        --stats_.live_blocks;
        if (size > stats_.bound_bytes) {
            unmap(block, size);
            return;
        }
        shrink_to(stats_.bound_bytes - size);
        try {
            Recent node(1, block);
            // Before its equals: the next to take one of this size gets what the processor's cache may still hold.
            by_size_.emplace_hint(by_size_.lower_bound(size), size, node.begin());
            recent_.splice(recent_.begin(), node);
        } catch (const std::bad_alloc&) {  // no memory to keep a list of memory
            unmap(block, size);
            return;
        }
        allow_only(block, 0, size);
        stats_.cached_bytes += size;
        ++stats_.cached_blocks;
    }

    std::size_t empty() {
        std::lock_guard lock(mutex_);
        const std::size_t before = stats_.cached_bytes;
        shrink_to(0);
        return before;
    }

    void set_bound(std::size_t bytes) {
        std::lock_guard lock(mutex_);
        stats_.bound_bytes = bytes;
        shrink_to(bytes);
    }

    MemoryStats stats() {
        std::lock_guard lock(mutex_);
        return stats_;
    }

    // Held over fork, so that the child's copy is consistent whatever other threads were doing.
    std::mutex mutex_;

   private:
    static std::size_t rounded(std::size_t bytes) {
        const std::size_t unit = bytes >= kHugePage ? kHugePage : kPage;
        return (bytes + unit - 1) / unit * unit;
    }

    // Huge pages need an aligned start: map more, and give the ends back.
    static void* map(std::size_t size) {
        const std::size_t slack = size >= kHugePage ? kHugePage : 0;
        if (size + slack < size) return nullptr;
        void* raw = mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (raw == MAP_FAILED) return nullptr;
        if (slack == 0) return raw;
        auto* base = static_cast<char*>(raw);
        const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(raw) % kHugePage;
        const std::size_t head = misaligned == 0 ? 0 : kHugePage - misaligned;
        if (head > 0) munmap(base, head);
        if (slack - head > 0) munmap(base + head + size, slack - head);
#ifdef MADV_HUGEPAGE
        madvise(base + head, size, MADV_HUGEPAGE);
#endif
        return base + head;
    }

    static void unmap(void* block, std::size_t size) {
        allow_only(block, size, size);  // whoever maps these addresses next may use all of them
        munmap(block, size);
    }

    void* hand_out(void* block, std::size_t size, std::size_t asked) {
        try {
            live_.emplace(block, size);
        } catch (const std::bad_alloc&) {
            unmap(block, size);
            return nullptr;
        }
        allow_only(block, asked, size);
        stats_.live_bytes += size;
        ++stats_.live_blocks;
        return block;
    }

    void shrink_to(std::size_t bytes) {
        while (stats_.cached_bytes > bytes) {
            const auto oldest = std::prev(recent_.end());
            for (auto it = by_size_.begin(); it != by_size_.end(); ++it) {
                if (it->second != oldest) continue;
                unmap(*oldest, it->first);
                stats_.cached_bytes -= it->first;
                --stats_.cached_blocks;
                by_size_.erase(it);
                break;
            }
            recent_.erase(oldest);
        }
    }

    using Recent = std::list<void*>;
    Recent recent_;  // free blocks, last used first
    std::multimap<std::size_t, Recent::iterator> by_size_;
    std::unordered_map<void*, std::size_t> live_;
    MemoryStats stats_{};
};

// Never destroyed: results may die after static objects do.
BlockCache& cache() {
    static BlockCache* the_cache = [] {
        auto* c = new BlockCache;
        pthread_atfork([] { cache().mutex_.lock(); }, [] { cache().mutex_.unlock(); }, [] { cache().mutex_.unlock(); });
        return c;
    }();
    return *the_cache;
}

}  // namespace

void* take_block(std::size_t bytes) { return cache().take(bytes); }
void give_block(void* block) noexcept { cache().give(block); }
std::size_t empty_cache() { return cache().empty(); }
void set_cache_bound(std::size_t bytes) { cache().set_bound(bytes); }
MemoryStats memory_stats() { return cache().stats(); }

}  // namespace onepass
