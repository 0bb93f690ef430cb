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

// How many tasks a thread takes at a time, each reading `task_bytes`: about `run_bytes` of them, but at most a quarter
// of its share, so that threads finish together. Inlined always: what is compiled for one instruction set must not be
// linked into another's kernels.
__attribute__((always_inline)) inline std::int64_t grain_of(std::int64_t tasks, std::int64_t task_bytes,
                                                            std::int64_t run_bytes, int threads) {
    const std::int64_t by_size = run_bytes / (task_bytes > 0 ? task_bytes : 1) + 1;
    const std::int64_t by_share = (tasks - 1) / (threads * 4) + 1;
    return by_size < by_share ? by_size : by_share;
}

// What is read at a time where a pipeline has to fill first, and where none has to and the second cache may keep it.
constexpr std::int64_t kPipelinedRun = std::int64_t{1} << 20;
constexpr std::int64_t kPlainRun = std::int64_t{1} << 18;

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
enum class Scratch { values, input, output, states, gathered, gathered_second, gathered_third, gathered_results };
void* scratch(Scratch slot, std::size_t bytes);

}  // namespace onepass
