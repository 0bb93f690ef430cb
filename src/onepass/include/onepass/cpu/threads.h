// The engine's threads and per-thread scratch, as the kernels see them. Implemented in csrc/threads.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onepass {

// Calls run(context, begin, end) over all of [0, tasks), on at most `threads` threads, the caller's among them. Each
// has an equal share to begin with, the same one in every call, and takes from others' when it is done with that,
// always in runs of `grain`. An exception of a task is rethrown here once all have stopped.
void parallel_for(std::int64_t tasks, std::int64_t grain, int threads, void (*run)(void*, std::int64_t, std::int64_t),
                  void* context);

// Calls body(begin, end) over runs of [0, tasks).
template <class Body>
__attribute__((always_inline)) inline void parallel_ranges(std::int64_t tasks, std::int64_t grain, int threads,
                                                           Body& body) {
    parallel_for(
        tasks, grain, threads,
        [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<Body*>(context))(begin, end); }, &body);
}

// At least `bytes` of this thread's own memory, 64-byte aligned, overwritten by the next call with the same slot.
// Throws std::bad_alloc.
enum class Scratch { values, input, output, states };
void* scratch(Scratch slot, std::size_t bytes);

}  // namespace onepass
