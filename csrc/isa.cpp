#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace onepass {

// AMD's Zen 5 and what comes after it: family 26 on.
bool looks_far_ahead = [] {
#if defined(__x86_64__)
    unsigned leaves, vendor, features, rest, version = 0;
    if (!__get_cpuid(0, &leaves, &vendor, &features, &rest) || vendor != signature_AMD_ebx) return false;
    __get_cpuid(1, &version, &vendor, &features, &rest);
    return (version >> 8 & 15) + (version >> 20 & 255) >= 26;
#else
    return false;
#endif
}();

// Weak: null if ONEPASS_ISAS left the instruction set out of the build.
#define ONEPASS_DECLARE(isa, bytes)                                                                         \
    namespace isa {                                                                                         \
    [[gnu::weak]] Form run_rows(const Job&, const void*, void*);                                            \
    [[gnu::weak]] Form run_tiles(const Job&, const void*, void*);                                           \
    [[gnu::weak]] Form run_gradient_rows(const Job&, const Addresses&, void*);                              \
    [[gnu::weak]] Form run_gradient_tiles(const Job&, const Addresses&, void*);                             \
    [[gnu::weak]] Form run_gathered(const Job&, const Addresses&, void*);                                   \
    [[gnu::weak]] void run_copy(void*, const void*, std::int64_t, bool, int);                               \
    static const Kernels table = {#isa,         run_rows, run_tiles, run_gradient_rows, run_gradient_tiles, \
                                  run_gathered, run_copy, bytes};                                           \
    }

#if defined(__x86_64__)
ONEPASS_DECLARE(v4, 64)
ONEPASS_DECLARE(v3, 32)
ONEPASS_DECLARE(v2, 16)
namespace v4 {
std::uint32_t lacks_bfloat16 = ~0u;  // what kernels ask (simd_avx512.h)
}
// The same where the processor has it.
static const Kernels v4_bf16 = [] {
    Kernels kernels = v4::table;
    kernels.isa = "v4_bf16";
    return kernels;
}();
#else
ONEPASS_DECLARE(generic, 16)
#endif

namespace {

// Best first.
std::vector<const Kernels*> usable() {
    std::vector<const Kernels*> all;
    const auto add = [&](const Kernels& kernels, bool runs_here) {
        if (kernels.rows && runs_here) all.push_back(&kernels);
    };
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512cd");
    add(v4_bf16, v4 && __builtin_cpu_supports("avx512bf16"));
    add(v4::table, v4);
    add(v3::table, v3);
    add(v2::table, __builtin_cpu_supports("sse4.2"));
#else
    add(generic::table, true);
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
#if defined(__x86_64__)
            v4::lacks_bfloat16 = k == &v4_bf16 ? 0 : ~0u;
#endif
            return true;
        }
    }
    return false;
}

const Kernels& kernels() { return *chosen; }
int vector_bytes() { return chosen->vector_bytes; }

}  // namespace onepass
