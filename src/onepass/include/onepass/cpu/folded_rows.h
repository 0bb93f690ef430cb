// Sums, means and extremes of rows whose steps have a few elements each, or of whole rows that fit a vector
// (transposed.h), where they lie: a vector takes as many whole steps as it holds, and at the end what lies a half of
// them apart is taken together, until one step is left. Measured on a Zen 4, two threads, us, against batches that are
// transposed and tiles, float32, dim 1: amax of 100000x5x4 138 for 389, sums 130 for 342, 100000x3x7 150 for 385,
// 15000x30x5 90 for 750, 20000x100x2 120 for 630; with AVX2 105 for 380, 88 for 370, 110 for 376, 180 for 510, 270 for
// 530.
#pragma once

#include "span.h"
#include "transposed.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class FoldedRows {
    using C = Compute<T>;
    using V = Vec<C>;
    using Bits = typename V::Bits;
    using Native = typename V::Native;
    static constexpr int W = kLanes<C>;

   public:
    FoldedRows(const Job& job, const void* x, void* y)
        : job_(job),
          x_(static_cast<const T*>(x)),
          y_(static_cast<T*>(y)),
          length_(job.length),
          inner_(static_cast<int>(job.inner.size)),
          elements_(static_cast<int>(job.length) * inner_) {
        const int fit = W / inner_;
        const int steps = job.length < fit ? static_cast<int>(job.length) : fit;
        span_ = steps * inner_;
        last_ = elements_ - span_;
        first_cut_ = job.rows - (last_ + W + elements_ - 1) / elements_ + 1;
        for (int n = steps; n > 1; n = (n + 1) / 2) halve(n);
        const int again = elements_ % span_ == 0 ? 0 : span_ - elements_ % span_;
        for (int lane = 0; lane < W; ++lane) fresh_[lane] = lane >= again ? ~0u : 0;
    }

    void run() const {
        const std::int64_t row_bytes = elements_ * static_cast<std::int64_t>(sizeof(T));
        auto body = [&](std::int64_t begin, std::int64_t end) {
            if (adds_up_long_rows()) return add_up_long_rows(begin, end);
            switch (halvings_) {
                case 0: return reduce<0>(begin, end);
                case 1: return reduce<1>(begin, end);
                case 2: return reduce<2>(begin, end);
                case 3: return reduce<3>(begin, end);
                default:
                    if constexpr (W > 8) reduce<4>(begin, end);
            }
        };
        parallel_ranges(job_.rows, grain_of(job_.rows, row_bytes, kPlainRun, job_.threads), job_.threads, body);
    }

   private:
    static constexpr int kAddedUp = 16;  // vectors, in float32

    // Of n steps in a vector the upper half goes to the lower; where there is none, lanes stay what they are, or add 0.
    void halve(int n) {
        Bits &from = from_[halvings_], &has = has_[halvings_];
        ++halvings_;
        const int half = (n + 1) / 2;
        for (int lane = 0; lane < W; ++lane) {
            const bool upper = lane / inner_ + half < n;
            from[lane] = upper ? lane + half * inner_ : lane;
            has[lane] = upper ? ~0u : 0;
        }
    }

    bool adds_up_long_rows() const { return is_sum(job_.op) && elements_ > kAddedUp * span_; }
    void add_up_long_rows(std::int64_t begin, std::int64_t end) const {
        const FoldedRows rows(*this);  // as in reduce()
        job_.op == Op::mean ? rows.template long_sums<true>(begin, end) : rows.template long_sums<false>(begin, end);
    }

    template <int kHalvings>
    void reduce(std::int64_t begin, std::int64_t end) const {
        // A copy, that no store can be taken to change: it stays in registers.
        const FoldedRows rows(*this);
        switch (job_.op) {
            case Op::sum: return rows.template sums<kHalvings, false>(begin, end);
            case Op::mean: return rows.template sums<kHalvings, true>(begin, end);
            case Op::amax: return rows.template extremes<kHalvings, 1>(begin, end);
            default: return rows.template extremes<kHalvings, -1>(begin, end);
        }
    }

    // Calls visit(vector, whether it is the last) for a row, of whose vectors the first `span_` lanes are its own. The
    // last one ends with the row and may take some for a second time, all but those in `fresh_`. Vectors reach past a
    // row, but not past the last one; whole ones do not.
    template <class Visit>
    ONEPASS_INLINE void visit_row(std::int64_t r, Visit&& visit) const {
        const T* x = x_ + r * elements_;
        if (r >= first_cut_) x = copied(x);
        for (int at = 0; at < last_; at += span_) visit(load(x + at), false);
        visit(load(x + last_), true);
    }
    // One of the last rows, where a vector may reach past it. In scratch memory: 64 KiB at most by AVX-512, more than
    // some threads have of a stack.
    ONEPASS_APART const T* copied(const T* x) const {
        T* const copy = scratch_of<T>(Scratch::input, elements_ + W);
        __builtin_memcpy(copy, x, elements_ * sizeof(T));
        __builtin_memset(copy + elements_, 0, W * sizeof(T));
        return copy;
    }

    // What is written past the row's own results is written over by the next one's; the last ones of a range write no
    // more than is theirs.
    ONEPASS_INLINE void put(std::int64_t r, std::int64_t end, V result) const {
        T* const y = y_ + r * inner_;
        (end - r) * inner_ >= W ? store(y, result) : store_n(y, result, inner_);
    }

    static ONEPASS_INLINE V only(Bits lanes, V v) { return (Native)((Bits)v.v & lanes); }

    template <int kHalvings, bool kMean>
    ONEPASS_INLINE void sums(std::int64_t begin, std::int64_t end) const {
        for (std::int64_t r = begin; r < end; ++r) {
            V sum = C(0);
            visit_row(r, [&](V v, bool last) ONEPASS_INLINE_BODY { sum = sum + (last ? only(fresh_, v) : v); });
            for (int i = 0; i < kHalvings; ++i) sum = sum + only(has_[i], lookup(sum, from_[i]));
            if constexpr (kMean) {
                WideSum<C> wide;
                wide.add(sum);
                wide.divide_by(static_cast<double>(length_));
                sum = wide.rounded();
            }
            put(r, end, sum);
        }
    }

    // Of more vectors than may be added up in float32: sixteen go to float64, and lanes are folded there.
    template <bool kMean>
    ONEPASS_INLINE void long_sums(std::int64_t begin, std::int64_t end) const {
        for (std::int64_t r = begin; r < end; ++r) {
            WideSum<C> total;
            V sum = C(0);
            int added = 0;
            visit_row(r, [&](V v, bool last) ONEPASS_INLINE_BODY {
                sum = sum + (last ? only(fresh_, v) : v);
                if (++added < kAddedUp) return;
                total.add(sum);
                sum = C(0);
                added = 0;
            });
            total.add(sum);
            alignas(kCacheLine) double lanes[W];
            total.store_lanes(lanes);
            for (int n = span_ / inner_; n > 1; n = (n + 1) / 2) {
                const int half = (n + 1) / 2 * inner_;
                for (int lane = half; lane < n * inner_; ++lane) lanes[lane - half] += lanes[lane];
            }
            WideSum<C> whole{load(lanes), load(lanes + kLanes<double>)};
            if constexpr (kMean) whole.divide_by(static_cast<double>(length_));
            put(r, end, whole.rounded());
        }
    }

    template <int kHalvings, int kSign>
    ONEPASS_INLINE void extremes(std::int64_t begin, std::int64_t end) const {
        // Between looks for NaN: no more than is still in a near cache when one is found.
        constexpr int kRows = 64, kElements = 4096;
        const int fit = kElements / elements_;
        const int rows = fit < 1 ? 1 : fit < kRows ? fit : kRows;
        for (std::int64_t first = begin; first < end; first += rows) {
            const std::int64_t stop = first + rows < end ? first + rows : end;
            V nan = C(0);
            for (std::int64_t r = first; r < stop; ++r) {
                V best = -kSign * kInfinity<C>;
                visit_row(r, [&](V v, bool) ONEPASS_INLINE_BODY {
                    best = more_extreme<kSign>(v, best);
                    nan = nan_or(v, nan);
                });
                for (int i = 0; i < kHalvings; ++i) best = more_extreme<kSign>(lookup(best, from_[i]), best);
                put(r, end, best);
            }
            if (reduce_sum(nan) != 0) put_nans(first, stop);
        }
    }

    void put_nans(std::int64_t begin, std::int64_t end) const {
        for (std::int64_t r = begin; r < end; ++r) {
            for (int e = 0; e < elements_; e += kLookedAt) {
                const int n = elements_ - e < kLookedAt ? elements_ - e : kLookedAt;
                if (n < kLookedAt || any_nan(x_ + r * elements_ + e)) put_nans_of(r, e, e + n);
            }
        }
    }
    static constexpr int kLookedAt = 4 * W;
    static bool any_nan(const T* x) {
        V nan = C(0);
        for (int i = 0; i < kLookedAt; i += W) nan = nan_or(load(x + i), nan);
        return reduce_sum(nan) != 0;
    }
    void put_nans_of(std::int64_t r, int begin, int end) const {
        for (int e = begin; e < end; ++e) {
            const T value = x_[r * elements_ + e];
            const float f = to_float(value);
            if (f != f) y_[r * inner_ + e % inner_] = value;
        }
    }

    const Job& job_;
    const T* x_;
    T* y_;
    std::int64_t length_;
    std::int64_t first_cut_;  // rows from this one on have no vector behind them
    int inner_;
    int elements_;  // of a row
    int span_;      // lanes of a vector that are whole steps of a row
    int last_;      // where the last vector of a row begins
    int halvings_ = 0;
    Bits fresh_;
    Bits from_[4], has_[4];
};

template <class T>
Form run_folded(const Job& job, const void* x, void* y) {
    FoldedRows<T>(job, x, y).run();
    return Form::folded;
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
