#include "isa.h"

namespace onepass {

#define ONEPASS_DECLARE(isa, bytes)                                            \
    namespace isa {                                                            \
    void run_rows(const Job&, const void*, void*);                             \
    void run_tiles(const Job&, const void*, void*);                            \
    void run_copy(void*, const void*, std::int64_t, bool, int);                \
    static const Kernels table = {#isa, run_rows, run_tiles, run_copy, bytes}; \
    }

#if defined(__x86_64__)
ONEPASS_DECLARE(v4_bf16, 64)
ONEPASS_DECLARE(v4, 64)
ONEPASS_DECLARE(v3, 32)
ONEPASS_DECLARE(v2, 16)
#else
ONEPASS_DECLARE(generic, 16)
#endif

namespace {

// Best first.
std::vector<const Kernels*> usable() {
    std::vector<const Kernels*> all;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512cd");
    if (v4 && __builtin_cpu_supports("avx512bf16")) all.push_back(&v4_bf16::table);
    if (v4) all.push_back(&v4::table);
    if (v3) all.push_back(&v3::table);
    if (__builtin_cpu_supports("sse4.2")) all.push_back(&v2::table);
#else
    all.push_back(&generic::table);
#endif
    return all;
}

const Kernels* chosen = nullptr;

}  // namespace

std::vector<std::string> usable_isas() {
    std::vector<std::string> names;
    for (const Kernels* k : usable()) names.emplace_back(k->isa);
    return names;
}

bool choose_isa(const std::string& name) {
    for (const Kernels* k : usable()) {
        if (name.empty() || name == k->isa) {
            chosen = k;
            return true;
        }
    }
    return false;
}

const Kernels& kernels() { return *chosen; }
int vector_bytes() { return chosen->vector_bytes; }

}  // namespace onepass
