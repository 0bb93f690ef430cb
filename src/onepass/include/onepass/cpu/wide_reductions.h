// sum, mean, amax and amin down many columns that lie side by side and come from memory: a few rows at a time along all
// of the columns, so that memory is read in its order, while what there is of each column waits in the cache. The
// additions of column_reductions.h, and so their bits.
#pragma once

#include "column_reductions.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class WideReduction {
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr int W = kLanes<C>;
    static constexpr int kVectors = sizeof(T) == 2 && kVectorBytes == 64 ? 16 : 8;  // of columns in registers
    static constexpr std::int64_t kTogether = 8;              // rows: so many streams a processor follows
    static constexpr std::int64_t kAhead = 1024 / sizeof(T);  // in each
    // Columns at a time, at most: of float32 and 16 bits 96 KiB wait in the second cache, of float64 128.
    static constexpr int kPiece = 8192;

   public:
    // Columns that are worth it: of rows that follow each other, and of others. Times by this over times by groups of
    // columns all the way down, on two cores of a Zen 4 from memory, by one thread and by two: sums of float32,
    // 8x21x262144 0.53 and 0.71, 32x256x3136 0.68 and 0.81, 64x192x2048 0.71 and 0.78, 256x96x1000 0.88 and 0.93,
    // 4096x4096 0.71 and, by half of the columns each, 0.80; maxima 0.52 and 0.67, 0.77 and 0.82, 0.78 and 0.85, 0.84
    // and 0.87, 0.90 and 1.07; float64 0.61 to 0.90, 0.66 to 0.84. In bare loops, of 512 columns 0.98 to 1.14, of 256
    // 1.57; of runs of 1024 of 4096 columns 0.96, of 768 1.10. Of bfloat16, by two threads, sums and maxima: 262144
    // columns 0.71 and 0.57, 3136 1.07 and 1.08, 1536 0.95 and 1.10. With AVX2, 0.61 to 0.90 and 0.48 to 0.88.
    static constexpr int kLeast = (sizeof(T) == 2 ? 16384 : 3072) / static_cast<int>(sizeof(T));
    static constexpr int kLeastApart = (sizeof(T) == 2 ? 16384 : 8192) / static_cast<int>(sizeof(T));

    WideReduction(const ColumnSpan<T>& span, int width) : span_(span), width_(width) {}

    // From memory. Not where the processor looks far ahead by itself: a Zen 5 was not asked.
    bool is_faster() const {
        const int least = span_.stride == width_ ? kLeast : kLeastApart;
        return !looks_far_ahead && span_.rows > kTogether && width_ >= least;
    }

    // y: the sums, or the means.
    void sums(bool mean, T* y) const {
        each_piece([&](const T* x, int from, int width) {
            const int vectors = (width + W - 1) / W;
            auto* const total = scratch_of<WideSum<C>>(Scratch::states, vectors);
            V* const part = scratch_of<V>(Scratch::values, vectors);
            for (int v = 0; v < vectors; ++v) total[v] = {};
            each_block(x, width, [&]<int kCount>(const T* at, const Block& rows, int j, int lanes) ONEPASS_INLINE_BODY {
                add_rows<kCount>(at, rows, lanes, part + j / W, total + j / W);
            });
            write(y + from, width, [&](int v) {
                if (mean) total[v].divide_by(static_cast<double>(span_.rows));
                return total[v].rounded();
            });
        });
    }

    // The maxima with kSign = 1, the minima with -1. Where there is a NaN, calls again(the first column, columns): what
    // was written there is not to be used.
    template <int kSign, class Again>
    void extremes(T* best, Again&& again) const {
        each_piece([&](const T* x, int from, int width) {
            const int vectors = (width + W - 1) / W;
            V* const waiting = scratch_of<V>(Scratch::values, vectors);
            for (int v = 0; v < vectors; ++v) waiting[v] = -kSign * kInfinity<C>;
            V nan = C(0);
            each_block(x, width, [&]<int kCount>(const T* at, const Block& rows, int j, int lanes) ONEPASS_INLINE_BODY {
                V* const mine = waiting + j / W;
                V b[kCount];
                unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { b[k] = mine[k]; });
                visit_rows<kCount>(at, rows.count, lanes, [&](auto k, V v) ONEPASS_INLINE_BODY {
                    b[k] = more_extreme<kSign>(v, b[k]);
                    nan = nan_or(v, nan);
                });
                unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { mine[k] = b[k]; });
            });
            write(best + from, width, [&](int v) { return waiting[v]; });
            if (reduce_sum(nan) != 0) again(from, width);
        });
    }

   private:
    struct Block {
        std::int64_t first;  // row
        std::int64_t count;
    };

    // Calls visit(x, the first column, columns) for pieces that are about as wide as each other.
    template <class Visit>
    void each_piece(Visit&& visit) const {
        const int pieces = (width_ + kPiece - 1) / kPiece, groups = (width_ + kVectors * W - 1) / (kVectors * W);
        const int piece = (groups + pieces - 1) / pieces * kVectors * W;
        for (int from = 0; from < width_; from += piece) {
            visit(span_.x + from, from, width_ - from < piece ? width_ - from : piece);
        }
    }

    // Calls visit<vectors>(their first element, rows, column, lanes of the last vector), some rows after the others.
    template <class Visit>
    ONEPASS_INLINE void each_block(const T* x, int width, Visit&& visit) const {
        for (std::int64_t row = 0; row < span_.rows; row += kTogether) {
            const Block rows{row, span_.rows - row < kTogether ? span_.rows - row : kTogether};
            const T* const at = x + row * span_.stride;
            each_group<C, kVectors>(width, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
                visit.template operator()<kCount>(at + j, rows, j, lanes);
            });
        }
    }

    template <int kCount, class Visit>
    ONEPASS_INLINE void visit_rows(const T* x, std::int64_t count, int lanes, Visit&& visit) const {
        for (std::int64_t d = 0; d < count; ++d, x += span_.stride) {
            fetch_into<2>(x + kAhead, kCount * W);
            unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { visit(k, vector_of<kCount>(x, k, lanes, C(0))); });
        }
    }

    // Sums in C wait in `part` where they are of fewer rows than go to float64 together.
    template <int kCount>
    ONEPASS_INLINE void add_rows(const T* x, const Block& rows, int lanes, V* part, WideSum<C>* total) const {
        constexpr std::int64_t kRows = kRowsAddedInC<T>, kAtOnce = kRows < kTogether ? kRows : kTogether;
        for (std::int64_t begin = 0; begin < rows.count; begin += kAtOnce) {
            const std::int64_t left = rows.count - begin, count = left < kAtOnce ? left : kAtOnce;
            const std::int64_t row = rows.first + begin;
            const bool begins = row % kRows == 0, ends = (row + count) % kRows == 0 || row + count == span_.rows;
            V sum[kCount];
            unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { sum[k] = begins ? V(C(0)) : part[k]; });
            visit_rows<kCount>(x + begin * span_.stride, count, lanes,
                               [&](auto k, V v) ONEPASS_INLINE_BODY { sum[k] = sum[k] + v; });
            unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { ends ? total[k].add(sum[k]) : void(part[k] = sum[k]); });
        }
    }

    template <class Value>
    static void write(T* y, int width, Value&& value) {
        for (int j = 0; j < width; j += W) {
            width - j < W ? store_n(y + j, value(j / W), width - j) : store(y + j, value(j / W));
        }
    }

    ColumnSpan<T> span_;
    int width_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
