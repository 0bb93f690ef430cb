// sum, mean, amax and amin down columns that lie side by side: as many vectors of them at once as there are registers
// for, every one of them in its register from the first row to the last.
#pragma once

#include "tile_grid.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Rows of columns, `stride` elements apart.
template <class T>
struct ColumnSpan {
    const T* x;
    std::int64_t stride;
    std::int64_t rows;
    bool far = true;  // rows are in no cache, and too far apart for the processor to look ahead
};

// Calls visit(k, vector k of the row) for rows [begin, end) of kVectors vectors, of the last of which only so many
// lanes are columns.
template <int kVectors, bool kMasked, class T, class Visit>
ONEPASS_INLINE void visit_columns(const ColumnSpan<T>& span, std::int64_t begin, std::int64_t end, int lanes,
                                  Visit&& visit) {
    using C = Compute<T>;
    constexpr int W = kLanes<C>;
    for (std::int64_t d = begin; d < end; ++d) {
        const T* x = span.x + d * span.stride;
        if (span.far) fetch_soon(x + TileGrid<T>::kAhead * span.stride, kVectors * W);
#pragma GCC unroll 16
        for (int k = 0; k < kVectors; ++k) {
            visit(k, kMasked && k == kVectors - 1 ? load_n(x + k * W, lanes, C(0)) : load(x + k * W));
        }
    }
}

// One operation on `width` columns.
template <class T>
class ColumnReduction {
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr int W = kLanes<C>;
    static constexpr int kMost = kVectorBytes == 64 ? 16 : 8;  // half of the registers
    static constexpr int kFew = 4;                             // enough that an addition is not waited for
    // Rows added up in C before they go to float64; of float64 itself, whose total is seven operations a vector, two:
    // by fours sums are wrong by 1.7 ULP instead of 1.1.
    static constexpr std::int64_t kRows = sizeof(C) == 8 ? 2 : TileGrid<T>::kBlock;

   public:
    ColumnReduction(const ColumnSpan<T>& span, int width) : span_(span), width_(width) {}

    // The sums, in float64 and with what that has lost: arrays of whole vectors.
    void sums(double* total, double* lost) const {
        each_group([&]<int kVectors, bool kMasked>(int j, int lanes)
                       ONEPASS_INLINE_BODY { this->add_up<kVectors, kMasked>(j, lanes, total + j, lost + j); });
    }

    // The sums, or the means, rounded.
    void results(bool mean, C* result) const {
        each_group([&]<int kVectors, bool kMasked>(int j, int lanes) ONEPASS_INLINE_BODY {
            if (span_.rows <= kRows && !mean) return this->add_up_few<kVectors, kMasked>(j, lanes, result + j);
            alignas(kCacheLine) double total[kVectors * W], lost[kVectors * W];
            this->add_up<kVectors, kMasked>(j, lanes, total, lost);
            const VecD parts = mean ? static_cast<double>(span_.rows) : 1.0;
            for (int i = 0; i < kVectors * W; i += kLanes<double>) {
                store_rounded(result + j + i, (load(total + i) + load(lost + i)) / parts);
            }
        });
    }

    // kSign = 1: the maxima, -1: the minima, in whole vectors. False if there is a NaN: they are not to be used.
    template <int kSign>
    bool extremes(C* best) const {
        bool numbers = true;
        each_group([&]<int kVectors, bool kMasked>(int j, int lanes) ONEPASS_INLINE_BODY {
            numbers &= this->extremes_of<kSign, kVectors, kMasked>(j, lanes, best + j);
        });
        return numbers;
    }

   private:
    template <class Visit>
    ONEPASS_INLINE void each_group(Visit&& visit) const {
        int j = 0;
        for (; j + kMost * W <= width_; j += kMost * W) visit.template operator()<kMost, false>(j, W);
        for (; j + kFew * W <= width_; j += kFew * W) visit.template operator()<kFew, false>(j, W);
        const int left = width_ - j, last = left % W == 0 ? W : left % W;
        if (left > 3 * W) return visit.template operator()<4, true>(j, last);
        if (left > 2 * W) return visit.template operator()<3, true>(j, last);
        if (left > W) return visit.template operator()<2, true>(j, last);
        if (left > 0) visit.template operator()<1, true>(j, last);
    }

    ColumnSpan<T> from(int column) const { return {span_.x + column, span_.stride, span_.rows, span_.far}; }

    // The sums of rows [begin, end), in C.
    template <bool kMasked, int kVectors>
    ONEPASS_INLINE static void add_up_in_registers(const ColumnSpan<T>& columns, std::int64_t begin, std::int64_t end,
                                                   int lanes, V (&sum)[kVectors]) {
        for (V& s : sum) s = C(0);
        visit_columns<kVectors, kMasked>(columns, begin, end, lanes,
                                         [&](int k, V v) ONEPASS_INLINE_BODY { sum[k] = sum[k] + v; });
    }

    template <int kVectors, bool kMasked>
    ONEPASS_APART void add_up(int column, int lanes, double* totals, double* lost) const {
        const ColumnSpan<T> columns = from(column);
        WideSum<C> total[kVectors];
        for (std::int64_t row = 0; row < span_.rows; row += kRows) {
            V sum[kVectors];
            add_up_in_registers<kMasked>(columns, row, row + kRows < span_.rows ? row + kRows : span_.rows, lanes, sum);
            for (int k = 0; k < kVectors; ++k) total[k].add(sum[k]);
        }
        for (int k = 0; k < kVectors; ++k) total[k].store_parts(totals + k * W, lost + k * W);
    }

    template <int kVectors, bool kMasked>
    ONEPASS_APART void add_up_few(int column, int lanes, C* result) const {
        V sum[kVectors];
        add_up_in_registers<kMasked>(from(column), 0, span_.rows, lanes, sum);
        for (int k = 0; k < kVectors; ++k) store(result + k * W, sum[k]);
    }

    template <int kSign, int kVectors, bool kMasked>
    ONEPASS_APART bool extremes_of(int column, int lanes, C* bests) const {
        const ColumnSpan<T> columns = from(column);
        V best[kVectors], nan = C(0);
        for (V& b : best) b = -kSign * kInfinity<C>;
        visit_columns<kVectors, kMasked>(columns, 0, span_.rows, lanes, [&](int k, V v) ONEPASS_INLINE_BODY {
            best[k] = kSign > 0 ? max(v, best[k]) : min(v, best[k]);
            nan = nan_or(v, nan);
        });
        for (int k = 0; k < kVectors; ++k) store(bests + k * W, best[k]);
        return reduce_sum(nan) == 0;
    }

    ColumnSpan<T> span_;
    int width_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
