// The kernels of one instruction set, as the rest of the engine sees them.
#pragma once

#include "onepass/cpu/job.h"

namespace onepass {

struct Kernels {
    const char* isa;
    Form (*rows)(const Job&, const void* x, void* y);
    Form (*tiles)(const Job&, const void* x, void* y);
    Form (*gradient_rows)(const Job&, const Addresses& in, void* y);
    Form (*gradient_tiles)(const Job&, const Addresses& in, void* y);
    Form (*gathered)(const Job&, const Addresses& in, void* y);
    // The limit that benchmarks compare with: a copy by the same threads, with ordinary or non-temporal stores.
    void (*copy)(void* to, const void* from, std::int64_t bytes, bool past_cache, int threads);
    int vector_bytes;
};

}  // namespace onepass
