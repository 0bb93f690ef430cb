// Compiled once per instruction set: ONEPASS_ISA names it.
#include "onepass/cpu/rows.h"

#include "dispatch.h"
#include "kernels.h"

namespace onepass {
inline namespace ONEPASS_ISA {

Form run_rows(const Job& job, const void* x, void* y) { return run_typed<Rows>(job, x, y); }

void run_copy(void* to, const void* from, std::int64_t bytes, bool past_cache, int threads) {
    constexpr std::int64_t kPiece = 1 << 16;
    const std::int64_t n = bytes / static_cast<std::int64_t>(sizeof(float));
    auto body = [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t first = begin * kPiece;
        const std::int64_t last = end * kPiece < n ? end * kPiece : n;
        emit(static_cast<float*>(to) + first, last - first, past_cache,
             SideBySide<float>{static_cast<const float*>(from) + first});
        if (past_cache) stream_fence();
    };
    parallel_ranges((n + kPiece - 1) / kPiece, 1, threads, body);
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
