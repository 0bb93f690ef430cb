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
};

// Calls visit(k, vector k of the row) for rows [begin, end) of kVectors vectors. Of one vector, `lanes` of it.
template <int kVectors, class T, class Visit>
ONEPASS_INLINE void visit_columns(const ColumnSpan<T>& span, std::int64_t begin, std::int64_t end, int lanes,
                                  Visit&& visit) {
    constexpr int W = kLanes<Compute<T>>;
    for (std::int64_t d = begin; d < end; ++d) {
        const T* x = span.x + d * span.stride;
        fetch_soon(x + TileGrid<T>::kAhead * span.stride, kVectors * W);
#pragma GCC unroll 16
        for (int k = 0; k < kVectors; ++k) {
            visit(k, kVectors > 1 || lanes == W ? load(x + k * W) : load_n(x, lanes, Compute<T>(0)));
        }
    }
}

// The sums of kVectors vectors of columns, in float64, rounded to C. Vector sums are moved to float64 after sixteen
// additions, as in a row (kSumBlock).
template <int kVectors, class T, class C = Compute<T>>
ONEPASS_INLINE void sum_columns(const ColumnSpan<T>& span, int lanes, bool mean, Vec<C> (&result)[kVectors]) {
    constexpr std::int64_t kBlock = TileGrid<T>::kBlock;
    WideSum<C> total[kVectors];
    for (std::int64_t block = 0; block < span.rows; block += kBlock) {
        const std::int64_t end = block + kBlock < span.rows ? block + kBlock : span.rows;
        if constexpr (sizeof(C) == 8) {
            visit_columns<kVectors>(span, block, end, lanes,
                                    [&](int k, Vec<C> v) ONEPASS_INLINE_BODY { total[k].add(v); });
        } else {
            Vec<C> sum[kVectors];
            for (Vec<C>& s : sum) s = C(0);
            visit_columns<kVectors>(span, block, end, lanes,
                                    [&](int k, Vec<C> v) ONEPASS_INLINE_BODY { sum[k] = sum[k] + v; });
            for (int k = 0; k < kVectors; ++k) total[k].add(sum[k]);
        }
    }
    alignas(kCacheLine) double all[kVectors][kLanes<C>];
    for (int k = 0; k < kVectors; ++k) total[k].store_lanes(all[k]);
    alignas(kCacheLine) C rounded[kVectors][kLanes<C>];
    const double parts = mean ? static_cast<double>(span.rows) : 1.0;
#pragma GCC unroll 1
    for (int k = 0; k < kVectors; ++k) {
        for (int i = 0; i < kLanes<C>; ++i) rounded[k][i] = static_cast<C>(all[k][i] / parts);
    }
    for (int k = 0; k < kVectors; ++k) result[k] = load(rounded[k]);
}

// kSign = 1: the maxima of kVectors vectors of columns, -1: the minima. Returns false if there is a NaN.
template <int kSign, int kVectors, class T, class C = Compute<T>>
ONEPASS_INLINE bool extremes_of_columns(const ColumnSpan<T>& span, int lanes, Vec<C> (&result)[kVectors]) {
    Vec<C> best[kVectors], nan = C(0);
    for (Vec<C>& b : best) b = -kSign * kInfinity<C>;
    visit_columns<kVectors>(span, 0, span.rows, lanes, [&](int k, Vec<C> v) ONEPASS_INLINE_BODY {
        best[k] = kSign > 0 ? max(v, best[k]) : min(v, best[k]);
        nan = nan_or(v, nan);
    });
    for (int k = 0; k < kVectors; ++k) result[k] = best[k];
    return reduce_sum(nan) == 0;
}

// One operation on `width` columns, results to y side by side.
template <class T>
struct ColumnReduction {
    using C = Compute<T>;
    static constexpr int W = kLanes<C>;
    static constexpr int kMost = kVectorBytes == 64 ? 16 : 8;  // half of the registers
    static constexpr int kFew = 4;                             // enough that an addition is not waited for

    Op op;
    ColumnSpan<T> span;
    int width;
    T* y;

    // False if there is a NaN and the operation wants to know where: the results are not to be used.
    bool run() const {
        bool done = true;
        int j = 0;
        for (; j + kMost * W <= width; j += kMost * W) done &= group<kMost>(j, W);
        return done && rest<kFew>(j);
    }

   private:
    // Columns from j on. The last group reaches back over columns that are done: narrow ones would walk down as often.
    template <int kVectors>
    bool rest(int j) const {
        if (j == width) return true;
        bool done = true;
        if (width < kVectors * W) {
            for (; j < width; j += W) done &= group<1>(j, width - j < W ? width - j : W);
            return done;
        }
        for (; width - j > kVectors * W; j += kVectors * W) done &= group<kVectors>(j, W);
        return done && group<kVectors>(width - kVectors * W, W);
    }

    template <int kVectors>
    ONEPASS_APART bool group(int column, int lanes) const {
        const ColumnSpan<T> columns{span.x + column, span.stride, span.rows};
        Vec<C> result[kVectors];
        bool done = true;
        if (op == Op::amax) {
            done = extremes_of_columns<1>(columns, lanes, result);
        } else if (op == Op::amin) {
            done = extremes_of_columns<-1>(columns, lanes, result);
        } else {
            sum_columns(columns, lanes, op == Op::mean, result);
        }
        if (lanes < W) {
            store_n(y + column, result[0], lanes);
        } else {
            for (int k = 0; k < kVectors; ++k) store(y + column + k * W, result[k]);
        }
        return done;
    }
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
