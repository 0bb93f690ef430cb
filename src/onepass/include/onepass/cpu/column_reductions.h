// sum, mean, amax and amin down columns that lie side by side: as many vectors of them at once as there are registers
// for, every one of them in its register from the first row to the last (wide_reductions.h: of many columns from
// memory).
#pragma once

#include "column_groups.h"
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

// Rows added up in C before they go to float64; of float64 itself, whose total is seven operations a vector, two: by
// fours sums are wrong by 1.7 ULP instead of 1.1.
template <class T>
constexpr std::int64_t kRowsAddedInC = sizeof(Compute<T>) == 8 ? 2 : TileGrid<T>::kBlock;

// Calls visit(k, vector k of the row) for rows [begin, end) of kVectors vectors, of the last of which only so many
// lanes are columns. kSoon: whether what is fetched may go into the first cache.
template <int kVectors, bool kMasked, bool kSoon, class T, class Visit>
ONEPASS_INLINE void visit_columns(const ColumnSpan<T>& span, std::int64_t begin, std::int64_t end, int lanes,
                                  Visit&& visit) {
    using C = Compute<T>;
    constexpr int W = kLanes<C>;
    const std::int64_t fetched = span.far ? span.rows - TileGrid<T>::kAhead : 0;
    for (std::int64_t d = begin; d < end; ++d) {
        const T* x = span.x + d * span.stride;
        if (d < fetched) {
            const T* next = x + TileGrid<T>::kAhead * span.stride;
            kSoon ? fetch_soon(next, kVectors * W) : fetch_into<2>(next, kVectors * W);
        }
        unrolled<kVectors>([&](auto k) ONEPASS_INLINE_BODY {
            constexpr bool kPart = kMasked && k == kVectors - 1;
            visit(k, kPart ? load_n(x + k * W, lanes, C(0)) : load(x + k * W));
        });
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
    static constexpr std::int64_t kRows = kRowsAddedInC<T>;
    // Sums of what is not converted have nothing to do but wait for their loads, and take longer by that. On a Zen 5,
    // times to the first cache over those to the second, 256 rows of 1000 to 4096 columns, one thread and two: float32
    // sums 1.01 to 1.14 and 1.04 to 1.12, bfloat16 sums 0.87 to 0.98 and 0.84 to 1.01, float32 maxima 0.73 to 0.9 and
    // 0.77 to 0.95.
    static constexpr bool kSumsSoon = sizeof(T) < sizeof(C);

   public:
    ColumnReduction(const ColumnSpan<T>& span, int width) : span_(span), width_(width) {}

    // The sums, in float64 and with what that has lost: arrays of whole vectors.
    void sums(double* total, double* lost) const {
        each_group([&]<int kVectors, bool kMasked>(int j, int lanes)
                       ONEPASS_INLINE_BODY { this->add_up<kVectors, kMasked>(j, lanes, total + j, lost + j); });
    }

    // y: the sums, or the means.
    void results(bool mean, T* y) const {
        each_group([&]<int kVectors, bool kMasked>(int j, int lanes) ONEPASS_INLINE_BODY {
            if (span_.rows <= 2 * kRows && !mean) return this->add_up_few<kVectors, kMasked>(j, lanes, y + j);
            this->add_up_rounded<kVectors, kMasked>(j, lanes, mean, y + j);
        });
    }

    // The maxima with kSign = 1, the minima with -1. False if there is a NaN: they are not to be used.
    template <int kSign>
    bool extremes(T* best) const {
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

    template <int kVectors, bool kMasked, class Value>
    ONEPASS_INLINE static void put(T* y, int lanes, Value&& value) {
        unrolled<kVectors>([&](auto k) ONEPASS_INLINE_BODY {
            constexpr bool kPart = kMasked && k == kVectors - 1;
            // One that is whole is read again as a whole, which the processor does not forward from a part of one.
            kPart&& lanes < W ? store_n(y + k * W, value(k), lanes) : store(y + k * W, value(k));
        });
    }

    // The sums of rows [begin, end), in C.
    template <bool kMasked, int kVectors>
    ONEPASS_INLINE static void add_up_in_registers(const ColumnSpan<T>& columns, std::int64_t begin, std::int64_t end,
                                                   int lanes, V (&sum)[kVectors]) {
        unrolled<kVectors>([&](auto k) ONEPASS_INLINE_BODY { sum[k] = C(0); });
        visit_columns<kVectors, kMasked, kSumsSoon>(columns, begin, end, lanes,
                                                    [&](auto k, V v) ONEPASS_INLINE_BODY { sum[k] = sum[k] + v; });
    }

    template <bool kMasked, int kVectors>
    ONEPASS_INLINE void add_up_wide(int column, int lanes, WideSum<C> (&total)[kVectors]) const {
        const ColumnSpan<T> columns = from(column);
        for (std::int64_t row = 0; row < span_.rows; row += kRows) {
            V sum[kVectors];
            add_up_in_registers<kMasked>(columns, row, row + kRows < span_.rows ? row + kRows : span_.rows, lanes, sum);
            unrolled<kVectors>([&](auto k) ONEPASS_INLINE_BODY { total[k].add(sum[k]); });
        }
    }

    template <int kVectors, bool kMasked>
    ONEPASS_APART void add_up(int column, int lanes, double* totals, double* lost) const {
        WideSum<C> total[kVectors];
        add_up_wide<kMasked>(column, lanes, total);
        unrolled<kVectors>([&](auto k) ONEPASS_INLINE_BODY { total[k].store_parts(totals + k * W, lost + k * W); });
    }

    template <int kVectors, bool kMasked>
    ONEPASS_APART void add_up_rounded(int column, int lanes, bool mean, T* y) const {
        WideSum<C> total[kVectors];
        add_up_wide<kMasked>(column, lanes, total);
        if (mean) {
            for (auto& each : total) each.divide_by(static_cast<double>(span_.rows));
        }
        put<kVectors, kMasked>(y, lanes, [&](auto k) ONEPASS_INLINE_BODY { return total[k].rounded(); });
    }

    template <int kVectors, bool kMasked>
    ONEPASS_APART void add_up_few(int column, int lanes, T* y) const {
        const ColumnSpan<T> columns = from(column);
        V sum[kVectors];
        add_up_in_registers<kMasked>(columns, 0, span_.rows < kRows ? span_.rows : kRows, lanes, sum);
        if (span_.rows > kRows) {  // of two sums, float64 rounded is what C makes of them
            V more[kVectors];
            add_up_in_registers<kMasked>(columns, kRows, span_.rows, lanes, more);
            unrolled<kVectors>([&](auto k) ONEPASS_INLINE_BODY { sum[k] = sum[k] + more[k]; });
        }
        put<kVectors, kMasked>(y, lanes, [&](auto k) ONEPASS_INLINE_BODY { return sum[k]; });
    }

    template <int kSign, int kVectors, bool kMasked>
    ONEPASS_APART bool extremes_of(int column, int lanes, T* bests) const {
        const ColumnSpan<T> columns = from(column);
        V best[kVectors], nan = C(0);
        unrolled<kVectors>([&](auto k) ONEPASS_INLINE_BODY { best[k] = -kSign * kInfinity<C>; });
        visit_columns<kVectors, kMasked, true>(columns, 0, span_.rows, lanes, [&](auto k, V v) ONEPASS_INLINE_BODY {
            best[k] = more_extreme<kSign>(v, best[k]);
            nan = nan_or(v, nan);
        });
        put<kVectors, kMasked>(bests, lanes, [&](auto k) ONEPASS_INLINE_BODY { return best[k]; });
        return reduce_sum(nan) == 0;
    }

    ColumnSpan<T> span_;
    int width_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
