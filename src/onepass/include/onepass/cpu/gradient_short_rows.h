// registers: gradients of short rows, as many rows at once as a vector has lanes (short_rows.h).
#pragma once

#include "access.h"
#include "gradient_ops.h"
#include "row_batches.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Of one row: its first element in every array.
struct GradientRow {
    const char* x;
    const char* second;
    const char* third;
    char* y;
};

template <class T, class RowOp>
class GradientShortRows : RowBatches<T> {
    using Batches = RowBatches<T>;
    using C = Compute<T>;
    using V = Vec<C>;
    using Batches::W, Batches::n_, Batches::last_;

   public:
    explicit GradientShortRows(const Job& job) : Batches(job, job.length), job_(job) {
        const bool even = job.outer.count == 1;
        x_ahead_ = even ? W * job.outer[0].x_stride * size_of(job.in) : 0;
        second_ahead_ = even ? W * job.outer[0].z_stride * size_of(job.second) : 0;
    }

    // row_at(r) is where row r lies.
    template <class RowAt>
    void run(std::int64_t begin, std::int64_t end, RowAt&& row_at) const {
        GradientRow rows[W];
        for (std::int64_t first = begin; first < end; first += W) {
            const int count = static_cast<int>(end - first < W ? end - first : W);
            for (int r = 0; r < count; ++r) rows[r] = row_at(first + r);
            batch(rows, count);
        }
    }

   private:
    ONEPASS_INLINE static const T* elements(const char* p) { return reinterpret_cast<const T*>(p); }

    // Row r of the next batch: the processor sees rows this short begin and end too often to look far ahead itself.
    ONEPASS_INLINE void fetch(const char* p) const {
        for (int i = 0; i < n_ * static_cast<int>(sizeof(T)); i += kCacheLine) __builtin_prefetch(p + i, 0, 3);
    }

    // The same of one vector, of two arrays, and into L2: their next batch, this one and its results are more than L1.
    ONEPASS_INLINE void fetch_vector(const GradientRow& row, int i) const {
        __builtin_prefetch(row.x + x_ahead_ + i * static_cast<int>(sizeof(T)), 0, 2);
        __builtin_prefetch(row.second + second_ahead_ + i * static_cast<int>(sizeof(T)), 0, 2);
    }

    ONEPASS_INLINE V vector(const T* x, int i) const { return i + W <= n_ ? load(x + i) : load_n(x + i, last_, C(0)); }

    void batch(const GradientRow* rows, int count) const {
        alignas(kCacheLine) C k[RowOp::kConstants][W];
        set_constants(rows, count, k);
        char* to[W];
        for (int r = 0; r < count; ++r) to[r] = rows[r].y;
        Batches::store_rows(to, count, [&](int r, int i) ONEPASS_INLINE_BODY {
            const auto op = all_lanes<RowOp>(k[0] + r, W);
            if constexpr (RowOp::kSums) {
                return op(vector(elements(rows[r].x), i), vector(elements(rows[r].second), i));
            } else {
                return op(vector(elements(rows[r].x), i));
            }
        });
    }

    ONEPASS_INLINE void set_constants(const GradientRow* rows, int count, C (&k)[RowOp::kConstants][W]) const {
        if constexpr (RowOp::kSums) {
            alignas(kCacheLine) double sum[W];
            sums(rows, count, sum);
            for (int r = 0; r < W; ++r) RowOp::set(k[0] + r, W, sum[r]);
        } else {
            for (int r = 0; r < count; ++r) {
                fetch(rows[r].x + x_ahead_);
                RowOp::set(k[0] + r, W, read_scalar(rows[r].second, job_.second),
                           read_scalar(rows[r].third, job_.third));
            }
        }
    }

    ONEPASS_INLINE void sums(const GradientRow* rows, int count, double (&sum)[W]) const {
        if constexpr (sizeof(C) == 8) {
            for (int r = 0; r < W; ++r) {
                const GradientRow& row = rows[r < count ? r : 0];
                sum[r] = gradient_sum<RowOp::kOfProducts>(elements(row.x), elements(row.second), n_, Nothing{});
            }
        } else {
            V part[W];
            for (int r = 0; r < count; ++r) {
                const T* y = elements(rows[r].x);
                const T* dy = elements(rows[r].second);
                V all = C(0);
                const auto add = [&](int at, V d, V factor) ONEPASS_INLINE_BODY {
                    fetch_vector(rows[r], at);
                    all = RowOp::kOfProducts ? fma(d, factor, all) : all + d;
                };
                int i = 0;
                for (; i + W <= n_; i += W) add(i, load(dy + i), load(y + i));
                if (last_ > 0) add(i, load_n(dy + i, last_, C(0)), load_n(y + i, last_, C(0)));
                part[r] = all;
            }
            for (int r = count; r < W; ++r) part[r] = part[0];
            Batches::wide_sums(part, sum);
        }
    }

    const Job& job_;
    std::int64_t x_ahead_;  // bytes from a row to the one a batch later
    std::int64_t second_ahead_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
