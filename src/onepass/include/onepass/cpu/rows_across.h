// Sums, means and extremes of short rows that follow each other (transposed.h), as many at once as a vector has lanes,
// or those times the rows that a vector holds: lane by lane into one vector a row, or into a part of one, and those
// across (across.h). Nothing but loads in the order of memory and whole vectors of results.
#pragma once

#include "across.h"
#include "column_groups.h"
#include "fetch_ahead.h"
#include "span.h"
#include "transposed.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class RowsAcross {
    using C = Compute<T>;
    using V = Vec<C>;
    using Bits = typename V::Bits;
    static constexpr int W = kLanes<C>;
    static constexpr int kLine = kCacheLine / static_cast<int>(sizeof(T));

   public:
    RowsAcross(const Job& job, const void* x, void* y)
        : job_(job),
          x_(static_cast<const T*>(x)),
          y_(static_cast<T*>(y)),
          n_(static_cast<int>(job.length)),
          ahead_(kFetches && come_from_afar<T>(job) ? kBytesAhead / sizeof(T) : 0) {}

    void run() const {
        switch (job_.op) {
            case Op::sum: return run<Sum>();
            case Op::mean: return run<Mean>();
            case Op::amax: return run<Extreme<1>>();
            default: return run<Extreme<-1>>();
        }
    }

   private:
    // By AVX2, so far ahead is fetched beside the rows that are read. Measured on a Zen 3, by one thread and by two,
    // times over those without, from memory: sums of 3 float32 0.83 and 0.86, of 8 0.96 and 0.97, of 17 0.82 and 0.89,
    // of 32 0.91 and 0.96, maxima 0.85 and 0.84, 0.90 and 1.08, 0.77 and 0.84, 0.88 and 0.95; bfloat16 0.79 to 0.90 and
    // 0.78 to 0.98; from L3 0.87 to 1.02. Not by AVX-512: on a Zen 4, from memory, sums of 8 float32 1.25 and 1.41, of
    // 16 1.55 and 1.35, of 32 1.16 and 1.39.
    static constexpr bool kFetches = kVectorBytes == 32;
    static constexpr int kBytesAhead = 2048;
    // There the lines of a row of two vectors of float32 or more are only asked for in the order of memory before they
    // are read, where they come from memory: the loads of each row of a batch are another place of the program, and
    // what the processor fetches for W of those arrives out of order. Measured on a Zen 4, by one thread and by two,
    // times over those without: sums of 32 0.81 and 0.83, of 64 0.86 and 0.90, maxima of 32 0.89 and 0.94, of 64 1.0;
    // but from L3, sums of 32 1.25 and 1.34, of bfloat16 1.17 to 1.35.
    static constexpr bool kAsksForLong = kVectorBytes == 64 && sizeof(T) == 4;

    struct Sum {
        static constexpr bool kAdds = true;
        static ONEPASS_INLINE V combine(V a, V b) { return a + b; }
        static ONEPASS_INLINE V result(V sum, int) { return sum; }
    };
    struct Mean : Sum {
        static ONEPASS_INLINE V result(V sum, int n) {
            WideSum<C> wide;
            wide.add(sum);
            wide.divide_by(static_cast<double>(n));
            return wide.rounded();
        }
    };
    template <int kSign>
    struct Extreme {
        static constexpr bool kAdds = false;
        static ONEPASS_INLINE V combine(V a, V b) { return more_extreme<kSign>(a, b); }
        static ONEPASS_INLINE V result(V best, int) { return best; }
    };

    // A vector takes the steps of kTogether rows, one for each W / kTogether lanes. kWhole: rows have as many elements;
    // kAsks: for their lines (above).
    template <class Fold, int kTogether = 1>
    void run() const {
        constexpr int kSteps = W / kTogether;
        if constexpr (kSteps == 2) {
            run<Fold, kTogether, true>();
        } else if (2 * n_ <= kSteps) {
            run<Fold, 2 * kTogether>();
        } else {
            if constexpr (kAsksForLong) {
                if (kTogether == 1 && n_ >= 2 * W && !job_.cached) return run<Fold, 1, false, true>();
            }
            n_ == kSteps ? run<Fold, kTogether, true>() : run<Fold, kTogether, false>();
        }
    }

    template <class Fold, int kTogether, bool kWhole, bool kAsks = kFetches>
    void run() const {
        constexpr int kRows = W * kTogether;
        const std::int64_t batches = (job_.rows + kRows - 1) / kRows, bytes = std::int64_t{kRows} * n_ * sizeof(T);
        // Batches whose vectors end before the last row does: of rows that do not fill them, the last of each reaches
        // into the next rows.
        const std::int64_t beyond = n_ < W && !kWhole ? (W - kTogether * n_ + n_ - 1) / n_ : 0;
        const std::int64_t whole = (job_.rows - beyond) / kRows;
        auto body = [&](std::int64_t begin, std::int64_t end) {
            const Lanes lanes(n_, kTogether);
            for (std::int64_t i = begin; i < end && i < whole; ++i) {
                batch<Fold, kTogether, kWhole, kAsks>(lanes, x_ + i * kRows * n_, y_ + i * kRows);
            }
            for (std::int64_t i = begin < whole ? whole : begin; i < end; ++i) {
                last_batch<Fold, kTogether, kWhole, kAsks>(lanes, i * kRows);
            }
        };
        parallel_ranges(batches, grain_of(batches, bytes, kPlainRun, job_.threads), job_.threads, body);
    }

    // What is known of lanes for all vectors.
    struct Lanes {
        Bits from;    // where an element of a row lies; of a lane that has none, the row's first
        Which fresh;  // what has an element, of a longer row's last vector one that no other vector has
        Bits order;   // where a result lies

        Lanes(int n, int together) {
            const int steps = W / together;
            alignas(kCacheLine) float has[W];
            for (int lane = 0; lane < W; ++lane) {
                const int row = lane / steps, e = lane % steps;
                from[lane] = row * n + (e < n ? e : 0);
                has[lane] = n > W ? n % W == 0 || lane >= W - n % W : e < n;
                order[lane] = lane % together * steps + lane / together;
            }
            fresh = differs(load(has), 0.0f);
        }
    };

    // The batch of rows at x. Vector s has rows s * kTogether on, and goes where its results end up side by side: of
    // vectors i and i + half, halves of lanes are combined, so bits of i become bits of a lane, the highest first.
    template <class Fold, int kTogether, bool kWhole, bool kAsks>
    ONEPASS_INLINE void batch(const Lanes& lanes, const T* x, T* y) const {
        constexpr int kSteps = W / kTogether;
        V v[W], seen = C(0);
        unrolled<W>([&](auto s) ONEPASS_INLINE_BODY {
            v[s % kSteps * kTogether + s / kSteps] =
                row<Fold, kTogether, kWhole, kAsks>(lanes, x + s * kTogether * n_, seen);
        });
        across_from<kSteps / 2, W / 2>(v, [](V a, V b) ONEPASS_INLINE_BODY { return Fold::combine(a, b); });
        unrolled<kTogether>([&](auto j) ONEPASS_INLINE_BODY {
            const V result = Fold::result(v[j], n_);
            store(y + j * W, kTogether == 1 ? result : lookup(result, lanes.order));
        });
        if constexpr (!Fold::kAdds) {
            if (__builtin_expect(any_nan(seen), 0)) put_nans(x, W * kTogether, y);
        }
    }

    // A row in one vector, or several rows side by side. seen: NaN if an element is; or infinities of both signs are.
    template <class Fold, int kTogether, bool kWhole, bool kAsks>
    ONEPASS_INLINE V row(const Lanes& lanes, const T* x, V& seen) const {
        const auto see = [&](V v) ONEPASS_INLINE_BODY {
            if constexpr (!Fold::kAdds) seen = seen + v;
            return v;
        };
        if constexpr (kAsks) __builtin_prefetch(x + ahead_);
        if constexpr (kWhole) return see(load(x));
        if (kTogether == 1 && n_ > W) {
            const V last = load(x + n_ - W);
            V part = see(Fold::kAdds ? or_zero(lanes.fresh, last) : last);
            for (int i = W; kAsks && i < n_; i += kLine) __builtin_prefetch(x + i + ahead_);
            for (int i = 0; i < n_ - W; i += W) part = Fold::combine(see(load(x + i)), part);
            return part;
        }
        const V v = kTogether == 1 && Fold::kAdds ? load(x) : lookup(load(x), lanes.from);
        return see(Fold::kAdds ? or_zero(lanes.fresh, v) : v);
    }

    // The rows from `first` on, fewer than a batch or with too little behind them, and the same additions.
    template <class Fold, int kTogether, bool kWhole, bool kAsks>
    ONEPASS_APART void last_batch(const Lanes& lanes, std::int64_t first) const {
        constexpr int kRows = W * kTogether;
        const std::int64_t left = job_.rows - first, rows = left < kRows ? left : kRows;
        T copy[W * kMostAcross<T> + W] = {}, results[kRows];
        __builtin_memcpy(copy, x_ + first * n_, rows * n_ * sizeof(T));
        batch<Fold, kTogether, kWhole, kAsks>(lanes, copy, results);
        __builtin_memcpy(y_ + first, results, rows * sizeof(T));
    }

    ONEPASS_APART void put_nans(const T* x, int rows, T* y) const {
        for (int i = 0; i < rows * n_; ++i) {
            const float f = to_float(x[i]);
            if (f != f) y[i / n_] = x[i];
        }
    }

    const Job& job_;
    const T* x_;
    T* y_;
    int n_;
    int ahead_;  // elements from what is read to what is fetched
};

template <class T>
Form run_across(const Job& job, const void* x, void* y) {
    RowsAcross<T>(job, x, y).run();
    return Form::across;
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
