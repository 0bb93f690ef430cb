// Rows of up to sixteen vectors, as many at once as a vector has lanes: what the kernels of short rows have in common.
// Gradients of up to 32 vectors that hold one row at a time do not come here.
#pragma once

#include "across.h"
#include "span.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class RowBatches {
   public:
    static constexpr int kMostVectors = 16;

   protected:
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr int W = kLanes<C>;

    // `results`: in each row.
    RowBatches(const Job& job, std::int64_t results)
        : n_(static_cast<int>(job.length)),
          last_(n_ % W),
          adjacent_((job.outer.count == 1 ? job.outer[0].y_stride : 0) == results),
          nontemporal_(job.nontemporal) {}

    // Whether rows of results from this one on are whole cache lines that may go past the cache.
    bool lines_at(const void* first) const {
        const bool whole = n_ * static_cast<int>(sizeof(T)) % kCacheLine == 0 && adjacent_;
        return nontemporal_ && whole && reinterpret_cast<std::uintptr_t>(first) % kCacheLine == 0;
    }

    // Writes the rows of a batch; value(r, i, lanes) is the vector at i of row r's result, of which `lanes` are seen,
    // beside(r) work to do before row r. kNormal: none of the results is subnormal. So it is of softmax, and the
    // exponentials beside are most of the code: in one loop, whichever way results go. Gradients have a loop for each,
    // which in one took 10% longer (AVX2, log_softmax's of 1000 x 100).
    template <bool kNormal, class Value, class Beside>
    ONEPASS_INLINE void store_rows(char* const (&rows)[W], int count, Value&& value, Beside&& beside) const {
        const bool past_cache = nontemporal_ && adjacent_ && count == W;
        const bool lines = past_cache && last_ == 0 && reinterpret_cast<std::uintptr_t>(rows[0]) % kCacheLine == 0;
        // W rows are whole cache lines together, though none of them is: put side by side first.
        const bool gathered = past_cache && !lines;
        alignas(kCacheLine) C all[(W * kMostVectors + 1) * W];
        const auto store_each = [&](auto lines, auto gathered) ONEPASS_INLINE_BODY {
            for (int r = 0; r < count; ++r) {
                beside(r);
                T* y = reinterpret_cast<T*>(rows[r]);
                int i = 0;
                if (gathered) {
                    for (; i + W <= n_; i += W) store(all + r * n_ + i, value(r, i, W));
                    if (last_ > 0) store(all + r * n_ + i, value(r, i, last_));
                } else if (lines) {
                    if constexpr (kNormal) {
                        const int pairs = n_ % (2 * W) == 0 ? n_ : 0;  // then each of them is aligned
                        for (; i < pairs; i += 2 * W) stream_normal(y + i, value(r, i, W), value(r, i + W, W));
                    }
                    for (; i < n_; i += W) stream(y + i, value(r, i, W));
                } else {
                    if constexpr (kNormal) {
                        for (; i + 2 * W <= n_; i += 2 * W) store_normal(y + i, value(r, i, W), value(r, i + W, W));
                    }
                    for (; i + W <= n_; i += W) store(y + i, value(r, i, W));
                    if (last_ > 0) store_n(y + i, value(r, i, last_), last_);
                }
            }
        };
        if constexpr (kNormal) {
            store_each(lines, gathered);
        } else if (lines) {
            store_each(std::true_type{}, std::false_type{});
        } else if (gathered) {
            store_each(std::false_type{}, std::true_type{});
        } else {
            store_each(std::false_type{}, std::false_type{});
        }
        if (gathered) emit(reinterpret_cast<T*>(rows[0]), std::int64_t{W} * n_, true, Gathered{all});
    }

    struct Gathered {
        const C* all;
        ONEPASS_INLINE V operator()(std::int64_t i) const { return load(all + i); }
        V operator()(std::int64_t i, int n) const { return load_n(all + i, n, C(0)); }
    };

    // The sum of the lanes of each row, in float64.
    static void wide_sums(V (&part)[W], double (&sum)[W]) {
        if constexpr (sizeof(C) == 8) {
            store(sum, sums_across(part));
        } else {
            VecD halves[W];
            for (int r = 0; r < W; ++r) halves[r] = low_half(part[r]) + high_half(part[r]);
            wide_sums_of_halves(halves, sum);
        }
    }
    static void wide_sums_of_halves(VecD (&rows)[W], double (&sum)[W]) {
        constexpr int kHalf = kLanes<double>;
        VecD some[kHalf];
        for (int first = 0; first < W; first += kHalf) {
            for (int r = 0; r < kHalf; ++r) some[r] = rows[first + r];
            store(sum + first, sums_across(some));
        }
    }

    int n_;
    int last_;       // elements of the last vector, if it is not full
    bool adjacent_;  // results lie next to each other, row after row
    bool nontemporal_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
