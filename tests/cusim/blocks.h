// What a launch consists of while it runs: threads, the blocks that they are of, and what blocks have of their own:
// memory, barriers, and stores of other blocks that have not arrived. For scheduler.cpp.
#pragma once

#include <map>
#include <vector>

#include "cusim.h"
#include "fiber.h"

namespace cusim {

// Threads that wait for each other: a block at a barrier, a warp in a shuffle. Generations alternate between two places
// for what they exchange: whoever is slow to read one cannot be two behind.
struct Meeting {
    unsigned size;
    unsigned arrived = 0;
    unsigned generation = 0;
    Site site{};
    unsigned value[2][32] = {};
    char order[2] = {};
};

struct Block;
struct Cluster;

struct Thread {
    Fiber fiber;
    View view{};
    Block* block = nullptr;
    Meeting* waits_at = nullptr;
    unsigned generation = 0;
    unsigned cluster_generation = 0;
    Site site{};
    bool done = false;
    bool spins = false;  // waits for what another thread stores
    std::vector<Copy> copies;

    explicit Thread(void (*entry)()) : fiber(entry) {}
    bool ready() const { return !done && (!waits_at || waits_at->generation != generation); }
};

// Shared memory: full of NaN, of any type, and what has not been given out is out of bounds for AddressSanitizer.
class Memory {
   public:
    explicit Memory(std::size_t bytes) : bytes_(bytes) {
        void* memory = nullptr;
        if (posix_memalign(&memory, 128, bytes + kGap) != 0) abort();
        memory_ = static_cast<unsigned char*>(memory);
        memset(memory_, 0xff, bytes);
#ifdef CUSIM_ASAN
        ASAN_POISON_MEMORY_REGION(memory_, bytes + kGap);
#endif
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() {
#ifdef CUSIM_ASAN
        ASAN_UNPOISON_MEMORY_REGION(memory_, bytes_ + kGap);
#endif
        free(memory_);
    }

    void* take(std::size_t bytes) {
        unsigned char* place = memory_ + used_;
        used_ += (bytes + kGap + 127) / 128 * 128;
        if (place + bytes > memory_ + bytes_) abort();
#ifdef CUSIM_ASAN
        ASAN_UNPOISON_MEMORY_REGION(place, bytes);
#endif
        return place;
    }

    // What is where `place` is in that memory.
    void* at_same_place(const Memory& that, const void* place) const {
        const auto offset = static_cast<std::size_t>(static_cast<const unsigned char*>(place) - that.memory_);
        return offset < bytes_ ? memory_ + offset : nullptr;
    }

   private:
    static constexpr std::size_t kGap = 64;
    std::size_t bytes_;
    std::size_t used_ = 0;
    unsigned char* memory_;
};

// A barrier in shared memory: its phase is over when `pending` threads have arrived, and as many bytes as were
// expected.
struct Phases {
    const void* barrier;
    unsigned threads;
    unsigned pending;
    std::int64_t bytes = 0;  // expected and not there yet; below zero: there and not expected yet
    unsigned over = 0;       // phases
    char order[2] = {};

    void advance() {
        if (pending || bytes) return;
        pending = threads;
        ++over;
    }
};

struct Arriving {
    const void* barrier;
    Store store;
};

struct Block {
    Cluster* cluster = nullptr;
    unsigned running;  // threads
    Meeting barrier;
    std::vector<Meeting> warps;
    Memory memory;  // of its variables and the dynamic part
    void* dynamic = nullptr;
    std::map<const void*, void*> variables;
    // With room from the start: what one thread allocates and another frees would look like a race.
    std::vector<Phases> phases;
    std::vector<Arriving> arriving;

    Block(unsigned threads, std::size_t dynamic_bytes)
        : running(threads),
          barrier{threads},
          warps(threads / 32, Meeting{32}),
          memory(kVariables + dynamic_bytes),
          dynamic(memory.take(dynamic_bytes)) {
        phases.reserve(kPhases);
        arriving.reserve(kArriving);
    }

    static constexpr std::size_t kVariables = 64 << 10, kPhases = 16, kArriving = 1 << 12;
};

struct Cluster {
    Meeting meeting;
    std::vector<Block*> blocks{};
};

}  // namespace cusim
