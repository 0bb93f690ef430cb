// What a generated table of kernels needs to be run by runner.cpp.
#pragma once

#include <cstdint>

#include "cusim.h"

namespace cusim {

struct Entry {
    const char* (*run)(const Launch& launch, const void* job);
    std::size_t job_bytes;
};

template <auto kKernel>
struct Caller;

// The kernel's one parameter is copied for every thread, as a launch does.
template <class Job, void (*kKernel)(Job)>
struct Caller<kKernel> {
    static void call(const void* argument) {
        Job job;
        memcpy(static_cast<void*>(&job), argument, sizeof job);
        kKernel(job);
    }
    static constexpr Entry entry{[](const Launch& launch, const void* job) { return cusim::run(launch, call, job); },
                                 sizeof(Job)};
};

}  // namespace cusim

extern const cusim::Entry* const kTables[];
extern const std::size_t kTableSizes[];
extern const std::size_t kTableCount;
