// Rows of a tile's results that lie one behind the other, and end within cache lines: what is left of a row is kept
// until the next one fills it up, so that all goes past the cache in whole pieces.
#pragma once

#include "span_results.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class JoinedRows {
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr int W = kLanes<C>;
    static constexpr int kPiece = W * static_cast<int>(sizeof(T));  // bytes that a vector becomes

   public:
    // Where lanes can be moved, a vector waits, and not a line of memory: what is put together there by two stores is
    // read only when both are in the first cache, and before that all stores past it have to be in memory. Measured on
    // a Zen 4, by one thread and by two, results 16 bytes into a line, dim 1, times over those by such a line: softmax
    // of 200x32 0.77 and 0.67, 100x64 0.85 and 0.82, 100x128 0.90 and 0.88, its gradient 0.77 and 0.76, 0.82 and 0.87,
    // 0.89 and 0.91; by AVX2 0.83 and 0.75, 0.82 and 0.95, 0.92 and 1.01, gradient 0.88, 0.91 and 0.86, 0.96 and 1.01.
    static constexpr bool kInRegisters = sizeof(C) == 4 && kLookupLanes == W;

    // Of rows that an Emitter writes.
    Carry carry;

    // Writes the row at y, of a vector or more, value(j, lanes) being the vector at column j. kNormal: none of the
    // results is subnormal.
    template <bool kNormal, class Value>
    ONEPASS_INLINE void write(T* y, int width, Value&& value) {
        const auto past = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % kPiece / sizeof(T));
        int j = past == 0 ? 0 : W - past;
        if (end_ != y) {
            flush_kept();
            if (j > 0) store_n(y, value(0, j), j);
        } else if (past > 0) {
            stream(y - past, filled_up(value(0, W), past));
        }
        if constexpr (kNormal) {
            // A pair of 16-bit elements is one store, which wants to be aligned.
            const bool halfway = sizeof(T) == 2 && reinterpret_cast<std::uintptr_t>(y + j) % (2 * kPiece) != 0;
            if (halfway && j + W <= width) {
                stream(y + j, value(j, W));
                j += W;
            }
            for (; j + 2 * W <= width; j += 2 * W) stream_normal(y + j, value(j, W), value(j + W, W));
        }
        for (; j + W <= width; j += W) stream(y + j, value(j, W));
        kept_ = width - j;
        if (kept_ > 0) last_ = value(j, kept_);
        end_ = y + width;
    }

    void flush() {
        carry.flush();
        flush_kept();
    }

   private:
    // The kept lanes, and after those the first of the next row.
    ONEPASS_INLINE V filled_up(V next, int n) const {
        typename V::Bits lanes;
        for (int lane = 0; lane < W; ++lane) lanes[lane] = static_cast<std::uint32_t>(lane);
        const auto kept = static_cast<std::uint32_t>(n);
        return lanes < kept ? last_.v : lookup(next, lanes - kept).v;
    }
    void flush_kept() {
        if (end_ && kept_ > 0) store_n(end_ - kept_, last_, kept_);
        end_ = nullptr;
    }

    V last_;            // the last results of a row, fewer than a vector
    T* end_ = nullptr;  // of that row; null: nothing is kept
    int kept_ = 0;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
